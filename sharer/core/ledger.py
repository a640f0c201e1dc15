"""Who holds which slice, and when a slice is free again (DESIGN §3).

    offered -> allocated -> held(owner) -> releasing -> offered
                  |                            |
                  never claimed: offered       evidence of life: quarantined -> offered

The kubelet never says that a pod ended, hands IDs on while the old container still runs, and forgets; so a slice is
released on evidence. `observe` takes one reading of one source and settles every slice against the last reading of
all of them: the end does not depend on which source spoke first, and a reading seen twice counts once.

* The **owner** is the kubelet's view, at most one a slice: whom `List` names, else a container in the checkpoint whose
  pod is alive (init containers are never in `List`). `List` of a kubelet before 1.34 keeps finished pods, so a
  terminal phase without a populated pod cgroup ends ownership as well.
* A **remnant** is a former owner with evidence of life: a populated pod cgroup, or a process on the GPU.
* An owner that is absent from `List` once is *releasing*; from two readings on it is gone, or a remnant.
* What nobody can tell (no cgroups and no process list) is *quarantined* until a timeout, and said to be unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from sharer.core.evidence import (
    CgroupReading,
    CheckpointReading,
    Evidence,
    Holder,
    ListReading,
    ProcessReading,
    Reading,
    SliceKey,
)
from sharer.core.observations import PodsSeen

UNCLAIMED_GRACE_S = 60.0  # an Allocate that no source has named by then came to nothing (kubelet-contract §5)
MAX_ENDED_PODS = 2000  # whose names are remembered
ABSENCES = 2  # readings of `List` without the owner, after which the kubelet has freed the slice


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
        return self.entries.get(key, Entry())


def observe(ledger: Ledger, reading: Reading, now_s: float, *, quarantine_s: float) -> Ledger:
    """The ledger after one reading of one source."""
    evidence = ledger.evidence
    match reading:
        case ListReading():
            ledger = _count_absences(ledger, reading)
        case CheckpointReading():
            ledger = replace(ledger, evidence=replace(evidence, checkpoint=reading))
        case CgroupReading():
            ledger = replace(ledger, evidence=replace(evidence, cgroups=reading))
        case ProcessReading():
            ledger = replace(ledger, evidence=replace(evidence, processes=reading))
        case PodsSeen():
            ledger = replace(ledger, evidence=replace(evidence, pods=reading), names=_remember(ledger.names, reading))
    return settle(ledger, now_s, quarantine_s=quarantine_s)


def allocated(ledger: Ledger, keys: Iterable[SliceKey], now_s: float) -> Ledger:
    """The ledger after an Allocate was answered: for whom, nobody says yet. Of a held slice, `List` will tell."""
    changed = {
        key: replace(entry, allocated_s=now_s, state=State.ALLOCATED, reason=_ALLOCATED, is_busy_for_nobody=False)
        for key in keys
        if (entry := ledger.entry(key)).owner is None
    }
    return replace(ledger, entries={**ledger.entries, **changed})


def settle(ledger: Ledger, now_s: float, *, quarantine_s: float) -> Ledger:
    """The ledger with every slice judged by the evidence and the clock as they are."""
    facts = _Facts(ledger)
    keys = dict.fromkeys([*ledger.entries, *facts.claims, *facts.undead])
    entries = {key: _settle(ledger.entry(key), key, facts, now_s, quarantine_s) for key in keys}
    return replace(ledger, entries={key: entry for key, entry in entries.items() if entry != Entry()})


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
    return replace(ledger, evidence=replace(ledger.evidence, listed=reading), missing_from=kept | lost)


_ALLOCATED = "the kubelet asked for it; which container it is for is not known yet"


def _settle(entry: Entry, key: SliceKey, facts: _Facts, now_s: float, quarantine_s: float) -> Entry:
    claim, allocated_s = facts.claims.get(key), entry.allocated_s
    owner = None if entry.owner is None else facts.full(entry.owner, key)
    former = [(facts.full(remnant.holder, key), remnant.since_s) for remnant in entry.remnants]
    former += [(holder, now_s) for holder in facts.undead.get(key, ())]
    if claim is not None:
        if owner is not None and not owner.is_same(claim):
            former.append((owner, now_s))
            owner = None
        owner = claim if owner is None else owner.merged(claim)
        allocated_s = None
    elif owner is not None and (facts.is_freed(key) or facts.has_ended(owner)):
        former.append((owner, now_s))
        owner = None
    if allocated_s is not None and now_s - allocated_s >= UNCLAIMED_GRACE_S:
        allocated_s = None
    remnants: list[Remnant] = []
    for holder, since_s in former:
        if owner is not None and owner.is_same_pod(holder):
            continue  # an init container whose slice went on to an app container
        if any(holder.is_same(remnant.holder) for remnant in remnants):
            continue
        life = facts.life(holder, key)
        if life or (life is None and now_s - since_s < quarantine_s):
            remnants.append(Remnant(holder=holder, since_s=since_s, known=bool(life)))
    kept = Entry(owner=owner, remnants=tuple(remnants), allocated_s=allocated_s)
    return _named(kept, claimed=claim is not None, owner_lives=owner is not None and facts.life(owner, key) is True)


def _named(entry: Entry, *, claimed: bool, owner_lives: bool) -> Entry:
    """The entry with its state and the one sentence that says why."""
    if claimed:
        return replace(entry, state=State.HELD, reason="the kubelet says so")
    if entry.owner is not None:
        # Healthy until there is evidence of life: most pods leave nothing behind, and the kubelet gives their slice
        # to the next pod before anybody else notices. Unhealthy for that moment would reject that pod.
        reason = "the kubelet does not list its owner any more"
        return replace(entry, state=State.RELEASING, reason=reason, is_busy_for_nobody=owner_lives)
    if entry.allocated_s is not None:
        return replace(entry, state=State.ALLOCATED, reason=_ALLOCATED)
    if entry.remnants:
        known = any(remnant.known for remnant in entry.remnants)
        reason = "something of it still runs" if known else "whether something of it still runs cannot be told"
        reason = f"its owner has ended, and {reason}"
        return replace(entry, state=State.QUARANTINED, reason=reason, is_busy_for_nobody=True)
    return entry


class _Facts:
    """What the evidence says, looked up in the directions that settling needs."""

    def __init__(self, ledger: Ledger) -> None:
        evidence = self._evidence = ledger.evidence
        self._missing_from = ledger.missing_from
        pods = evidence.pods.pods.values() if evidence.pods is not None else ()
        self._pods = {pod.cgroup_uid: pod for pod in pods}
        self._uids = {name: uid for uid, name in ledger.names.items()}  # the newest pod of each name
        self._names = {
            holder.uid: (holder.namespace, holder.pod)
            for entry in ledger.entries.values()
            for holder in (entry.owner, *(remnant.holder for remnant in entry.remnants))
            if holder is not None and holder.uid is not None and holder.pod is not None
        } | dict(ledger.names)
        self._checkpoint: dict[SliceKey, list[Holder]] = {}
        for one in evidence.checkpoint.entries if evidence.checkpoint is not None else ():
            namespace, pod_name = self._names.get(one.uid, (None, None))
            holder = Holder(uid=one.uid, namespace=namespace, pod=pod_name, container=one.container)
            for device_id in one.ids:
                self._checkpoint.setdefault((one.resource, device_id), []).append(holder)
        self._pods_on: dict[str, set[str]] = {}  # device UUID -> pod UIDs with a process on it
        self._unknown_on: set[str] = set()  # device UUIDs with a process of which the pod cannot be told
        for process in evidence.processes.processes if evidence.processes is not None else ():
            if process.uid is not None:
                self._pods_on.setdefault(process.gpu_uuid, set()).add(process.uid)
            elif not process.attributed:
                self._unknown_on.add(process.gpu_uuid)
        self.claims = self._claims()
        self.undead = {
            key: alive
            for key, holders in self._checkpoint.items()
            if (alive := [holder for holder in holders if not self._is_active(holder) and self.life(holder, key)])
        }

    def _claims(self) -> dict[SliceKey, Holder]:
        """The owner of each slice, as the kubelet sees it: its list, else its checkpoint."""
        listed = self._evidence.listed.holders if self._evidence.listed is not None else {}
        claims: dict[SliceKey, Holder] = {}
        for key, holders in self._checkpoint.items():
            active = [holder for holder in holders if self._is_active(holder)]
            if active and key not in listed:
                claims[key] = min(active, key=lambda holder: (holder.uid or "", holder.container))
        for key, holder in listed.items():
            full = self.full(holder, key)
            if not self.has_ended(full):
                claims[key] = full
        return claims

    def full(self, holder: Holder, key: SliceKey) -> Holder:
        """The holder with what only other sources know: a UID from the checkpoint, a name from the API."""
        name = self._names.get(holder.uid) if holder.uid is not None else None
        if holder.pod is None and name is not None:
            return replace(holder, namespace=name[0], pod=name[1])
        if holder.uid is not None and name in (None, (holder.namespace, holder.pod)):
            return holder
        # No UID yet, or one that turns out to be another pod's.
        holder = replace(holder, uid=None)
        same = [other for other in self._checkpoint.get(key, ()) if other.container == holder.container]
        named = [other for other in same if (other.namespace, other.pod) == (holder.namespace, holder.pod)]
        candidates = named or [other for other in same if other.pod is None]
        uids = {other.uid for other in candidates if self._is_active(other)} or {other.uid for other in candidates}
        if not uids and (uid := self._uids.get((holder.namespace or "", holder.pod or ""))) is not None:
            uids = {uid}
        return replace(holder, uid=uids.pop()) if len(uids) == 1 else holder

    def _is_active(self, holder: Holder) -> bool:
        """Whether the kubelet has the pod of a checkpoint entry: it lives, and its list names it if it names any.

        It lives if its cgroup is populated or the API calls it active. A force-deleted pod is alive and not listed.
        """
        assert holder.uid is not None
        listed = self._evidence.listed
        if holder.namespace is not None and holder.pod is not None and listed is not None:
            name = (holder.namespace, holder.pod)
            if name not in listed.pods or self._uids.get(name, holder.uid) != holder.uid:
                return False
        pod = self._pods.get(holder.uid)
        return (pod is not None and not pod.phase.is_terminal) or self._populated(holder.uid) is True

    def _populated(self, uid: str) -> bool | None:
        cgroups = self._evidence.cgroups
        return None if cgroups is None else cgroups.populated.get(uid, False)

    def is_freed(self, key: SliceKey) -> bool:
        """Whether enough readings of `List` in a row were without this slice. One that was never listed is."""
        listed = self._evidence.listed
        return listed is not None and listed.serial - self._missing_from.get(key, 0) + 1 >= ABSENCES

    def has_ended(self, holder: Holder) -> bool:
        """Whether the API says that the pod is over and its cgroup is empty: enough by itself to end ownership."""
        if holder.uid is None:
            return False
        pod = self._pods.get(holder.uid)
        return pod is not None and pod.phase.is_terminal and self._populated(holder.uid) is False

    def life(self, holder: Holder, key: SliceKey) -> bool | None:
        """Whether something of a holder lives on this slice; None: nobody can tell."""
        uuid = key[1].partition("::")[0]
        processes = self._evidence.processes
        asked = processes is not None and uuid in processes.asked
        if holder.uid is None:  # without a UID, only a GPU without any pod's process proves something
            return False if asked and uuid not in self._pods_on and uuid not in self._unknown_on else None
        populated = self._populated(holder.uid)
        if populated or holder.uid in self._pods_on.get(uuid, ()):
            return True
        if populated is False:
            return False
        return False if asked and uuid not in self._unknown_on else None
