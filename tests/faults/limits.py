"""What must be true of the driver's limits once a node is quiet, beside what the kubelet has given to whom."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from sharer.core.quantities import MIB
from sharer.simulation.kubelet import ContainerState, PodStatus
from sharer.simulation.memory_limits import LimitBackend
from tests.faults.history import promised
from tests.faults.policies import C
from tests.faults.world import World


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pod:
    """A pod that runs, and what its containers were given."""

    status: PodStatus
    given: Mapping[str, frozenset[str]]  # by container, whether it runs or not: device IDs

    def most_mib(self, uuid: str) -> int | None:
        """All that was promised to it on a GPU; None: nothing."""
        return promised({one for ids in self.given.values() for one in ids}).get(uuid)


def wrong_limits(world: World, in_file: frozenset[tuple[str, tuple[str, str]]]) -> Iterator[str]:
    """What is not (yet) as it must be. Kubelet and agent run. `in_file`: what the checkpoint file says, by pod's UID.

    On a GPU at fault nothing can be asked. What the file does not say, nobody can tell the agent.
    """
    pods = list(_pods(world))
    known = [pod for pod in pods if {(pod.status.uid, key) for key in _keys(pod)} <= in_file]
    strangers = _never_given(world)
    for gpu in world.gpus:
        if gpu.uuid in world.driver.faulty | world.driver.sliced:
            continue
        limited = world.node.gpus.limited(gpu.uuid)
        for pod in known:
            yield from _wrong_of(world, pod, gpu.uuid, limited)
        for path in limited.keys() & strangers:
            yield f"{path} belongs to nobody with slices, and has a limit on {gpu.uuid}"
        if world.node.limit_backend is LimitBackend.DMEM:
            yield from _orphans(world, gpu.uuid, limited)


def _pods(world: World) -> Iterator[_Pod]:
    records = world.node.kubelet.records()
    for status in world.node.kubelet.pods():
        given: dict[str, frozenset[str]] = {}
        for (uid, container, _), ids in records.items():
            if uid == status.uid:
                given[container] = given.get(container, frozenset()) | {*ids}
        if not status.phase.terminal and given:
            yield _Pod(status=status, given=given)


def _keys(pod: _Pod) -> set[tuple[str, str]]:
    return {(resource, one) for row in pod.status.containers for resource, ids in row.ids.items() for one in ids}


def _wrong_of(world: World, pod: _Pod, uuid: str, limited: Mapping[str, tuple[int, int | None]]) -> Iterator[str]:
    """Each running container has just its promise, and the pod at least that of each and at most that of all."""
    uid, name = pod.status.uid, pod.status.name
    running = [one.name for one in pod.status.containers if one.state is ContainerState.RUNNING]
    given = {one.name for one in pod.status.containers if one.given is not None and one.given.env}
    forgotten = given - pod.given.keys()
    for container in running:
        if container in forgotten:  # it was given slices before the kubelet lost its books: its limit may stay
            continue
        promise_mib = _held_to(pod.given.get(container, frozenset()), uuid)
        soft_bytes, hard_bytes = limited.get(str(world.node.cgroup_of(uid, container)), (0, None))
        if hard_bytes != (None if promise_mib is None else promise_mib * MIB):
            yield f"{name}/{container} is limited to {hard_bytes} on {uuid}, and was promised {promise_mib} MiB"
        reserved_mib = promise_mib if world.in_force.guaranteed and uuid != C.uuid else 0
        if soft_bytes != (reserved_mib or 0) * MIB:
            yield f"{name}/{container} has {soft_bytes} of {uuid} reserved, and should have {reserved_mib} MiB"
    everything = frozenset(one for ids in pod.given.values() for one in ids)
    most_mib = _held_to(everything, uuid)
    least_mib = max((_held_to(pod.given.get(one, frozenset()), uuid) or 0 for one in running), default=0)
    _, hard_bytes = limited.get(str(world.node.cgroup_of(uid)), (0, None))
    is_right = hard_bytes is None if most_mib is None else hard_bytes is not None and (
        least_mib * MIB <= hard_bytes <= most_mib * MIB
    )  # fmt: skip
    if running and not is_right:
        yield f"{name} is limited to {hard_bytes} on {uuid}, and not to {least_mib} to {most_mib} MiB"


def _held_to(ids: frozenset[str], uuid: str) -> int | None:
    """The MiB that these IDs promise on a GPU; None: nothing, or one among them promises no memory."""
    mine = {one for one in ids if one.startswith(f"{uuid}::")}
    if any(len(promised({one})) == 0 for one in mine):
        return None
    return promised(mine).get(uuid)


def _never_given(world: World) -> set[str]:
    """The cgroups of everybody who was never given a slice: sandboxes, those that do not ask, a check's."""
    kubepods = world.node.root / "sys/fs/cgroup/kubepods"
    world.note_tenants()
    tenants = {str(leaf) for leaf in world.tenants} | {str(leaf.parent) for leaf in world.tenants}
    return {str(path) for path in _folders(kubepods)} - tenants - {str(kubepods / "burstable")}


def _folders(path: Path) -> Iterator[Path]:
    """Every cgroup below one; what goes meanwhile is not there."""
    try:
        found = [one for one in path.iterdir() if one.is_dir()]
    except FileNotFoundError:
        return
    for one in found:
        yield one
        yield from _folders(one)


def _orphans(world: World, uuid: str, limited: Mapping[str, tuple[int, int | None]]) -> Iterator[str]:
    """What is reserved above containers and by none of them: a cgroup's reservation is that of those below it."""
    kubepods = world.node.root / "sys/fs/cgroup/kubepods"
    for above in (kubepods, *(path for path in _folders(kubepods) if len(path.relative_to(kubepods).parts) < 3)):
        children = [path for path in limited if str(Path(path).parent) == str(above)]
        below = sum(limited[path][0] for path in children)
        own = limited.get(str(above), (0, None))[0]
        if own != below:
            yield f"{above} has {own} of {uuid} reserved, and those below it {below}"
