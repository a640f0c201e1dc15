"""What changes in the ledger is told in few sentences."""

from __future__ import annotations

from collections.abc import Mapping

from sharer.core.holders.evidence import Holder, SliceKey
from sharer.core.holders.ledger import Entry, Ledger, Remnant, State
from sharer.flows.holders.ledger_news import ledger_news
from tests.core.evidence import named

TRAIN, NEXT = named("train", uid="uid-1"), named("next", uid="uid-2")
NAMELESS = Holder(uid="uid-3", namespace=None, pod=None, container="c")
KEYS = tuple(("r", f"GPU-a::ts-{n}") for n in range(6))


def held(holder: Holder, *remnants: Holder) -> Entry:
    left = tuple(Remnant(holder=one, since_s=0.0, known=True) for one in remnants)
    return Entry(state=State.HELD, owner=holder, remnants=left)


def news(before: Mapping[SliceKey, Entry], after: Mapping[SliceKey, Entry]) -> list[str]:
    return list(ledger_news(Ledger(entries=before), Ledger(entries=after)))


def test_the_slices_of_a_container_are_named_together_and_many_are_counted() -> None:
    assert news({}, dict.fromkeys(KEYS[:2], held(TRAIN))) == ["default/train (c) holds GPU-a::ts-0, GPU-a::ts-1"]
    assert news({}, dict.fromkeys(KEYS, held(TRAIN))) == [
        "default/train (c) holds GPU-a::ts-0, GPU-a::ts-1, GPU-a::ts-2, GPU-a::ts-3 and 2 more"
    ]


def test_a_restart_that_finds_250_pods_tells_of_some_and_counts_the_others() -> None:
    """One line of the log had 60 KB; the report has them all."""
    pods = {("r", f"GPU-a::ts-{n:03}"): held(named(f"pod-{n:03}", uid=f"uid-{n}")) for n in range(250)}
    told = news({}, pods)
    assert told[0] == "default/pod-000 (c) holds GPU-a::ts-000"
    assert told[10:] == ["and 240 more like this, which `sharer report` tells"]


def test_a_holder_is_told_once_its_name_is_known() -> None:
    """The checkpoint has UIDs only; the kubelet's list follows within moments."""
    assert news({}, {KEYS[0]: held(NAMELESS)}) == []
    assert news({KEYS[0]: held(NAMELESS)}, {KEYS[0]: held(named("late", uid=NAMELESS.uid))}) == [
        "default/late (c) holds GPU-a::ts-0"
    ]


def test_a_pod_without_a_name_is_known_by_its_uid() -> None:
    assert news({KEYS[0]: held(NAMELESS)}, {KEYS[0]: held(NEXT, NAMELESS)})[1:] == [
        "of pod uid-3 (c) something still runs on GPU-a::ts-0"
    ]


def test_a_slice_that_is_handed_on_while_its_old_owner_lives_is_told_as_both() -> None:
    assert news({KEYS[0]: held(TRAIN)}, {KEYS[0]: held(NEXT, TRAIN)}) == [
        "default/next (c) holds GPU-a::ts-0",
        "of default/train (c) something still runs on GPU-a::ts-0",
    ]


def test_quarantine_is_told_with_its_reason_and_its_end() -> None:
    quarantined = Entry(state=State.QUARANTINED, reason="its owner has ended, and something of it still runs")
    assert news({KEYS[0]: held(TRAIN)}, {KEYS[0]: quarantined}) == [
        "GPU-a::ts-0 in quarantine: its owner has ended, and something of it still runs"
    ]
    assert news({KEYS[0]: quarantined}, {}) == ["GPU-a::ts-0 free again"]


def test_what_was_absent_for_a_moment_or_never_came_to_anything_is_no_news() -> None:
    releasing = Entry(state=State.RELEASING, owner=TRAIN)
    allocated = Entry(state=State.ALLOCATED, allocated_s=1.0)
    assert news({KEYS[0]: held(TRAIN)}, {KEYS[0]: releasing}) == []
    assert news({KEYS[0]: releasing}, {KEYS[0]: held(TRAIN)}) == []
    assert news({}, {KEYS[0]: allocated}) == []
    assert news({KEYS[0]: allocated}, {}) == []
