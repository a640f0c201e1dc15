"""A slice is held by whom the kubelet says, and is free when nothing of its owner is left."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sharer.core.holders.evidence import (
    CgroupReading,
    CheckpointReading,
    ListReading,
    ProcessReading,
    Reading,
    SliceKey,
)
from sharer.core.holders.ledger import Entry, Ledger, State, allocated, is_news, observe_all, settle
from sharer.core.holders.observations import ContainerKind, ContainerSeen, PodPhase, PodsSeen
from tests.core.evidence import alive, checkpoint, given_to, key, listed, named, pod, process, reading, seen

A, B = key(0, 1024), key(1, 1024)
TIMEOUT_S = 600.0


def processes(*uids: str) -> ProcessReading:
    return reading(*(process(uid) for uid in uids))


def after(*readings: Reading, start: Ledger | None = None, now_s: float = 0.0) -> Ledger:
    ledger = start or Ledger()
    for one in readings:
        ledger = observe_all(ledger, [one], now_s, quarantine_s=TIMEOUT_S)
    return ledger


def states(ledger: Ledger) -> dict[SliceKey, State]:
    return {key: entry.state for key, entry in ledger.entries.items()}


RUNNING = (
    checkpoint(given_to("uid-1", A)),
    alive("uid-1"),
    seen(pod("train", uid="uid-1")),
    processes("uid-1"),
    listed({A: "train"}),
)


def test_a_slice_that_the_kubelets_list_names_is_held_and_its_owner_has_a_uid() -> None:
    entry = after(*RUNNING).entry(A)
    assert entry.state is State.HELD
    assert entry.owner == named("train", uid="uid-1")


def test_slices_that_one_container_holds_are_one_entry_in_memory_and_so_is_a_list_that_says_the_same_again() -> None:
    """Of 2,000 slices in 250 containers that is half a MiB."""
    sources = (checkpoint(given_to("uid-1", A, B)), seen(pod("train", uid="uid-1")), listed({A: "train", B: "train"}))
    before = after(alive("uid-1"), *sources)
    assert before.entry(A).owner == named("train", uid="uid-1")
    assert before.entry(A) is before.entry(B)
    now = after(listed({A: "train", B: "train"}, serial=2), start=before)
    assert before.evidence.listed is not None
    assert now.evidence.listed is not None
    assert (now.evidence.listed.serial, now.evidence.listed.holders) == (2, before.evidence.listed.holders)
    assert now.evidence.listed.holders is before.evidence.listed.holders


def test_an_answered_allocate_is_kept_until_somebody_claims_the_slice_or_the_grace_is_over() -> None:
    """Pitfall 33, contract §5: an Allocate may come to nothing."""
    ledger = allocated(Ledger(), [A], 10.0)
    assert states(ledger) == {A: State.ALLOCATED}
    assert states(settle(ledger, 69.9, quarantine_s=TIMEOUT_S)) == {A: State.ALLOCATED}
    assert states(settle(ledger, 70.0, quarantine_s=TIMEOUT_S)) == {}
    assert states(after(listed({A: "train"}), start=ledger, now_s=11.0)) == {A: State.HELD}


def test_an_allocate_for_a_held_slice_leaves_the_very_same_ledger() -> None:
    ledger = after(*RUNNING)
    assert allocated(ledger, [A], 5.0) is ledger


def test_a_slice_has_one_key_in_memory_whatever_source_names_it() -> None:
    ledger = after(checkpoint(given_to("uid-1", A)), alive("uid-1"), seen(pod("train", uid="uid-1")))
    ledger = after(listed({(A[0], A[1]): "train"}), listed({key(0, 1024): "train", B: "next"}, serial=2), start=ledger)
    assert ledger.evidence.listed is not None
    known = {id(one) for one in ledger.entries}
    assert {id(one) for one in ledger.evidence.listed.holders} == known


def test_an_allocate_for_a_held_slice_changes_nothing_until_the_list_names_the_new_owner() -> None:
    """P27: nothing is guessed from an Allocate. Contract §22: IDs are handed on 0.3 s after a force delete."""
    ledger = after(*RUNNING)
    assert allocated(ledger, [A], 1.0).entry(A) == ledger.entry(A)


@pytest.mark.parametrize("with_api", [True, False])
def test_namesakes_in_two_namespaces_are_two_owners_with_the_uids_that_are_theirs(with_api: bool) -> None:
    """Neighbour of P27: one chart in two namespaces; pods and containers have the same names, the amounts are equal."""
    one, two = (replace(pod("train", uid=uid), namespace=space) for uid, space in (("uid-1", "one"), ("uid-2", "two")))
    names = frozenset({("one", "train"), ("two", "train")})
    holders = {A: replace(named("train"), namespace="two"), B: replace(named("train"), namespace="one")}
    told = [seen(one, two)] if with_api else []
    ledger = after(
        checkpoint(given_to("uid-1", B), given_to("uid-2", A)),
        alive("uid-1", "uid-2"),
        *told,
        ListReading(serial=1, holders=holders, pods=names),
    )
    owners = {key: entry.owner for key, entry in ledger.entries.items()}
    assert owners == {A: replace(holders[A], uid="uid-2"), B: replace(holders[B], uid="uid-1")}


def test_a_process_on_the_neighbouring_instance_proves_nothing_of_this_one() -> None:
    """Neighbour of P30: a pod held two MIG devices of one GPU, was force-deleted, and runs on with one of them."""
    name = "nvidia.com/mig-1g.10gb"
    first, second = (name, "MIG-1::mig-0"), (name, "MIG-2::mig-0")
    ledger = after(
        checkpoint(given_to("uid-1", first, second)),
        listed({first: "train", second: "train"}),
        reading(process("uid-1", on="MIG-2"), asked=("MIG-1", "MIG-2")),
    )
    ledger = after(checkpoint(serial=2), listed(serial=2), listed(serial=3), start=ledger)
    assert states(ledger) == {second: State.QUARANTINED}
    assert ledger.entry(second).is_busy_for_nobody


def test_one_absence_is_releasing_and_the_second_frees_a_slice_of_which_nothing_is_left() -> None:
    ledger = after(alive(), processes(), listed(serial=2), start=after(*RUNNING))
    assert states(ledger) == {A: State.RELEASING}
    assert not ledger.entry(A).is_busy_for_nobody, "most pods leave nothing behind: no reason to reject the next one"
    assert states(after(listed(serial=2), start=ledger)) == {A: State.RELEASING}, (
        "the same reading again is no second one"
    )
    assert states(after(listed(serial=3), start=ledger)) == {}


def test_a_slice_that_was_absent_once_and_returns_is_held_as_before() -> None:
    """Contract row 40."""
    ledger = after(listed(serial=2), listed({A: "train"}, serial=3), start=after(*RUNNING))
    assert ledger.entry(A) == after(*RUNNING).entry(A)


def test_a_force_deleted_pod_that_still_runs_keeps_its_slice_busy() -> None:
    """P30: the kubelet forgets at once; the container runs on for its grace period."""
    ledger = after(seen(), listed(serial=2), start=after(*RUNNING))
    assert ledger.entry(A).state is State.RELEASING
    assert ledger.entry(A).is_busy_for_nobody
    ledger = after(listed(serial=3), start=ledger)
    assert ledger.entry(A).state is State.QUARANTINED
    assert [remnant.holder.uid for remnant in ledger.entry(A).remnants] == ["uid-1"]
    assert states(after(processes(), alive(), start=ledger)) == {}


def test_a_slice_that_is_handed_on_has_the_new_owner_and_the_old_one_as_its_remnant() -> None:
    """P30: Allocate for a held slice is normal after a force delete."""
    taken = checkpoint(given_to("uid-1", A), given_to("uid-2", A))
    ledger = after(taken, alive("uid-1", "uid-2"), listed({A: "next"}, serial=2), start=after(*RUNNING))
    ledger = after(seen(pod("next", uid="uid-2")), start=ledger)
    entry = ledger.entry(A)
    assert (entry.state, entry.owner and entry.owner.uid) == (State.HELD, "uid-2")
    assert [remnant.holder.uid for remnant in entry.remnants] == ["uid-1"]
    assert after(processes(), alive("uid-2"), start=ledger).entry(A).remnants == ()


def test_a_slice_that_was_given_on_before_the_list_is_read_again_is_not_taken_for_its_new_owners() -> None:
    """P30: the checkpoint names the new pod already, `List` still the old one, and no name of either UID is known."""
    held = after(checkpoint(given_to("uid-1", A)), alive("uid-1"), processes("uid-1"), listed({A: "train"}))
    given_on = checkpoint(given_to("uid-2", A), serial=2)
    between = after(given_on, alive("uid-1", "uid-2"), start=held)
    assert between.entry(A).owner == named("train", uid="uid-1")
    entry = after(listed({A: "next"}, serial=2), start=between).entry(A)
    assert entry.owner == named("next", uid="uid-2")
    assert [remnant.holder.uid for remnant in entry.remnants] == ["uid-1"]
    fresh = after(listed({A: "next"}), checkpoint(given_to("uid-2", A)), alive("uid-2"))
    assert fresh.entry(A).owner == named("next", uid="uid-2")


def test_a_pod_of_the_same_name_is_another_owner() -> None:
    """P29: a StatefulSet's next pod; a late delete of the old UID does not touch it."""
    taken = checkpoint(given_to("uid-1", A), given_to("uid-2", A))
    ledger = after(
        seen(pod("train", uid="uid-2")),
        taken,
        alive("uid-2"),
        processes("uid-2"),
        listed({A: "train"}, serial=2),
        start=after(*RUNNING),
    )
    entry = ledger.entry(A)
    assert entry.owner is not None
    assert (entry.owner.uid, entry.remnants) == ("uid-2", ())


