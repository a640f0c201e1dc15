"""Before a container's first instruction: its pod's limit, where the policy requires one.

The kubelet asks for this once per start and waits (kubelet-contract §8). The pod's cgroup exists by then and the
container's does not (runtime-facts §4), so it is the pod that is held, and the container's own limit follows when its
cgroup appears. Local files, one call of the driver, two seconds in all; then the start is refused in words, and the
kubelet tries again. So without an agent such a container does not start: no agent, no start.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from sharer.core.device_id import uuid_part
from sharer.core.enforcer import ContainerCgroups, Enforcer
from sharer.core.errors import NodeError, RequestError
from sharer.core.holders.evidence import CheckpointEntry
from sharer.core.limits.limits import Tenant, Terms, find_tenants
from sharer.core.ports.holders import CheckpointSource
from sharer.flows.look.availability import terms_of
from sharer.flows.state import NodeState

WITHIN_S = 2.0  # of the 30 that the kubelet waits, so that its own error is never what the user reads


class PreStart:
    """Called on gRPC threads, several at a time."""

    def __init__(
        self,
        state: NodeState,
        enforcers: Sequence[Enforcer],
        cgroups: ContainerCgroups,
        checkpoint: CheckpointSource,
        *,
        within_s: float = WITHIN_S,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._state, self._enforcers, self._cgroups, self._checkpoint = state, enforcers, cgroups, checkpoint
        self._within_s, self._now_s = within_s, now_s

    def __call__(self, resource: str, ids: Sequence[str]) -> None:
        """Have the limit of the pod in force that holds just these IDs. Raises RequestError, which delays the start.

        The IDs name the pod surely and the container not always (runtime-facts §8): two containers of a pod may hold
        the same ones in turn. A pod that was deleted by force may hold them too, for as long as it lives; both are
        held then.
        """
        end_s = self._now_s() + self._within_s
        terms = terms_of(self._state.view)
        try:
            reading = self._checkpoint.read()
            entries = () if reading is None else reading.entries
            wanted = frozenset(ids)
            uids = {one.uid for one in entries if one.resource == resource and wanted == {*one.ids}}
            cgroups = self._cgroups.read(uids)
            pods = self._state.view.ledger.evidence.pods_by_cgroup()
            for uid, cgroup in cgroups.items():
                own = [one for one in entries if one.uid == uid]
                for tenant in find_tenants(uid, own, cgroup, pods.get(uid), terms):
                    if tenant.container is None:
                        self._hold(tenant, _required(own, wanted, terms), end_s)
        except NodeError as error:
            raise RequestError(_refusal(resource, str(error))) from error
        if not cgroups:
            raise RequestError(
                _refusal(resource, f"no pod that holds {', '.join(sorted(wanted))} has a cgroup on this node yet")
            )

    def _hold(self, pod: Tenant, required: frozenset[str], end_s: float) -> None:
        """Raises NodeError unless the limit is in force on every GPU that requires it."""
        for bound in pod.memory:
            if bound.uuid in required and not bound.choice.prevents:
                raise NodeError(f"nothing can hold a container to its memory on {bound.uuid}: {bound.choice.reason}")
        for enforcer in self._enforcers:
            own = pod.held_by(enforcer.name)
            if own is None:
                continue
            left_s = end_s - self._now_s()
            if left_s <= 0:
                raise NodeError(f"there was no time left of {self._within_s:g} s for the limit of the pod")
            for (_, _, uuid), verdict in enforcer.apply([own], within_s=left_s).items():
                if uuid in required and verdict.problem is not None:
                    raise NodeError(f"{verdict.problem} (pod {pod.uid}, {uuid})")


def _required(entries: Sequence[CheckpointEntry], ids: frozenset[str], terms: dict[str, Terms]) -> frozenset[str]:
    """The devices of these IDs of which the policy requires that they be held."""
    uuids = {uuid_part(device_id) for one in entries for device_id in one.ids if device_id in ids}
    return frozenset(uuid for uuid in uuids if uuid in terms and terms[uuid].memory.required)


def _refusal(resource: str, why: str) -> str:
    return (
        f"the memory limit that the policy requires for {resource} is not in force before the container starts: {why}."
        " The kubelet tries again; memory.required: false in the policy would start it without waiting"
    )
