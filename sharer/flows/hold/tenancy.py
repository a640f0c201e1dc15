"""Who is on this node and is to be held to what: by the kubelet's checkpoint, the cgroups, and what is known of both.

Read by the enforcing thread at each look; worked out again only where something has changed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from sharer.core.enforcer import ContainerCgroups
from sharer.core.holders.evidence import CheckpointEntry
from sharer.core.holders.observations import PodSeen
from sharer.core.limits.limits import PodCgroup, Tenant, Terms, find_tenants
from sharer.core.limits.usage import Usage
from sharer.core.ports.holders import CheckpointSource
from sharer.core.unchanged import are_same
from sharer.core.values import dataclass, replace
from sharer.flows.look.availability import terms_of
from sharer.flows.state import NodeState

FRESH_S = 30.0  # a reading of the process lists that is older says nothing any more


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What a look needs to know besides checkpoint and cgroups."""

    basis: tuple[object, ...]  # what it was made from
    terms: Mapping[str, Terms]
    pods: Mapping[str, PodSeen]  # by the UID in their cgroups' names
    usage: Usage
    processes_s: float | None = None  # when the process lists were read


class Tenancy:
    """The tenants of this node. For one thread."""

    def __init__(self, state: NodeState, cgroups: ContainerCgroups, checkpoint: CheckpointSource) -> None:
        self._state, self._cgroups, self._checkpoint = state, cgroups, checkpoint
        self._sight: Sight | None = None
        self._tenants: dict[str, tuple[tuple[object, ...], list[Tenant]]] = {}  # by UID: what from, and the tenants

    def look_around(self, now_s: float) -> Sight:
        """What the other thread knows."""
        view = self._state.view
        status = view.sources.get("processes")
        processes_s = None if status is None else status.read_s
        is_fresh = processes_s is not None and now_s - processes_s <= FRESH_S
        evidence = view.ledger.evidence
        basis = (view.inventory, view.policy.policy, view.enforcers, evidence.pods, evidence.processes, is_fresh)
        if self._sight is None or not are_same(self._sight.basis, basis):
            self._sight = Sight(
                basis=basis,
                terms=terms_of(view),
                pods=evidence.pods_by_cgroup(),
                usage=Usage(evidence.processes if is_fresh else None, view.inventory),
            )
        return replace(self._sight, processes_s=processes_s)

    def entries(self, uids: Collection[str] | None) -> dict[str, list[CheckpointEntry]]:
        """What the checkpoint says of these pods, by UID; None: of all. Raises NodeError if it cannot be read."""
        reading = self._checkpoint.read()
        entries: dict[str, list[CheckpointEntry]] = {}
        for entry in () if reading is None else reading.entries:
            if uids is None or entry.uid in uids:
                entries.setdefault(entry.uid, []).append(entry)
        return entries

    def tenants(self, entries: Mapping[str, list[CheckpointEntry]], sight: Sight, *, are_all: bool) -> list[Tenant]:
        """Those of these entries who live. `are_all`: nobody else is in the checkpoint."""
        cgroups = self._cgroups.read(entries.keys()) if entries else {}
        tenants = [
            tenant
            for uid, own in entries.items()
            if uid in cgroups  # the checkpoint names many who do not live any more
            for tenant in self._tenants_of(uid, own, cgroups[uid], sight)
        ]
        if are_all:
            self._tenants = {uid: self._tenants[uid] for uid in self._tenants.keys() & entries.keys()}
        return tenants

    def _tenants_of(
        self, uid: str, entries: list[CheckpointEntry], cgroup: PodCgroup | None, sight: Sight
    ) -> list[Tenant]:
        """As `find_tenants`; worked out again only for a pod of which something is new."""
        basis = (entries, cgroup, sight.pods.get(uid), sight.terms)
        known = self._tenants.get(uid)
        if known is None or known[0] != basis:
            known = self._tenants[uid] = (basis, find_tenants(uid, *basis))
        return known[1]