def test_a_finished_pod_that_an_old_kubelet_still_lists_holds_nothing() -> None:
    """P31, contract §12: before 1.34 the list keeps finished pods, so the API's phase decides."""
    over = seen(pod("train", PodPhase.SUCCEEDED, uid="uid-1"))
    ledger = after(over, start=after(*RUNNING))
    assert states(ledger) == {A: State.HELD}, "its cgroup is populated: it still runs"
    assert states(after(alive(), processes(), start=ledger)) == {}


def test_a_deletion_time_alone_frees_nothing() -> None:
    deleting = seen(replace(pod("train", uid="uid-1"), is_deleting=True))
    assert states(after(deleting, start=after(*RUNNING))) == {A: State.HELD}


def test_an_init_container_holds_what_the_checkpoint_says_while_its_pod_lives() -> None:
    """Contract §22: never in the list, taken until the pod ends."""
    both = checkpoint(given_to("uid-1", A, B, container="init"), given_to("uid-1", A))
    ledger = after(both, start=after(*RUNNING))
    assert {key: entry.owner and entry.owner.container for key, entry in ledger.entries.items()} == {A: "c", B: "init"}
    assert ledger.entry(A).remnants == ()
    gone = after(seen(), alive(), processes(), listed(serial=2), listed(serial=3), start=ledger)
    assert states(gone) == {}


