"""Hold every container to its promise, and know whether it is held.

A thread of its own, since a container's first instruction may come 14 ms after its cgroup (runtime-facts §4) and
nothing else may delay this. It is woken when the cgroup of a pod or container comes or goes, looks at that pod, and
now and then at all. Each look is the same: read who holds what from the kubelet's checkpoint (it is written before the
pod's cgroup exists), find the cgroups, verify, apply what is not so, verify again. Nothing is kept that the next look
could not find out, but for two things: since when something held, and what was held for containers that have ended.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import field, replace

from sharer.core.enforcement import Enforcement, after_verdicts
from sharer.core.enforcer import ContainerCgroups, Enforcer, Verdict, Verdicts
from sharer.core.errors import NodeError
from sharer.core.holders.evidence import CheckpointEntry
from sharer.core.holders.ledger import Ledger
from sharer.core.holders.observations import PodSeen
from sharer.core.limits.excess import Excess, ExcessKey, measure
from sharer.core.limits.limits import PodCgroup, PromiseKey, Tenant, TenantKey, Terms, find_tenants, only_held_by
from sharer.core.limits.usage import Usage
from sharer.core.ports.holders import CheckpointSource
from sharer.core.unchanged import are_same
from sharer.core.values import dataclass
from sharer.flows.hold.diary import Diary
from sharer.flows.look.availability import terms_of
from sharer.flows.state import NodeState

FRESH_S = 30.0  # a reading of the process lists that is older says nothing any more

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Enforced:
    """What the enforcing thread has found out; one value, so that it can be taken over whole."""

    enforcement: Enforcement = field(default_factory=Enforcement)
    excesses: tuple[Excess, ...] = ()


class Enforcing:
    """The looks, and what they have found. `look` and `run` are for one thread; the others for any."""

    def __init__(
        self,
        state: NodeState,
        enforcers: Sequence[Enforcer],
        cgroups: ContainerCgroups,
        checkpoint: CheckpointSource,
        *,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`checkpoint` is a reader of its own: it is used by another thread than the ledger's."""
        self._state, self._enforcers, self._cgroups, self._checkpoint = state, enforcers, cgroups, checkpoint
        self._now_s = now_s
        self._escapes = {enforcer.name: enforcer.escapes for enforcer in enforcers}
        self._diary = Diary()
        self._held: dict[TenantKey, Tenant] = {}  # as they were last held
        self._excesses: dict[ExcessKey, Excess] = {}
        self._measured_s: float | None = None  # of the reading that was measured last
        self._sight: _Sight | None = None
        self._tenants: dict[str, tuple[tuple[object, ...], list[Tenant]]] = {}  # by UID: what from, and the tenants
        self._noticed: tuple[object, ...] = (None, None, None)  # policy, means and GPUs, for `exchange`
        self.found = Enforced()

    def wake(self, uid: str) -> None:
        """Have a pod looked at soon: its cgroups have changed."""
        self._diary.stir(uid, self._now_s())

    def exchange(self, state: NodeState) -> None:
        """For whoever writes the state: put what was found into it, and have all pods looked at if it asks for else.

        That is, if they are to be held to or by something else, or GPUs have changed.
        """
        terms = (state.view.policy.policy, state.view.enforcers, state.view.inventory)
        if not are_same(self._noticed, terms):
            self._noticed = terms
            self._diary.stir_all()
        found = self.found
        state.change(enforcement=found.enforcement, excesses=found.excesses)

    def run(self, stop: threading.Event) -> None:
        """Look, until told to stop. `wake("")` afterwards ends the wait for the next look."""
        self._cgroups.follow(self.wake)
        said = ""
        while not stop.is_set():
            uids = self._diary.wait(self._now_s, stop)
            try:
                sentence = self.look(self._now_s(), uids) or ""
            except NodeError as error:
                sentence = f"limits are not looked after: {error}"
                enforcement = replace(self.found.enforcement, problem=str(error))
                self.found = replace(self.found, enforcement=enforcement)
            except Exception:  # the thread's boundary: reported in full, and tried again
                log.exception("looking after limits failed; it is tried again")
                sentence = ""
            if sentence and sentence != said:
                log.info("%s", sentence)
                said = sentence

    def look(self, now_s: float, uids: Collection[str] | None = None) -> str | None:
        """Hold and verify the containers of these pods; None: of all. Returns what is new about them.

        Raises NodeError if it cannot be told who holds what: no news is not "nobody", and all stays as it is. But that
        a container has ended its cgroup tells, and what was held for it is given back.
        """
        sight = self._look_around(now_s)
        try:
            entries = self._entries(uids)
        except NodeError:
            self._let_go((), uids)
            raise
        cgroups = self._cgroups.read(entries.keys()) if entries else {}
        tenants = [
            tenant
            for uid, own in entries.items()
            if uid in cgroups  # the checkpoint names many who do not live any more
            for tenant in self._tenants_of(uid, own, cgroups[uid], sight)
        ]
        if uids is None:
            self._tenants = {uid: self._tenants[uid] for uid in self._tenants.keys() & entries.keys()}
        verdicts, repaired = self._hold(tenants, sight.usage)
        before = self.found.enforcement
        enforcement = after_verdicts(before, tenants, verdicts, repaired, self._escapes, now_s, pods=uids)
        if uids is None and sight.processes_s != self._measured_s:
            self._measured_s = sight.processes_s
            self._excesses = measure(self._excesses, tenants, sight.usage, now_s)
        self.found = Enforced(enforcement, tuple(self._excesses.values()))
        # A sandbox's cgroup comes before the containers', and some time after those a toolkit's hook sets limits too.
        # And a checkpoint that comes late would be no surprise.
        incomplete = {tenant.uid for tenant in tenants if not tenant.cgroups} | ({*(uids or ())} - entries.keys())
        self._diary.plan({uid: uid in incomplete for uid in (*entries, *incomplete)}, now_s)
        returned = self._let_go(tenants, uids)
        return "; ".join([*_news(before, enforcement, self._state.view.ledger), *returned]) or None

    def _tenants_of(
        self, uid: str, entries: list[CheckpointEntry], cgroup: PodCgroup | None, sight: _Sight
    ) -> list[Tenant]:
        """As `find_tenants`; worked out again only for a pod of which something is new."""
        basis = (entries, cgroup, sight.pods.get(uid), sight.terms)
        known = self._tenants.get(uid)
        if known is None or known[0] != basis:
            known = self._tenants[uid] = (basis, find_tenants(uid, *basis))
        return known[1]

    def _look_around(self, now_s: float) -> _Sight:
        """What the other thread knows. Worked out again only where it has changed."""
        view = self._state.view
        status = view.sources.get("processes")
        processes_s = None if status is None else status.read_s
        is_fresh = processes_s is not None and now_s - processes_s <= FRESH_S
        evidence = view.ledger.evidence
        basis = (view.inventory, view.policy.policy, view.enforcers, evidence.pods, evidence.processes, is_fresh)
        if self._sight is None or not are_same(self._sight.basis, basis):
            self._sight = _Sight(
                basis=basis,
                terms=terms_of(view),
                pods=evidence.pods_by_cgroup(),
                usage=Usage(evidence.processes if is_fresh else None, view.inventory),
            )
        return replace(self._sight, processes_s=processes_s)

    def _entries(self, uids: Collection[str] | None) -> dict[str, list[CheckpointEntry]]:
        reading = self._checkpoint.read()
        entries: dict[str, list[CheckpointEntry]] = {}
        for entry in () if reading is None else reading.entries:
            if uids is None or entry.uid in uids:
                entries.setdefault(entry.uid, []).append(entry)
        return entries

    def _hold(self, tenants: Sequence[Tenant], usage: Usage) -> tuple[dict[PromiseKey, Verdict], dict[PromiseKey, str]]:
        """What is true of every promise after all was done for it, and what was found to be otherwise before."""
        verdicts: dict[PromiseKey, Verdict] = {}
        repaired: dict[PromiseKey, str] = {}
        for enforcer in self._enforcers:
            own = only_held_by(tenants, enforcer.name)
            if not own:
                continue
            found = _try_to_verify(enforcer, own, usage)
            lacking = {key[0] for key, verdict in found.items() if verdict.curable}
            if lacking:
                unheld = [tenant for tenant in own if tenant.key in lacking]
                after = _try_to_apply(enforcer, unheld, usage)
                repaired |= {
                    key: found[key].problem or "" for key in after if found[key].curable and _is_cured(after[key])
                }
                found |= after
            verdicts |= found
        return verdicts, repaired

    def _let_go(self, tenants: Sequence[Tenant], uids: Collection[str] | None) -> list[str]:
        """Give back what was held for tenants that have ended, or that the policy wants held otherwise.

        A container that lives on, and of which the kubelet has lost its record, stays as it is held.
        """
        now = {tenant.key: tenant for tenant in tenants}
        held = {key: one for key, one in self._held.items() if uids is None or key[0] in uids}
        changed = [one for key, old in held.items() if key in now and (one := old.given_up(now[key]))]
        ended = [one for key, one in held.items() if key not in now and self._has_ended(one)]
        returned = []
        for enforcer in self._enforcers:
            gone = only_held_by((*ended, *changed), enforcer.name)
            if gone or uids is None:
                returned.append(enforcer.release(gone))
        for tenant in ended:
            del self._held[tenant.key]
        self._held |= now
        return [sentence for sentence in returned if sentence]

    def _has_ended(self, tenant: Tenant) -> bool:
        return not tenant.cgroups or self._cgroups.below(tenant.cgroups[0]) is None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sight:
    """What a look needs to know besides checkpoint and cgroups."""

    basis: tuple[object, ...]  # what it was made from
    terms: Mapping[str, Terms]
    pods: Mapping[str, PodSeen]  # by the UID in their cgroups' names
    usage: Usage
    processes_s: float | None = None  # when the process lists were read


