"""Short ways to say what a node's sources tell of its slices. Pods are in namespace "default", with a container "c"."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from sharer.core.holders.evidence import (
    CgroupReading,
    CheckpointEntry,
    CheckpointReading,
    GpuProcess,
    Holder,
    ListReading,
    ProcessReading,
    SliceKey,
)
from sharer.core.holders.ledger import Entry, State
from sharer.core.holders.observations import PodPhase, PodSeen, PodsSeen
from sharer.core.quantities import GIB
from tests.core.builders import gpu_uuid

SHARED = "nvidia.com/gpu.shared"


def key(
    replica: int,
    limit_mib: int | None = None,
    *,
    index: int = 0,
    resource: str = SHARED,
    strategy: str = "ts",
) -> SliceKey:
    """A slice of the GPU with this index."""
    limit = "" if limit_mib is None else f"-{limit_mib}"
    return resource, f"{gpu_uuid(index)}::{strategy}-{replica}{limit}"


def named(pod: str, *, uid: str | None = None, container: str = "c") -> Holder:
    """Without a UID: as the kubelet's list names it."""
    return Holder(uid=uid, namespace="default", pod=pod, container=container)


def holder(number: int = 1, container: str = "c") -> Holder:
    """Pod "train-NUMBER"."""
    return named(f"train-{number}", uid=f"uid-{number}", container=container)


def held(*keys: SliceKey) -> dict[SliceKey, Entry]:
    """Each held by a pod of its own: the first by pod 1, and so on."""
    return {
        one: Entry(state=State.HELD, owner=holder(number), reason="the kubelet says so")
        for number, one in enumerate(keys, start=1)
    }


def listed(
    holders: Mapping[SliceKey, str] | None = None,
    *,
    serial: int = 1,
    others: Collection[str] = (),
    age_s: float | None = None,
) -> ListReading:
    """A `List` in which these pods hold these slices, and the others hold nothing."""
    found = {slice_key: named(pod) for slice_key, pod in (holders or {}).items()}
    names = frozenset(("default", pod) for pod in (*(holders or {}).values(), *others))
    return ListReading(serial=serial, holders=found, pods=names, kubelet_age_s=age_s)


def given_to(uid: str, *keys: SliceKey, container: str = "c") -> CheckpointEntry:
    """What the checkpoint says of a container that was given slices of one resource."""
    (resource,) = {resource for resource, _ in keys}
    return CheckpointEntry(uid=uid, container=container, resource=resource, ids=tuple(text for _, text in keys))


def checkpoint(
    *entries: CheckpointEntry, serial: int = 1, registered: Mapping[str, Sequence[str]] | None = None
) -> CheckpointReading:
    """`registered`: what each plugin listed last, by resource."""
    ids = {resource: tuple(listed_ids) for resource, listed_ids in (registered or {}).items()}
    return CheckpointReading(serial=serial, entries=entries, registered=ids)


def alive(*uids: str) -> CgroupReading:
    """Processes live in the cgroups of these pods, and in no others."""
    return CgroupReading(populated=dict.fromkeys(uids, True))


def process(
    uid: str | None,
    used_bytes: int | None = GIB,
    *,
    on: str = gpu_uuid(0),
    pid: int = 7,
    command: str = "python",
    container_id: str | None = None,
    attributed: bool = True,
) -> GpuProcess:
    """A process of a pod with this UID."""
    return GpuProcess(
        pid=pid,
        gpu_uuid=on,
        used_bytes=used_bytes,
        command=command,
        uid=uid,
        container_id=container_id,
        attributed=attributed,
    )


def reading(*processes: GpuProcess, asked: Iterable[str] = (gpu_uuid(0),)) -> ProcessReading:
    """All processes on the GPUs that were asked."""
    return ProcessReading(processes=processes, asked=frozenset(asked))


def pod(name: str, phase: PodPhase = PodPhase.RUNNING, *, uid: str | None = None) -> PodSeen:
    """A pod as the API tells of it. Its UID is "uid-NAME" unless it is given."""
    uid = uid or f"uid-{name}"
    return PodSeen(uid=uid, cgroup_uid=uid, namespace="default", name=name, phase=phase)


def seen(*pods: PodSeen) -> PodsSeen:
    """All pods of the node, by the API."""
    return PodsSeen(pods={one.uid: one for one in pods}, synced_at_s=0.0, resource_version="1")
