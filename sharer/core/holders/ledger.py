"""Who holds which slice, and when a slice is free again (DESIGN §3).

    offered -> allocated -> held(owner) -> releasing -> offered
                  |                            |
                  never claimed: offered       evidence of life: quarantined -> offered

The kubelet never says that a pod ended, hands IDs on while the old container still runs, and forgets; so a slice is
released on evidence. `observe_all` takes a reading of some sources and settles every slice against the last reading of
all of them: the end does not depend on which source spoke first, and a reading seen twice counts once.

* The **owner** is the kubelet's view, at most one a slice: whom `List` names, else a container in the checkpoint whose
  pod is alive (init containers are never in `List`). `List` of a kubelet before 1.34 keeps finished pods, so a
  terminal phase without a populated pod cgroup ends ownership as well.
* A **remnant** is a former owner with evidence of life: a populated pod cgroup, or a process on the GPU.
* An owner that is absent from `List` once is *releasing*; from two readings on it is gone, or a remnant.
* What nobody can tell (no cgroups and no process list) is *quarantined* until a timeout, and said to be unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from enum import StrEnum

from sharer.core.holders.evidence import (
    CgroupReading,
    CheckpointReading,
    Evidence,
    Holder,
    ListReading,
    ProcessReading,
    Reading,
    SliceKey,
)
from sharer.core.holders.observations import ContainerKind, PodSeen, PodsSeen
from sharer.core.holders.testimony import Testimony
from sharer.core.unchanged import while_unchanged
from sharer.core.values import dataclass, replace

KUBELET_GRACE_S = 10.0  # after its start, `List` may be empty or partial though pods run (kubelet-contract §22)
UNCLAIMED_GRACE_S = 60.0  # an Allocate that no source has named by then came to nothing (kubelet-contract §5)
MAX_ENDED_PODS = 2000  # whose names are remembered


class State(StrEnum):
    """Where a slice is on its way round."""

    OFFERED = "offered"
    ALLOCATED = "allocated"
    HELD = "held"
    RELEASING = "releasing"
    QUARANTINED = "quarantined"


@dataclass(frozen=True, slots=True, kw_only=True)
class Remnant:
    """A former owner of which something may still be alive."""

    holder: Holder
    since_s: float  # when the kubelet gave the slice up, as we noticed
    known: bool  # there is evidence of life; False: nobody can tell, so it ends at the timeout


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What the ledger knows of one slice."""

    state: State = State.OFFERED
    reason: str = "nobody holds it"
    owner: Holder | None = None
    remnants: tuple[Remnant, ...] = ()
    allocated_s: float | None = None  # of an Allocate that nothing has confirmed yet
    is_busy_for_nobody: bool = False  # the kubelet believes it free, our evidence says that something lives on it


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """Every slice that was allocated or held and is not known to be free, and the evidence that says so."""

    entries: Mapping[SliceKey, Entry] = field(default_factory=dict)
    evidence: Evidence = field(default_factory=Evidence)
    missing_from: Mapping[SliceKey, int] = field(default_factory=dict)  # serial of the first `List` that lost the slice
    names: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # UID -> namespace and name, also of ended pods

    def entry(self, key: SliceKey) -> Entry:
        """What is known of this slice."""
        return self.entries.get(key, _FREE)


_FREE = Entry()


def observe_all(ledger: Ledger, readings: Iterable[Reading], now_s: float, *, quarantine_s: float) -> Ledger:
    """The ledger after a reading of some sources, one of each at most. Where nothing changed, `entries` is the same."""
    before = ledger
    for reading in readings:
        ledger = _take(ledger, reading)
    if _is_at_rest(before) and _says_the_same(before, ledger):
        return ledger
    return settle(ledger, now_s, quarantine_s=quarantine_s)


def _take(ledger: Ledger, reading: Reading) -> Ledger:
    evidence = ledger.evidence
    match reading:
        case ListReading():
            return _count_absences(ledger, reading)
        case CheckpointReading():
            return replace(ledger, evidence=replace(evidence, checkpoint=reading))
        case CgroupReading():
            return replace(ledger, evidence=replace(evidence, cgroups=reading))
        case ProcessReading():
            return replace(ledger, evidence=replace(evidence, processes=reading))
        case PodsSeen():
            return replace(ledger, evidence=replace(evidence, pods=reading), names=_remember(ledger.names, reading))


def _is_at_rest(ledger: Ledger) -> bool:
    """Whether time alone changes nothing, and no count of readings does."""
    return _are_at_rest(ledger.entries)