def _try_to_verify(enforcer: Enforcer, tenants: Sequence[Tenant], usage: Usage) -> dict[PromiseKey, Verdict]:
    try:
        return dict(enforcer.verify(tenants, usage))
    except NodeError as error:
        return _unknown(tenants, error)


def _try_to_apply(enforcer: Enforcer, tenants: Sequence[Tenant], usage: Usage) -> Verdicts:
    """What is true after it was tried."""
    try:
        tried = enforcer.apply(tenants)
        found = enforcer.verify(tenants, usage)
    except NodeError as error:
        return _unknown(tenants, error)
    # The reason why a limit could not be set says more than that it is not in force.
    return {key: tried[key] if verdict.curable and key in tried else verdict for key, verdict in found.items()}


def _unknown(tenants: Sequence[Tenant], error: NodeError) -> dict[PromiseKey, Verdict]:
    verdict = Verdict(problem=str(error))
    return {key: verdict for tenant in tenants for key, _ in tenant.promises()}


def _is_cured(verdict: Verdict) -> bool:
    return not verdict.curable


def _news(before: Enforcement, after: Enforcement, ledger: Ledger) -> Iterable[str]:
    """What has changed for containers, and what somebody else had changed."""
    for lift in after.lifts[len(after.lifts) - (after.lift_count - before.lift_count) :]:
        yield f"{_title(lift.key, ledger)}: {lift.found}; it is set again"
    for key, hold in after.holds.items():
        old = before.holds.get(key)
        if key[0][1] is None or (old is not None and (old.by, old.reason) == (hold.by, hold.reason)):
            continue
        if hold.by is not None:
            yield f"{_title(key, ledger)} is held by {hold.by}"
        elif old is not None and old.by is not None:
            yield f"{_title(key, ledger)} is not held any more: {hold.reason}"


def _title(key: PromiseKey, ledger: Ledger) -> str:
    (uid, container, _), promise, uuid = key
    return f"{promise} of {_pod_name(uid, ledger)}{'' if container is None else f' ({container})'} on {uuid}"


def _pod_name(uid: str, ledger: Ledger) -> str:
    """For people: by the API, else by the kubelet's list, else what its cgroup says."""
    if uid in ledger.names:
        return "/".join(ledger.names[uid])
    owners = (entry.owner for entry in ledger.entries.values())
    named = (one for one in owners if one is not None and one.uid == uid and one.pod is not None)
    return next((f"{one.namespace}/{one.pod}" for one in named), uid)
