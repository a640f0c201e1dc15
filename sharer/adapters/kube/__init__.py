"""The API server, seen from a node: what sharer reads and writes there.

    access      in a pod, by a kubeconfig, or not at all
    connect     imports the official client, which is why only this function does (DESIGN §10)
    transport   its authentication and connections; bytes, lines, credentials made anew
    calls       requests as values     errors   what a refusal means, and the rule that is missing
    client      one method a purpose: pages, a watch, apply, Events, eviction, a Lease
    watch       list and watch for ever, one loop for every kind; standing: what is in the way
    watches     the three that an agent needs: its pods, its node, its policies; collection: what each follows
    follow      FollowedApi: the watches and the client of one agent, silent until it is told to begin
    wire        the few fields that are decoded; pods, steering, events: from and to the core's words
    cluster     the whole fleet at one moment, for the command line: Nodes, Pods, GpuNodes, Leases; fleet, gpu_nodes
    survey      what `sharer doctor` asks
    timings     every interval, with its reason        counters   what was asked how often

Nothing here is called inside an answer to the kubelet. Nothing is imported by this package itself, so that an agent can
look at `access` before it has registered, and take the rest afterwards.
"""