@while_unchanged
def _are_at_rest(entries: Mapping[SliceKey, Entry]) -> bool:
    return all(entry.state is State.HELD and not entry.remnants for entry in entries.values())


def _says_the_same(before: Ledger, after: Ledger) -> bool:
    """Whether the evidence is what it was, but for how often and when it was read."""
    return before.names == after.names and _timeless(before.evidence) == _timeless(after.evidence)


def _timeless(evidence: Evidence) -> Evidence:
    return replace(
        evidence,
        listed=evidence.listed and replace(evidence.listed, serial=0, kubelet_age_s=None),
        checkpoint=evidence.checkpoint and replace(evidence.checkpoint, serial=0),
        checkpoint_then=evidence.checkpoint_then and replace(evidence.checkpoint_then, serial=0),
        pods=evidence.pods and replace(evidence.pods, synced_at_s=0.0, resource_version=""),
    )


def is_news(reading: ListReading, ledger: Ledger) -> bool:
    """Whether a `List` is to be believed: a kubelet that has only just started may not know its pods yet.

    In its first seconds it is believed if it names every slice of a pod that is on the node, as far as can be told.
    """
    if reading.kubelet_age_s is None or reading.kubelet_age_s >= KUBELET_GRACE_S:
        return True
    evidence = ledger.evidence
    if evidence.checkpoint is not None and evidence.cgroups is None and evidence.pods is None:
        given = {(one.resource, device_id) for one in evidence.checkpoint.entries for device_id in one.ids}
        if not reading.holders.keys() >= given:
            return False  # nobody can tell which of its entries are stale
    pods = evidence.pods_by_cgroup()
    return not any(
        _is_present(entry.owner, pods, evidence.cgroups)
        for key, entry in ledger.entries.items()
        if entry.owner is not None and key not in reading.holders
    )


def _is_present(owner: Holder, pods: Mapping[str, PodSeen], cgroups: CgroupReading | None) -> bool:
    """Whether an owner is one that a whole `List` names, as far as can be told."""
    pod = pods.get(owner.uid) if owner.uid is not None else None
    if pod is not None and pod.kind_of(owner.container) is ContainerKind.INIT:
        return False
    if pod is not None and not pod.phase.is_terminal:
        return True
    return owner.uid is None or cgroups is None or owner.uid in cgroups.populated


def allocated(ledger: Ledger, keys: Iterable[SliceKey], now_s: float) -> Ledger:
    """The ledger after an Allocate was answered: for whom, nobody says yet. Of a held slice, `List` will tell."""
    changed = {
        key: replace(entry, allocated_s=now_s, state=State.ALLOCATED, reason=_ALLOCATED, is_busy_for_nobody=False)
        for key in keys
        if (entry := ledger.entry(key)).owner is None
    }
    return replace(ledger, entries={**ledger.entries, **changed}) if changed else ledger


def settle(ledger: Ledger, now_s: float, *, quarantine_s: float) -> Ledger:
    """The ledger with every slice judged by the evidence and the clock as they are."""
    facts = Testimony(ledger.evidence, ledger.missing_from, ledger.names, _holders(ledger))
    keys = dict.fromkeys([*ledger.entries, *facts.claims, *facts.remnants])
    entries: dict[SliceKey, Entry] = {}
    last = _FREE
    for key in keys:
        entry = _settle(ledger.entry(key), key, facts, now_s, quarantine_s)
        last = last if entry == last else entry  # one for all slices of a container, which come one after the other
        if last.state is not State.OFFERED:
            entries[key] = last
    return ledger if entries == ledger.entries else replace(ledger, entries=entries)


def _holders(ledger: Ledger) -> Iterator[Holder]:
    for entry in ledger.entries.values():
        if entry.owner is not None:
            yield entry.owner
        for remnant in entry.remnants:
            yield remnant.holder


def _remember(names: Mapping[str, tuple[str, str]], reading: PodsSeen) -> dict[str, tuple[str, str]]:
    """The names of pods, the newest last. An ended pod is named for as long as anything of it may be found."""
    seen = {pod.cgroup_uid: (pod.namespace, pod.name) for pod in reading.pods.values()}
    old = {uid: name for uid, name in names.items() if uid not in seen}
    return dict(list(old.items())[-MAX_ENDED_PODS:]) | seen