def test_a_checkpoint_that_cannot_be_read_any_more_gives_no_new_pod_the_uid_of_a_dead_one() -> None:
    """Seed 191 of `tests faults`: the last readable file names a pod that had the slice before."""
    last = checkpoint(given_to("uid-1", A))
    ledger = after(last, alive(), listed(), replace(last, is_current=False), listed({A: "next"}, serial=2))
    assert ledger.entries[A].owner == named("next")
    again = after(checkpoint(given_to("uid-2", A), serial=2), start=ledger, now_s=9.0)
    assert again.entries[A].owner == replace(named("next"), uid="uid-2")


def test_an_entry_of_the_checkpoint_whose_pod_is_gone_is_stale() -> None:
    """Contract §22: deleted pods stay in the file for as long as nobody allocates."""
    assert states(after(checkpoint(given_to("uid-old", A)), alive(), seen(), processes(), listed())) == {}


def test_a_process_of_a_pod_that_only_the_checkpoint_remembers_quarantines_its_slice() -> None:
    """The agent may have been down while the pod ended."""
    ledger = after(
        checkpoint(given_to("uid-old", A)), alive(), seen(), processes("uid-old"), listed(), listed(serial=2)
    )
    assert states(ledger) == {A: State.QUARANTINED}
    assert ledger.entry(A).remnants[0].known


