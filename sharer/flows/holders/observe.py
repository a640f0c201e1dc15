"""Ask everybody who may know who holds what, and bring the ledger up to date.

The sources speak in a fixed order: checkpoint, cgroups, processes, pods, `List`; so a slice that `List` is without is
judged by evidence of life that is no older. A source that does not answer gives no reading: its last one stands, and
why is remembered. The checkpoint is looked at each time (it is local and rarely changes), cgroups after a hint, and
everything when a call of `List` is due (`core/holders/pace`).

At the very first time `List` is not asked if the checkpoint says enough: registering waits for NVML and the checkpoint
only, and a kubelet that does not answer must not delay it (DESIGN §3).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from sharer.core.change.transition import DROP_AFTER_READINGS
from sharer.core.holders.evidence import CheckpointReading, Evidence, ListReading, SliceKey, only_our_entries, only_ours
from sharer.core.holders.ledger import Entry, Ledger, State, allocated, is_news, observe_all
from sharer.core.holders.observations import PodsSeen
from sharer.core.holders.pace import Pace
from sharer.core.inventory import Inventory
from sharer.core.offers import Offer
from sharer.core.policy.model import Policy, resource_for
from sharer.core.ports.holders import CgroupSource, CheckpointSource, ListSource, ProcessSource, ProcessTable
from sharer.core.slices.plan import rules_by_device
from sharer.core.unchanged import while_unchanged
from sharer.core.values import dataclass, replace
from sharer.flows.holders.attribute import attribute
from sharer.flows.holders.ledger_news import ledger_news
from sharer.flows.holders.round_table import RoundTable
from sharer.flows.inbox import Allocated, Hint, Inbox, News
from sharer.flows.state import NodeState, NodeView

if TYPE_CHECKING:
    from sharer.core.ports.api import Followed

IDLE_S = 20.0  # between calls of `List` while nobody holds anything, at least
HELD_S = 5.0  # while slices are held, and cgroups would tell of an end
ALERT_S = 1.0  # while something is under way, or nothing but `List` would tell of an end
RETRY_S = 2.0  # while the kubelet does not answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Everybody who may know who holds what."""

    checkpoint: CheckpointSource
    cgroups: CgroupSource
    processes: ProcessSource
    table: ProcessTable
    listed: ListSource
    pods: Followed | None = None  # the pods themselves come by the inbox; None: the API server is not asked


def follow(sources: Sources, inbox: Inbox) -> None:
    """Have news of the checkpoint put into the inbox from now on. Once."""
    sources.checkpoint.follow(lambda: inbox.put(Hint.CHECKPOINT))


def follow_holders(state: NodeState, sources: Sources, inbox: Inbox) -> None:
    """Have starts and ends of containers put into the inbox: those of the pods that hold slices now."""
    sources.cgroups.follow(_uids_that_matter(state.view.ledger), lambda: inbox.put(Hint.CGROUPS))


def observe(state: NodeState, sources: Sources, now_s: float, news: Iterable[News] = ()) -> str | None:
    """Bring the ledger up to date, with what arrived in the inbox. Returns what changed on the node; None: nothing.

    Never raises for a source that does not answer: `NodeView.sources` says so, and the log does once.
    """
    before = state.view
    ledger, pace, pods = _take_in(before.ledger, before.pace, news, now_s)
    evidence, ours = ledger.evidence, our_resources(before)
    table = RoundTable(before.sources, now_s)
    is_first, cgroups = not before.sources, evidence.cgroups

    checkpoint = table.ask("checkpoint", sources.checkpoint.read)
    if checkpoint is not None:
        checkpoint = replace(only_our_entries(checkpoint, ours), serial=_next_serial(evidence.checkpoint))
        table.hear(checkpoint)
    elif evidence.checkpoint is not None:
        table.hear(replace(evidence.checkpoint, is_current=False))
    is_due = checkpoint is None if is_first else pace.due_s(_interval_s(before)) <= now_s
    if is_first or is_due or pace.cgroups_due_s() <= now_s:
        pace = pace.reading_cgroups(now_s)
        cgroups = table.ask("cgroups", sources.cgroups.read) or cgroups
        table.hear(cgroups)
    if is_due and before.inventory is not None and before.inventory.gpus:
        known = _uids_in(checkpoint or evidence.checkpoint)
        found = table.ask("processes", lambda: attribute(sources.processes, sources.table, known))
        if found is not None:
            table.hear(found.reading)
            table.complain("processes", found.problem)
    table.hear(pods)
    if sources.pods is not None:
        table.note("pods", sources.pods.sync)
    if is_due:
        pace = pace.asking(now_s)
        listed = table.ask("list", sources.listed.read)
        at_hand = replace(evidence, cgroups=cgroups, pods=pods or evidence.pods)
        if listed is not None and is_news(listed, replace(ledger, evidence=at_hand)):
            table.hear(replace(only_ours(listed, ours), serial=_next_serial(evidence.listed)))

    quarantine_s = (before.policy.policy or Policy(rules=())).quarantine_timeout_s
    ledger = observe_all(ledger, table.readings, now_s, quarantine_s=quarantine_s)
    pace = _hinted(pace, evidence, ledger, now_s)
    state.change(ledger=ledger, pace=pace, sources=table.statuses)
    return "; ".join([*table.news(), *ledger_news(before.ledger, ledger)]) or None