def _count_absences(ledger: Ledger, reading: ListReading) -> Ledger:
    last = ledger.evidence.listed
    if last is not None and reading.serial <= last.serial:
        return ledger
    lost = {} if last is None else {key: reading.serial for key in last.holders if key not in reading.holders}
    still = {key: serial for key, serial in ledger.missing_from.items() if key not in reading.holders}
    kept = {key: serial for key, serial in still.items() if key in ledger.entries}
    if last is not None and reading.holders == last.holders:
        reading = replace(reading, holders=last.holders)  # so that 2,000 slices are in memory once
    else:
        known = {key: key for key in ledger.entries}  # and each one's key
        holders = {known.get(key, key): holder for key, holder in reading.holders.items()}
        reading = replace(reading, holders=holders)
    evidence = replace(ledger.evidence, listed=reading, checkpoint_then=ledger.evidence.checkpoint)
    return replace(ledger, evidence=evidence, missing_from=kept | lost)


_ALLOCATED = "the kubelet asked for it; which container it is for is not known yet"


def _settle(entry: Entry, key: SliceKey, facts: Testimony, now_s: float, quarantine_s: float) -> Entry:
    claim = facts.claims.get(key)
    if claim is not None and _is_settled_on(entry, claim) and key not in facts.remnants:
        return entry
    owner, gone = _owner(entry, claim, key, facts)
    former = _former(entry, gone, key, facts, now_s)
    remnants = _remnants(former, owner, key, facts, now_s, quarantine_s)
    if claim is not None:
        return Entry(owner=owner, remnants=remnants, state=State.HELD, reason="the kubelet says so")
    allocated_s = entry.allocated_s
    if allocated_s is not None and now_s - allocated_s >= UNCLAIMED_GRACE_S:
        allocated_s = None
    if owner is None:
        return _of_nobody(remnants, allocated_s)
    # Healthy until there is evidence of life: most pods leave nothing behind, and the kubelet gives their slice to the
    # next pod before anybody else notices. Unhealthy for that moment would reject that pod.
    return Entry(
        owner=owner,
        remnants=remnants,
        allocated_s=allocated_s,
        state=State.RELEASING,
        reason="the kubelet does not list its owner any more",
        is_busy_for_nobody=facts.life(owner, key) is True,
    )


def _owner(entry: Entry, claim: Holder | None, key: SliceKey, facts: Testimony) -> tuple[Holder | None, Holder | None]:
    """Whose the slice is now, and whose it was until now if that is over."""
    if entry.owner is None:
        return claim, None
    last = facts.full(entry.owner, key)
    if claim is not None:
        return (last.merged(claim), None) if last.is_same(claim) else (claim, last)
    return (None, last) if facts.is_freed(key) or facts.has_ended(last) else (last, None)


def _former(
    entry: Entry, gone: Holder | None, key: SliceKey, facts: Testimony, now_s: float
) -> Iterator[tuple[Holder, float]]:
    """Everybody who had the slice and may have left something on it, and since when; the longest known first."""
    for remnant in entry.remnants:
        yield facts.full(remnant.holder, key), remnant.since_s
    for holder in facts.remnants.get(key, ()):
        yield holder, now_s
    if gone is not None:
        yield gone, now_s


def _remnants(
    former: Iterable[tuple[Holder, float]],
    owner: Holder | None,
    key: SliceKey,
    facts: Testimony,
    now_s: float,
    quarantine_s: float,
) -> tuple[Remnant, ...]:
    """Those of them of whom something lives, or of whom nobody can tell and the quarantine is not over; each once."""
    remnants: list[Remnant] = []
    for holder, since_s in former:
        if owner is not None and owner.is_same_pod(holder):
            continue  # an init container whose slice went on to an app container
        if any(holder.is_same(remnant.holder) for remnant in remnants):
            continue
        life = facts.life(holder, key)
        if life or (life is None and now_s - since_s < quarantine_s):
            remnants.append(Remnant(holder=holder, since_s=since_s, known=bool(life)))
    return tuple(remnants)


def _is_settled_on(entry: Entry, claim: Holder) -> bool:
    """Whether nothing can come of a claim: the slice is held by just that holder, and by nobody else's remains."""
    return entry.state is State.HELD and entry.owner == claim and not entry.remnants


def _of_nobody(remnants: tuple[Remnant, ...], allocated_s: float | None) -> Entry:
    """A slice without an owner."""
    if allocated_s is not None:
        return Entry(remnants=remnants, allocated_s=allocated_s, state=State.ALLOCATED, reason=_ALLOCATED)
    if not remnants:
        return _FREE
    known = any(remnant.known for remnant in remnants)
    reason = "something of it still runs" if known else "whether something of it still runs cannot be told"
    return Entry(
        remnants=remnants,
        state=State.QUARANTINED,
        reason=f"its owner has ended, and {reason}",
        is_busy_for_nobody=True,
    )
