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
from collections.abc import Callable, Collection, Sequence
from dataclasses import field

from sharer.core.brief import some_sentences
from sharer.core.enforcement import Enforcement, after_verdicts
from sharer.core.enforcer import ContainerCgroups, Enforcer
from sharer.core.errors import NodeError
from sharer.core.holders.ledger import Ledger
from sharer.core.limits.excess import Excess, measure
from sharer.core.limits.limits import PromiseKey
from sharer.core.ports.holders import CheckpointSource
from sharer.core.unchanged import are_same
from sharer.core.values import dataclass, replace
from sharer.flows.hold.diary import Diary
from sharer.flows.hold.grip import Grip
from sharer.flows.hold.tenancy import Tenancy
from sharer.flows.state import NodeState

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
        self._state, self._cgroups, self._now_s = state, cgroups, now_s
        self._diary = Diary()
        self._tenancy = Tenancy(state, cgroups, checkpoint)
        self._grip = Grip(enforcers, cgroups)
        self._measured_s: float | None = None  # of the reading of the process lists that was measured last
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
        sight = self._tenancy.look_around(now_s)
        try:
            entries = self._tenancy.entries(uids)
        except NodeError:
            self._grip.let_go((), uids)
            raise
        tenants = self._tenancy.tenants(entries, sight, are_all=uids is None)
        verdicts, repaired = self._grip.hold(tenants, sight.usage)
        before, excesses = self.found.enforcement, self.found.excesses
        enforcement = after_verdicts(before, tenants, verdicts, repaired, self._grip.escapes, now_s, pods=uids)
        if uids is None and sight.processes_s != self._measured_s:
            self._measured_s = sight.processes_s
            over = measure({one.key: one for one in excesses}, tenants, sight.usage, now_s)
            excesses = tuple(over.values())
        self.found = Enforced(enforcement, excesses)
        # A sandbox's cgroup comes before the containers', and some time after those a toolkit's hook sets limits too.
        # And a checkpoint that comes late would be no surprise.
        incomplete = {tenant.uid for tenant in tenants if not tenant.cgroups} | ({*(uids or ())} - entries.keys())
        self._diary.plan({uid: uid in incomplete for uid in (*entries, *incomplete)}, now_s)
        returned = self._grip.let_go(tenants, uids)
        return "; ".join([*_news(before, enforcement, self._state.view.ledger), *some_sentences(returned)]) or None


def _news(before: Enforcement, after: Enforcement, ledger: Ledger) -> list[str]:
    """What has changed for containers, and what somebody else had changed."""
    lifts = after.lifts[len(after.lifts) - (after.lift_count - before.lift_count) :]
    lifted = [f"{_title(lift.key, ledger)}: {lift.found}; it is set again" for lift in lifts]
    held, lost = [], []
    for key, hold in after.holds.items():
        old = before.holds.get(key)
        if key[0][1] is None or (old is not None and (old.by, old.reason) == (hold.by, hold.reason)):
            continue
        if hold.by is not None:
            held.append(f"{_title(key, ledger)} is held by {hold.by}")
        elif old is not None and old.by is not None:
            lost.append(f"{_title(key, ledger)} is not held any more: {hold.reason}")
    return [sentence for kind in (lifted, held, lost) for sentence in some_sentences(kind)]


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
