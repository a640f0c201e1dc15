"""What the sources say about who holds what, as they say it. Each reading is whole, and newer than the one before.

No news is not "nothing": a source that fails, is throttled or has only just started gives no reading at all, and the
last one stands.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import field

from sharer.core.device_id import recognise
from sharer.core.holders.observations import PodSeen, PodsSeen
from sharer.core.values import dataclass, replace

SliceKey = tuple[str, str]
"""A resource name and a device ID's text: what the kubelet counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """One container that holds a slice, or held it. What a source does not say is None."""

    uid: str | None  # of the pod as its cgroup is named; for a static pod the hash of its manifest
    namespace: str | None
    pod: str | None
    container: str

    def is_same(self, other: Holder) -> bool:
        """Whether both are one pod and container, as far as can be told."""
        if self.uid is not None and other.uid is not None:
            return (self.uid, self.container) == (other.uid, other.container)
        return (self.namespace, self.pod, self.container) == (other.namespace, other.pod, other.container)

    def is_same_pod(self, other: Holder) -> bool:
        """Whether both are containers of one pod, as far as can be told."""
        return replace(self, container="").is_same(replace(other, container=""))

    def merged(self, newer: Holder) -> Holder:
        """One holder from two descriptions of it."""
        if None not in (newer.uid, newer.namespace, newer.pod):
            return newer  # as it is: all slices of a container have one holder in memory
        return replace(
            newer,
            uid=newer.uid or self.uid,
            namespace=newer.namespace or self.namespace,
            pod=newer.pod or self.pod,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ListReading:
    """podresources `List`: app and sidecar containers, in the kubelet's present view. Never regular init containers."""

    serial: int  # counts the readings of this source; one that was seen before is no second one
    holders: Mapping[SliceKey, Holder] = field(default_factory=dict)  # their uid is None: this API has none
    pods: frozenset[tuple[str, str]] = frozenset()  # namespace and name of every pod in it, with devices or without
    kubelet_age_s: float | None = None  # since the kubelet that answered had started; None: not known


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointEntry:
    """What one container was given of one resource. Entries of ended pods stay for a long time."""

    uid: str
    container: str
    resource: str
    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointReading:
    """The kubelet's checkpoint file: every container that was given devices, init containers too."""

    serial: int  # counts the readings of the file, whether or not it had changed
    entries: tuple[CheckpointEntry, ...] = ()
    registered: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # resource -> healthy IDs, every plugin's
    is_current: bool = True  # False: the file is gone or damaged since, and does not name whom the kubelet has now


@dataclass(frozen=True, slots=True, kw_only=True)
class CgroupReading:
    """Every pod cgroup of the node, by pod UID, and whether a process lives in it."""

    populated: Mapping[str, bool] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    """A process on a GPU, and the pod that it belongs to."""

    pid: int | None  # the host's; None: the driver does not say
    gpu_uuid: str  # of the physical GPU or the MIG device
    used_bytes: int | None
    command: str | None
    uid: str | None  # of its pod; None: a process of the host, or `attributed` is False
    container_id: str | None
    attributed: bool  # whether its cgroup could be read
    is_mps_client: bool | None = None  # None: the driver does not say


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessReading:
    """The processes on the GPUs that could be asked."""

    processes: tuple[GpuProcess, ...] = ()
    asked: frozenset[str] = frozenset()  # UUIDs of the GPUs and MIG devices whose list is complete
    lost: frozenset[str] = frozenset()  # UUIDs of the GPUs that said instead that they are lost


Reading = ListReading | CheckpointReading | CgroupReading | ProcessReading | PodsSeen


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The last reading of each source; None: there was none yet, so nothing is known."""

    listed: ListReading | None = None
    checkpoint: CheckpointReading | None = None
    checkpoint_then: CheckpointReading | None = None  # the last one before `listed`: about the pods that `listed` names
    cgroups: CgroupReading | None = None
    processes: ProcessReading | None = None
    pods: PodsSeen | None = None

    def pods_by_cgroup(self) -> dict[str, PodSeen]:
        """The pods that the API knows, by the UID in their cgroups' names; none where it has not said anything yet."""
        return {} if self.pods is None else {pod.cgroup_uid: pod for pod in self.pods.pods.values()}


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceStatus:
    """How current a source of the ledger is."""

    read_s: float | None = None  # when it last answered, on the monotonic clock; None: never
    problem: str | None = None  # why it does not, or not fully; None: nothing is wrong


def only_ours(reading: ListReading, names: Collection[str]) -> ListReading:
    """The reading without slices of other plugins: ours are those of our resources, and all IDs of our form."""
    holders = {key: holder for key, holder in reading.holders.items() if key[0] in names or recognise(key[1])}
    return replace(reading, holders=holders)


def only_our_entries(reading: CheckpointReading, names: Collection[str]) -> CheckpointReading:
    """The same for the checkpoint. What the plugins have registered stays."""
    entries = tuple(one for one in reading.entries if one.resource in names or any(map(recognise, one.ids)))
    return replace(reading, entries=entries)
