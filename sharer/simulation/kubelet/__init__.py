"""A kubelet that behaves as kubelet-contract.md says, over real gRPC unix sockets; it fails where the real one fails.

    with FakeKubelet(Path("/tmp/s")).start() as kubelet:
        kubelet.wait_capacity("example.com/gpu", 4)  # a plugin has registered and listed 4 devices
        pod = kubelet.start_pod("train", {"example.com/gpu": 1})
        pod.phase, pod.ids("example.com/gpu"), pod.env()

Read it in this order: `records` (what one sees), `fake` and its two halves `workload` and `observer` over `life`, then
`process` (one run of a kubelet) with `registration`, `plugins`, `devices`, `allocation`, `topology`, `podresources`,
`checkpoint`. What outlives a run: `world`, `pods`, `journal`. Beside them `sockets` and `names`.
Not there: the plugin-watcher path (contract §2.6), DRA, cpu and memory. Known to differ: status updates come at once,
containers retry only when told (`sync_pod`), init containers end at once.
"""

from __future__ import annotations

from sharer.simulation.kubelet.checkpoint import CheckpointEntry, CorruptCheckpoint, read_checkpoint, write_checkpoint
from sharer.simulation.kubelet.fake import FakeKubelet
from sharer.simulation.kubelet.journal import Block, Die, Ignore, Refuse, RegisterFault
from sharer.simulation.kubelet.podresources import Fail, Hang, PodResourcesCall, Repeat
from sharer.simulation.kubelet.records import (
    Capacity,
    ContainerKind,
    ContainerSpec,
    ContainerState,
    ContainerStatus,
    Given,
    KubeletDown,
    KubeletPanic,
    KubeletSettings,
    ListedDevice,
    ListMessage,
    Phase,
    PodStatus,
    RegisterCall,
    Remnant,
    SocketState,
    Stream,
    TopologyPolicy,
)

__all__ = [
    "Block",
    "Capacity",
    "CheckpointEntry",
    "ContainerKind",
    "ContainerSpec",
    "ContainerState",
    "ContainerStatus",
    "CorruptCheckpoint",
    "Die",
    "Fail",
    "FakeKubelet",
    "Given",
    "Hang",
    "Ignore",
    "KubeletDown",
    "KubeletPanic",
    "KubeletSettings",
    "ListMessage",
    "ListedDevice",
    "Phase",
    "PodResourcesCall",
    "PodStatus",
    "Refuse",
    "RegisterCall",
    "RegisterFault",
    "Remnant",
    "Repeat",
    "SocketState",
    "Stream",
    "TopologyPolicy",
    "read_checkpoint",
    "write_checkpoint",
]
