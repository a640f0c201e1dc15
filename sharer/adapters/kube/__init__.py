"""The API server, seen from a node: what sharer reads and writes there.

    access      in a pod, by a kubeconfig, or not at all
    connect     imports the official client, which is why only this function does (DESIGN §10)
    transport   its authentication and connections; bytes, lines, credentials made anew
    calls       requests as values     errors   what a refusal means, and the rule that is missing
    client      one method a purpose: pages, a watch, apply, Events, eviction, a Lease
    watch       list and watch for ever, one loop for every kind; standing: what is in the way
    watches     the three that an agent needs: its pods, its node, its policies
    wire        the few fields that are decoded; pods, steering, events: from and to the core's words
    timings     every interval, with its reason        counters   what was asked how often

Nothing here is called inside an answer to the kubelet.
"""

from __future__ import annotations

from sharer.adapters.kube.access import InCluster, KubeAccess, Kubeconfig, choose_access
from sharer.adapters.kube.calls import CONFIG_MAPS, EVENTS, LEASES, NODES, PODS, Resource
from sharer.adapters.kube.client import KubeClient
from sharer.adapters.kube.connect import connect
from sharer.adapters.kube.counters import KubeCounters
from sharer.adapters.kube.errors import ApiError
from sharer.adapters.kube.timings import KubeTimings
from sharer.adapters.kube.watch import ObjectWatch
from sharer.adapters.kube.watches import watch_config_map, watch_node, watch_pods

__all__ = [
    "CONFIG_MAPS",
    "EVENTS",
    "LEASES",
    "NODES",
    "PODS",
    "ApiError",
    "InCluster",
    "KubeAccess",
    "KubeClient",
    "KubeCounters",
    "KubeTimings",
    "Kubeconfig",
    "ObjectWatch",
    "Resource",
    "choose_access",
    "connect",
    "watch_config_map",
    "watch_node",
    "watch_pods",
]
