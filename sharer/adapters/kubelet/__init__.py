"""Our side of the kubelet's device plugin API (kubelet-contract.md is the law).

link        GrpcKubeletLink: the resources, and how they begin and end; implements core.ports.kubelet.KubeletLink
resource    one resource's life: wait for the kubelet, serve, register, notice the end, begin again
server      one gRPC server on one socket file, for one registration
feed        the list, and the streams that read it
wire        sharer's words as protobuf, and back
sockets     socket files: names, identity, who listens, leftovers
counters    what happened how often
repeats     a failure that repeats is said once
timings     every interval and deadline, with its reason
"""

from sharer.adapters.kubelet.counters import KubeletCounters
from sharer.adapters.kubelet.link import GrpcKubeletLink
from sharer.adapters.kubelet.timings import KubeletTimings

__all__ = ["GrpcKubeletLink", "KubeletCounters", "KubeletTimings"]