def next_look_s(view: NodeView) -> float:
    """When `observe` must be called again if nothing arrives before, on the clock of `now_s`; infinite: not for now.

    While nobody holds anything `List` is asked when the daemon is awake anyway: that is no reason to wake it.
    """
    interval_s = _interval_s(view)
    list_s = view.pace.due_s(math.inf if interval_s == IDLE_S else interval_s)
    return min(list_s, view.pace.cgroups_due_s())


def our_resources(view: NodeView) -> frozenset[str]:
    """The names that the policy in force offers slices under, and those that are still listed."""
    return _our_resources(view.inventory, view.policy.policy, view.offers)


@while_unchanged
def _our_resources(inventory: Inventory | None, policy: Policy | None, offers: Mapping[str, Offer]) -> frozenset[str]:
    if inventory is None or policy is None:
        return frozenset(offers)
    profiles = {mig.uuid: mig.profile for gpu in inventory.gpus for mig in gpu.mig_devices}
    wanted = (resource_for(rule, profiles.get(uuid)) for uuid, rule in rules_by_device(inventory, policy).items())
    return frozenset((*wanted, *offers))


def _take_in(ledger: Ledger, pace: Pace, news: Iterable[News], now_s: float) -> tuple[Ledger, Pace, PodsSeen | None]:
    """What the inbox says by itself. The pods are the last that came."""
    pods = None
    for one in news:
        match one:
            case Allocated():
                ledger = allocated(ledger, [(one.resource, device_id) for device_id in one.ids], now_s)
                pace = pace.hinted(now_s)
            case PodsSeen():
                pods = one
            case Hint.CGROUPS:
                pace = pace.hinted_at_cgroups()
            case Hint.START:
                pace = pace.hinted(now_s)
            case _:
                pass  # a written checkpoint is read in any case; an XID is no business of the ledger's
    return ledger, pace, pods


def _hinted(pace: Pace, before: Evidence, ledger: Ledger, now_s: float) -> Pace:
    """How to go on after what was seen."""
    after, uids = ledger.evidence, _uids_that_matter(ledger)
    looks = ((_given(evidence), _alive(evidence, uids), _pods(evidence, uids)) for evidence in (before, after))
    if any(old is not None and old != new for old, new in zip(*looks, strict=True)):  # a first word is no news
        return pace.hinted(now_s)
    if after.listed is not before.listed and _is_any(ledger, State.RELEASING):
        return pace.hinted(now_s, calls=1)  # free if the next answer is without it as well
    return pace


def _interval_s(view: NodeView) -> float:
    """How often `List` is asked without any hint."""
    listed, cgroups = view.sources.get("list"), view.sources.get("cgroups")
    if listed is not None and listed.problem is not None:
        return RETRY_S
    seen = view.ledger.evidence.listed
    if seen is None or seen.serial < DROP_AFTER_READINGS or _is_any(view.ledger, State.ALLOCATED, State.RELEASING):
        return ALERT_S
    if not view.ledger.entries:
        return IDLE_S
    return ALERT_S if cgroups is None or cgroups.problem is not None else HELD_S


def _is_any(ledger: Ledger, *states: State) -> bool:
    return not _states_in(ledger.entries).isdisjoint(states)


@while_unchanged
def _states_in(entries: Mapping[SliceKey, Entry]) -> frozenset[State]:
    return frozenset(entry.state for entry in entries.values())


def _uids_that_matter(ledger: Ledger) -> set[str]:
    """Pods that hold a slice, may hold one, or have left something on it."""
    uids = {remnant.holder.uid for entry in ledger.entries.values() for remnant in entry.remnants}
    uids |= {entry.owner.uid for entry in ledger.entries.values() if entry.owner is not None}
    return {uid for uid in uids if uid is not None} | _uids_in(ledger.evidence.checkpoint)


def _uids_in(checkpoint: CheckpointReading | None) -> set[str]:
    return set() if checkpoint is None else {entry.uid for entry in checkpoint.entries}


def _given(evidence: Evidence) -> object:
    return None if evidence.checkpoint is None else evidence.checkpoint.entries


def _alive(evidence: Evidence, uids: set[str]) -> object:
    return None if evidence.cgroups is None else {uid: evidence.cgroups.populated.get(uid) for uid in uids}


def _pods(evidence: Evidence, uids: set[str]) -> object:
    pods = evidence.pods
    return None if pods is None else [pod for pod in pods.pods.values() if pod.cgroup_uid in uids]


def _next_serial(last: CheckpointReading | ListReading | None) -> int:
    """Readings are counted as they are taken: one that is no news does not count."""
    return 1 if last is None else last.serial + 1
