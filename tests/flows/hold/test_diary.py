"""A pod is looked at when its cgroups change, ever more rarely afterwards, and all of them now and then."""

from __future__ import annotations

import threading

from sharer.flows.hold.diary import LOOK_S, SETTLING_S, SOON_S, STIRRED_S, Diary
from tests.fakes.clock import Clock

RUNNING = threading.Event()


def next_look(diary: Diary, clock: Clock) -> frozenset[str] | None:
    """What is due now. A wait for something later would hang this test: move the clock first."""
    return diary.wait(clock, RUNNING)


def looks(diary: Diary, clock: Clock, *, incomplete: bool) -> list[float]:
    """The ages at which a pod that was stirred is looked at, for as long as it is new."""
    begun_s, ages = clock.now_s, []
    diary.stir("a", begun_s)
    while next_look(diary, clock) == frozenset({"a"}):
        ages.append(clock.now_s - begun_s)
        diary.plan({"a": incomplete}, clock.now_s)
        due_s = diary._due.get("a")
        if due_s is None:
            break
        clock.now_s = due_s
    return ages


def started() -> tuple[Diary, Clock]:
    diary, clock = Diary(), Clock(0.0)
    assert next_look(diary, clock) is None  # the first look is one at everything
    return diary, clock


def test_everything_is_looked_at_first_and_then_every_few_seconds() -> None:
    diary, clock = started()
    clock.now_s += LOOK_S
    assert next_look(diary, clock) is None


def test_a_stirred_pod_is_looked_at_at_once() -> None:
    diary, clock = started()
    diary.stir("a", clock.now_s)
    diary.stir("b", clock.now_s)
    assert next_look(diary, clock) == frozenset({"a", "b"})


def test_a_pod_that_is_incomplete_is_looked_at_often_while_it_is_new() -> None:
    ages = looks(*started(), incomplete=True)
    assert ages[0] == 0.0
    assert ages[1] == SOON_S
    assert sum(age <= 0.1 for age in ages) >= 8
    assert ages[-1] >= STIRRED_S
    assert len(ages) < 30


def test_a_pod_that_is_complete_is_looked_at_a_few_times_more() -> None:
    """A toolkit's hook may overwrite a limit in the first moments."""
    ages = looks(*started(), incomplete=False)
    assert ages[1] == SETTLING_S
    assert len(ages) <= 8


def test_a_pod_that_is_not_new_is_not_planned() -> None:
    diary, clock = started()
    diary.plan({"a": True}, clock.now_s)
    assert diary._due == {}


def test_a_look_at_everything_is_one_at_each_pod() -> None:
    diary, clock = started()
    diary.stir("a", clock.now_s)
    clock.now_s += LOOK_S
    assert next_look(diary, clock) is None
    assert diary._due == {}
    assert diary._stirred == {}  # a pod without GPUs is not remembered


def test_a_stop_ends_the_wait() -> None:
    diary, clock = started()
    stop, ended = threading.Event(), threading.Event()

    def wait() -> None:
        assert diary.wait(clock, stop) == frozenset()
        ended.set()

    thread = threading.Thread(target=wait)
    thread.start()
    stop.set()
    diary.stir("", clock.now_s)
    assert ended.wait(10.0)
    thread.join()