def test_a_static_pod_is_known_by_the_hash_in_its_cgroup() -> None:
    """runtime-facts 44: the API's mirror pod has another UID."""
    mirror = replace(pod("static", uid="api-uid"), cgroup_uid="hash")
    ledger = after(checkpoint(given_to("hash", A)), seen(mirror), alive("hash"), listed({A: "static"}))
    assert ledger.entry(A).owner == named("static", uid="hash")


def test_a_static_pod_whose_mirror_is_deleted_and_made_anew_holds_on_under_the_same_uid() -> None:
    """Neighbour of P29: `kubectl delete` of it ends nothing; the kubelet makes the mirror again, with another UID."""

    def mirror(uid: str) -> PodsSeen:
        return seen(replace(pod("train-node-1", uid=uid), cgroup_uid="hash"))

    start = after(
        checkpoint(given_to("hash", A)),
        alive("hash"),
        mirror("m-1"),
        processes("hash"),
        listed({A: "train-node-1"}),
    )
    owner = start.entry(A).owner
    assert owner is not None
    assert owner.uid == "hash"
    for told in (seen(), mirror("m-2")):
        now = after(told, listed({A: "train-node-1"}, serial=2), listed({A: "train-node-1"}, serial=3), start=start)
        assert (now.entry(A).state, now.entry(A).owner, now.entry(A).remnants) == (State.HELD, owner, ())


def test_what_nobody_can_tell_is_quarantined_until_the_timeout_and_says_so() -> None:
    """Without cgroups and process lists there is no evidence either way."""
    ledger = after(listed({A: "train"}), listed(serial=2), listed(serial=3), now_s=5.0)
    assert states(ledger) == {A: State.QUARANTINED}
    assert "cannot be told" in ledger.entry(A).reason
    assert states(settle(ledger, 604.9, quarantine_s=TIMEOUT_S)) == {A: State.QUARANTINED}
    assert states(settle(ledger, 605.0, quarantine_s=TIMEOUT_S)) == {}


def test_a_known_remnant_outlasts_every_timeout() -> None:
    """Neighbour of P30: what is known to run is not given away because time has passed."""
    ledger = after(seen(), listed(serial=2), listed(serial=3), start=after(*RUNNING))
    assert states(settle(ledger, 1e9, quarantine_s=TIMEOUT_S)) == {A: State.QUARANTINED}


def test_without_the_api_owners_and_releases_are_known_all_the_same() -> None:
    """`--kubernetes off`."""
    ledger = after(checkpoint(given_to("uid-1", A)), alive("uid-1"), processes("uid-1"), listed({A: "train"}))
    assert ledger.entry(A).owner == named("train", uid="uid-1")
    assert states(after(alive(), processes(), listed(serial=2), listed(serial=3), start=ledger)) == {}


@pytest.mark.parametrize("phase", [PodPhase.PENDING, PodPhase.RUNNING, PodPhase.UNKNOWN])
def test_a_pod_that_the_api_calls_active_keeps_what_the_checkpoint_gave_it(phase: PodPhase) -> None:
    """P31: bound and still pulling its image counts."""
    assert states(after(checkpoint(given_to("uid-1", A)), seen(pod("p", phase, uid="uid-1")), alive())) == {
        A: State.HELD
    }


