"""`List` is asked soon after a hint and seldom otherwise, and never more than the node's other clients can bear."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharer.core.holders.pace import BURST, GAP_S, PER_SECOND, SAVED, SETTLE_S, Pace

TICK_S = 0.01


def calls(hints_s: Sequence[float], until_s: float, *, every_s: float = 10.0) -> list[float]:
    """When `List` is asked, if it always is as soon as it is due, and these hints come."""
    pace, asked_s, hints = Pace(), [], sorted(hints_s)
    for tick in range(round(until_s / TICK_S)):
        now_s = tick * TICK_S
        while hints and hints[0] <= now_s:
            pace = pace.hinted(hints.pop(0))
        if pace.due_s(every_s) <= now_s:
            pace = pace.asking(now_s)
            asked_s.append(now_s)
    return asked_s


def test_the_first_call_is_due_at_once_and_the_next_after_the_interval() -> None:
    assert calls([], 25.0) == [0.0, 10.0, 20.0]


def test_a_hint_brings_three_calls_that_are_200_ms_apart() -> None:
    """The kubelet's own books are up to 14 ms behind a hint (runtime-facts 54)."""
    after = [at_s for at_s in calls([5.0], 9.0) if at_s >= 5.0]
    assert [at_s - 5.0 for at_s in after] == pytest.approx([0.03, 0.23, 0.43], abs=1.5 * TICK_S)
    assert after[0] - 5.0 >= SETTLE_S


def test_a_hint_during_a_burst_starts_it_anew() -> None:
    after = [at_s for at_s in calls([5.0, 5.3], 9.0) if at_s >= 5.0]
    assert len(after) == BURST + 2
    assert after[-1] < 6.0


def test_a_single_call_can_be_asked_for_and_does_not_shorten_a_burst() -> None:
    pace = Pace().asking(0.0)
    assert pace.hinted(5.0, calls=1).burst == 1
    assert pace.hinted(5.0).hinted(5.1, calls=1).burst == BURST


def test_a_node_where_something_always_happens_is_asked_once_a_second_on_average() -> None:
    """A kubelet allows 100 calls a second to all clients of the node together (contract §12)."""
    asked_s = calls([tick / 10 for tick in range(600)], 60.0)
    assert len(asked_s) <= 60 + SAVED


def test_calls_without_a_hint_leave_room_for_a_burst() -> None:
    """Otherwise a node with holders, asked every second, would never have a call in reserve."""
    after = [at_s for at_s in calls([30.0], 31.0, every_s=1.0) if at_s >= 30.0]
    assert len(after) == BURST


def test_once_a_second_stays_once_a_second() -> None:
    asked_s = calls([], 60.0, every_s=1.0)
    assert len(asked_s) == 60


@given(st.lists(st.floats(0.0, 20.0), max_size=60), st.sampled_from([1.0, 2.0, 5.0, 10.0]))
def test_whatever_happens_calls_keep_their_distance_and_their_average(hints_s: list[float], every_s: float) -> None:
    asked_s = calls(hints_s, 25.0, every_s=every_s)
    gaps_s = [later - earlier for earlier, later in itertools.pairwise(asked_s)]
    assert all(gap_s >= GAP_S - 1e-9 for gap_s in gaps_s)
    for first, begun_s in enumerate(asked_s):
        for number, at_s in enumerate(asked_s[first:], start=1):
            assert number <= SAVED + (at_s - begun_s) * PER_SECOND + 1e-9


@given(st.lists(st.floats(0.0, 20.0), min_size=1, max_size=10))
def test_every_hint_is_followed_by_a_call_within_moments(hints_s: list[float]) -> None:
    asked_s = calls(hints_s, 60.0)
    for hint_s in hints_s:
        assert any(hint_s + SETTLE_S - TICK_S <= at_s <= hint_s + 4.0 for at_s in asked_s)


def test_cgroups_are_read_for_a_hint_at_once_but_not_many_times_in_a_row() -> None:
    pace = Pace()
    assert pace.cgroups_due_s() == math.inf
    hinted = pace.hinted_at_cgroups()
    assert hinted.cgroups_due_s() <= 0.0
    read = hinted.reading_cgroups(5.0)
    assert read.cgroups_due_s() == math.inf
    assert read.hinted_at_cgroups().cgroups_due_s() == 5.1