# What lives, dies once: an ended pod's cgroup and processes do not come back.
shrinking = st.lists(st.sampled_from(["uid-1", "uid-2"]), unique=True).map(
    lambda dying: [set(dying[n:]) for n in range(len(dying) + 1)]
)
histories = st.fixed_dictionaries(
    {
        "list": st.lists(
            st.dictionaries(st.sampled_from([A, B]), st.sampled_from(["one", "two"]), max_size=2),
            min_size=1, max_size=4,
        ),
        # What a container was given never changes while its pod lives, and entries of ended pods stay.
        "checkpoint": st.dictionaries(
            st.tuples(st.sampled_from(["uid-1", "uid-2"]), st.sampled_from(["c", "init"])),
            st.sets(st.sampled_from([A, B]), min_size=1).map(sorted),
            max_size=3,
        )
        .map(lambda told: [given_to(uid, *keys, container=name) for (uid, name), keys in told.items()])
        .map(lambda entries: [entries[:n] for n in range(len(entries) + 1)]),
        "cgroups": shrinking,
        "pods": st.lists(
            st.dictionaries(st.sampled_from(["uid-1", "uid-2"]), st.sampled_from(PodPhase), max_size=2), max_size=3
        ).map(lambda later: [dict.fromkeys(["uid-1", "uid-2"], PodPhase.PENDING), *later]),  # every pod is seen once
        "processes": shrinking,
    }
)  # fmt: skip


def streams(history: Mapping[str, Sequence[object]]) -> list[list[Reading]]:
    names = {"uid-1": "one", "uid-2": "two"}
    return [
        [listed(holders, serial=n) for n, holders in enumerate(history["list"], start=1)],  # type: ignore[arg-type]
        [checkpoint(*entries, serial=n) for n, entries in enumerate(history["checkpoint"], start=1)],  # type: ignore[misc]
        [alive(*sorted(uids)) for uids in history["cgroups"]],  # type: ignore[call-overload]
        [seen(*(pod(names[uid], phase, uid=uid) for uid, phase in phases.items())) for phases in history["pods"]],  # type: ignore[attr-defined]
        [processes(*sorted(uids)) for uids in history["processes"]],  # type: ignore[call-overload]
    ]


def interleaved(order: Iterable[int], sources: list[list[Reading]]) -> list[Reading]:
    left = [list(source) for source in sources]
    picked = [left[n].pop(0) for n in order if left[n]]
    return picked + [reading for source in left for reading in source]


def outcome(ledger: Ledger) -> dict[SliceKey, tuple[State, tuple[str | None, ...] | None]]:
    """Where every slice stands and who holds it. A UID that a source took back is not compared."""
    return {
        key: (entry.state, None if (owner := entry.owner) is None else (owner.namespace, owner.pod, owner.container))
        for key, entry in ledger.entries.items()
    }


@settings(max_examples=300)
@given(histories, st.lists(st.integers(0, 4), max_size=16))
def test_the_end_does_not_depend_on_which_source_spoke_first(
    history: Mapping[str, Sequence[object]], order: list[int]
) -> None:
    """Any interleaving that keeps each source's own order ends in the same state, once the list was read again."""
    sources = streams(history)
    last = history["list"][-1]
    again = [listed(last, serial=100 + n) for n in range(2)]  # type: ignore[arg-type]
    in_turn = after(*(reading for source in sources for reading in source), *again)
    mixed = after(*interleaved(order, sources), *again)
    assert outcome(mixed) == outcome(in_turn)


@given(histories, st.lists(st.integers(0, 4), max_size=16))
def test_a_reading_seen_twice_counts_once_and_nobody_shares_a_slice(
    history: Mapping[str, Sequence[object]], order: list[int]
) -> None:
    readings = interleaved(order, streams(history))
    once, twice = after(*readings), after(*(reading for reading in readings for _ in range(2)))
    assert outcome(once) == outcome(twice)
    for entry in once.entries.values():
        assert (entry.state is State.HELD) <= (entry.owner is not None)
        assert entry.state is not State.OFFERED


@given(histories)
def test_nothing_that_the_kubelet_names_is_lost(history: Mapping[str, Sequence[object]]) -> None:
    readings = [reading for source in streams(history) for reading in source]
    ledger = after(*readings)
    last = ledger.evidence.listed
    assert last is not None
    for slice_key, holder in last.holders.items():
        entry = ledger.entry(slice_key)
        ended = entry == Entry() or entry.owner is None or entry.owner.pod != holder.pod
        if ended:
            uid = {"one": "uid-1", "two": "uid-2"}[holder.pod or ""]
            assert ledger.evidence.pods is not None
            assert ledger.evidence.pods.pods[uid].phase.is_terminal, "only a terminal phase speaks against the list"


@given(histories, st.lists(st.integers(0, 4), max_size=16))
def test_readings_that_are_taken_together_end_as_those_taken_one_by_one(
    history: Mapping[str, Sequence[object]], order: list[int]
) -> None:
    """`observe_all` judges once for a whole round of the sources."""
    readings = interleaved(order, streams(history))
    last = history["list"][-1]
    again = [listed(last, serial=100 + n) for n in range(2)]  # type: ignore[arg-type]
    rounds: list[list[Reading]] = [[]]
    for fresh in readings:
        if any(type(one) is type(fresh) for one in rounds[-1]):
            rounds.append([])
        rounds[-1].append(fresh)
    rounds += [[one] for one in again]
    together = Ledger()
    for whole_round in rounds:
        together = observe_all(together, whole_round, 0.0, quarantine_s=TIMEOUT_S)
    assert outcome(together) == outcome(after(*readings, *again))


def test_a_round_in_which_nothing_is_new_leaves_the_very_same_entries() -> None:
    """So that whoever compares can compare by identity, on a node with thousands of slices."""
    ledger = after(*RUNNING)
    again = [replace(one, serial=9) if isinstance(one, ListReading | CheckpointReading) else one for one in RUNNING]
    assert observe_all(ledger, again, 1e6, quarantine_s=TIMEOUT_S).entries is ledger.entries


def test_time_alone_ends_what_waits_for_it_although_no_source_says_anything_new() -> None:
    """An Allocate that came to nothing, an unknown remnant."""
    waiting = allocated(after(*RUNNING), [B], 10.0)
    assert states(observe_all(waiting, [], 70.0, quarantine_s=TIMEOUT_S)) == {A: State.HELD}
    unknown = after(listed({A: "train"}), listed(serial=2), listed(serial=3), now_s=5.0)
    assert states(observe_all(unknown, [], 605.0, quarantine_s=TIMEOUT_S)) == {}


def young(holders: Mapping[SliceKey, str], age_s: float | None = 3.0) -> ListReading:
    return listed(holders, serial=9, age_s=age_s)


INIT = replace(pod("train", uid="uid-1"), containers=(ContainerSeen(name="c", kind=ContainerKind.INIT),))


@pytest.mark.parametrize(
    ("why", "before", "now", "believed"),
    [
        ("it is not known when the kubelet started", RUNNING, young({}, None), True),
        ("it started 10 s ago", RUNNING, young({}, 10.0), True),
        ("empty although a pod runs", RUNNING, young({}), False),
        ("everything is there, and more", RUNNING, young({A: "train", B: "next"}), True),
        ("the pod has ended", (*RUNNING, alive(), seen()), young({}), True),
        ("its last process has, and the API calls it active", (*RUNNING, alive()), young({}), False),
        ("its cgroup is there, and nobody is in it yet", (*RUNNING, seen(), CgroupReading(populated={"uid-1": False})),
         young({}), False),
        ("an init container, which no list names", (*RUNNING, seen(INIT)), young({}), True),
        ("agent and kubelet restarted together", RUNNING[:2], young({B: "static"}), False),
        ("so they did, and only the checkpoint speaks", RUNNING[:1], young({B: "static"}), False),
        ("so they did, and it is all there", RUNNING[:1], young({A: "train"}), True),
        ("the checkpoint is stale, as cgroups tell", (RUNNING[0], alive()), young({}), True),
        ("a new node", (), young({}), True),
    ],
)  # fmt: skip
def test_a_kubelet_that_has_only_just_started_is_believed_if_it_names_whoever_is_there(
    why: str, before: Sequence[Reading], now: ListReading, believed: bool
) -> None:
    """Contract §22: in the first second after its start, List succeeds and is empty."""
    assert is_news(now, after(*before)) is believed, why
