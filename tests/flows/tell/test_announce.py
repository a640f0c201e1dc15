"""The thread that writes to the API server: when it looks, how it waits, what it says of failures, how it stops."""

from __future__ import annotations

import logging
import math
import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from sharer.core.api_error import ApiError
from sharer.core.errors import NodeError, SharerError
from sharer.core.holders.evidence import SourceStatus
from sharer.core.holders.observations import ApiTroubleKind, NodeSeen
from sharer.core.mps.service import MpsService, MpsServices
from sharer.core.told import Evictions
from sharer.flows.state import NodeView
from sharer.flows.tell.announce import GATHER_S, RETRY_CAP_S, SLOW_RETRY_S, Announcing
from tests.fakes.clock import Clock

PATIENCE_S = 10.0
VIEW = NodeView(driver_problem="one")
OTHER = NodeView(driver_problem="another")


class Api:
    """A connection that is there, or not yet."""

    def __init__(self, client: object | None = "connected") -> None:
        self.client = client
        self.node: NodeSeen | None = None


class Step:
    """Notes what it is asked, and answers as it is told."""

    def __init__(self, answer: float | Exception | None = None) -> None:
        self.answer = answer
        self.views: list[NodeView] = []

    def __call__(self, view: NodeView, now_s: float) -> float | None:
        self.views.append(view)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class AnnounceLab:
    """An announcer at a clock of the test's; every random time is the longest that is possible."""

    def __init__(self) -> None:
        self.api, self.clock, self.stop = Api(), Clock(), threading.Event()
        self.announcing = Announcing(self.api, now_s=self.clock, uniform=lambda least, most: most)

    def add(self, answer: float | Exception | None = None, name: str = "the test") -> Step:
        step = Step(answer)
        self.announcing.add(name, step)
        return step

    def round(self, view: NodeView | None = None, *, after_s: float = 0.0) -> None:
        """What the thread would do after so long, with this view."""
        self.clock.now_s += after_s
        if view is not None:
            self.announcing.look_at(view)
        self.announcing.round(self.clock.now_s, self.stop)

    @property
    def wait_s(self) -> float:
        return self.announcing.due_s() - self.clock.now_s


@pytest.fixture
def lab() -> AnnounceLab:
    return AnnounceLab()


def refusal(kind: ApiTroubleKind, code: int, retry_after_s: float | None = None) -> ApiError:
    return ApiError("the API server says no", kind=kind, code=code, retry_after_s=retry_after_s)


def test_a_step_is_called_when_the_view_says_something_new_and_not_otherwise(lab: AnnounceLab) -> None:
    step = lab.add()
    lab.round(VIEW)
    lab.round(replace(VIEW))  # another value that says the same
    lab.round(VIEW, after_s=3600.0)
    assert step.views == [VIEW]
    lab.round(OTHER)
    assert step.views == [VIEW, OTHER]


def test_what_changes_by_itself_is_no_news(lab: AnnounceLab) -> None:
    step = lab.add()
    lab.round(VIEW)
    lab.round(replace(VIEW, sources={"list": SourceStatus(read_s=5.0, problem=None)}))
    lab.round(replace(VIEW, sources={"list": SourceStatus(read_s=6.0, problem=None)}))
    lab.round(replace(VIEW, sources={"list": SourceStatus(read_s=6.0, problem="it hangs")}))
    assert len(step.views) == 3  # the source is new, and then it does not answer; when it was read is nobody's news


@pytest.mark.parametrize(
    "changed",
    [
        replace(VIEW, mps=MpsServices(daemons={"nvidia.com/gpu.mps": MpsService(warnings=("its log is full",))})),
        replace(VIEW, evictions=Evictions(problem="no right to create pods/eviction")),
        replace(VIEW, paused="a label says so"),
    ],
    ids=["mps", "evictions", "paused"],
)
def test_whatever_a_report_warns_of_is_news(lab: AnnounceLab, changed: NodeView) -> None:
    step = lab.add()
    lab.round(VIEW)
    lab.round(changed)
    assert step.views == [VIEW, changed]


def test_a_node_of_another_identity_is_news(lab: AnnounceLab) -> None:
    step = lab.add()
    lab.round(VIEW)
    lab.api.node = NodeSeen(uid="made-anew", name="node-1")
    lab.round(VIEW)
    assert len(step.views) == 2


def test_nothing_is_looked_at_before_the_connection_is_there(lab: AnnounceLab) -> None:
    lab.api.client = None
    step = lab.add()
    lab.round(VIEW)
    assert not step.views
    lab.api.client = "connected"
    lab.round(VIEW)
    assert step.views == [VIEW]


def test_a_step_says_when_it_wants_to_be_called_without_any_change(lab: AnnounceLab) -> None:
    once, often = lab.add(), lab.add(1100.0)
    lab.round(VIEW)
    assert lab.wait_s == 100.0
    lab.round(after_s=99.0)
    assert len(often.views) == 1
    lab.round(after_s=1.0)
    assert (len(once.views), len(often.views)) == (1, 2)


def test_without_a_step_that_wants_more_the_thread_has_nothing_to_wake_for(lab: AnnounceLab) -> None:
    lab.add()
    lab.round(VIEW)
    assert lab.announcing.due_s() == math.inf


def test_steps_go_in_their_order_and_one_that_fails_keeps_no_other_from_its_work(lab: AnnounceLab) -> None:
    first, second = lab.add(NodeError("no")), lab.add()
    lab.round(VIEW)
    assert (len(first.views), len(second.views)) == (1, 1)


def test_a_failing_step_is_tried_again_ever_more_rarely(lab: AnnounceLab) -> None:
    """P33."""
    lab.add(NodeError("no"))
    lab.round(VIEW)
    waits_s = []
    for _ in range(12):
        waits_s.append(lab.wait_s)
        lab.round(after_s=lab.wait_s)
    assert waits_s[:4] == [1.5, 3.0, 6.0, 12.0]
    assert waits_s[-1] == RETRY_CAP_S * 1.5


def test_a_change_does_not_cut_the_wait_after_a_failure_short_and_is_not_forgotten(lab: AnnounceLab) -> None:
    """P33: a busy node must not turn back-off into a storm."""
    step = lab.add(NodeError("no"))
    lab.round(VIEW)
    lab.round(OTHER, after_s=0.1)
    assert len(step.views) == 1
    lab.round(after_s=lab.wait_s)
    assert step.views == [VIEW, OTHER]


def test_the_server_sets_how_long_to_wait(lab: AnnounceLab) -> None:
    """P33: Retry-After is the least, and nodes that were told the same do not come back together."""
    lab.add(refusal(ApiTroubleKind.THROTTLED, 429, retry_after_s=20.0))
    lab.round(VIEW)
    assert lab.wait_s == 30.0
    least = AnnounceLab()
    least.announcing = Announcing(least.api, now_s=least.clock, uniform=lambda least, most: least)
    least.add(refusal(ApiTroubleKind.THROTTLED, 429, retry_after_s=20.0))
    least.round(VIEW)
    assert least.wait_s == 20.0


@pytest.mark.parametrize("kind", [ApiTroubleKind.FORBIDDEN, ApiTroubleKind.REFUSED])
def test_what_only_a_person_can_cure_is_tried_rarely(lab: AnnounceLab, kind: ApiTroubleKind) -> None:
    """P36: a later grant is picked up all the same."""
    lab.add(refusal(kind, 403))
    lab.round(VIEW)
    assert lab.wait_s == SLOW_RETRY_S * 1.5


def test_a_failure_is_told_once_for_as_long_as_it_says_the_same(
    lab: AnnounceLab, caplog: pytest.LogCaptureFixture
) -> None:
    step = lab.add(NodeError("no right"), name="the GpuNode")
    with caplog.at_level(logging.INFO):
        lab.round(VIEW)
        lab.round(after_s=2000.0)
        step.answer = NodeError("no answer")
        lab.round(after_s=2000.0)
        step.answer = None
        lab.round(after_s=2000.0)
        lab.round(OTHER)
    assert caplog.messages == ["the GpuNode: no right", "the GpuNode: no answer", "the GpuNode: works again"]


def test_a_fault_of_our_own_is_reported_in_full_and_the_thread_goes_on(
    lab: AnnounceLab, caplog: pytest.LogCaptureFixture
) -> None:
    broken, sound = lab.add(ZeroDivisionError("oh")), lab.add()
    lab.round(VIEW)
    assert "Traceback" in caplog.text
    assert len(sound.views) == 1
    assert not math.isinf(lab.wait_s)
    broken.answer = None
    lab.round(after_s=lab.wait_s)
    assert len(broken.views) == 2


# ---- as a thread


@pytest.fixture
def running() -> Iterator[Callable[[Announcing], threading.Event]]:
    """Runs announcers on threads, and sees that they end."""
    ends: list[tuple[Announcing, threading.Event, threading.Thread]] = []

    def run(announcing: Announcing) -> threading.Event:
        stop = threading.Event()
        thread = threading.Thread(target=announcing.run, args=(stop,), daemon=True)
        thread.start()
        ends.append((announcing, stop, thread))
        return stop

    yield run
    for announcing, stop, thread in ends:
        stop.set()
        announcing.end()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def test_changes_in_a_burst_are_one_look_at_the_last_of_them(
    running: Callable[[Announcing], threading.Event],
) -> None:
    seen: queue.SimpleQueue[NodeView] = queue.SimpleQueue()
    clock = Clock()
    announcing = Announcing(Api(), now_s=clock, uniform=lambda least, most: 0.02 if (least, most) == GATHER_S else most)

    def step(view: NodeView, now_s: float) -> None:
        seen.put(view)

    announcing.add("the test", step)
    running(announcing)
    for number in range(50):
        announcing.look_at(NodeView(driver_problem=str(number)))
    clock.now_s += 1
    assert seen.get(timeout=PATIENCE_S).driver_problem == "49"
    assert seen.empty()


def test_it_sleeps_while_there_is_nothing_to_do_and_stops_at_once(
    running: Callable[[Announcing], threading.Event],
) -> None:
    """The clock counts how often the thread is awake; stopping is what the fixture waits for."""
    readings = 0

    def now_s() -> float:
        nonlocal readings
        readings += 1
        return 0.0

    done = threading.Event()
    announcing = Announcing(Api(), now_s=now_s, uniform=lambda least, most: 0.0)

    def step(view: NodeView, now_s: float) -> None:
        done.set()

    announcing.add("the test", step)
    running(announcing)
    announcing.look_at(VIEW)
    assert done.wait(PATIENCE_S)
    before = readings
    threading.Event().wait(0.3)
    assert readings - before <= 3  # it looks once more, and sleeps


def test_an_error_at_the_end_is_no_news(lab: AnnounceLab, caplog: pytest.LogCaptureFixture) -> None:
    """The connection is closed under a step that waits."""

    def step(view: NodeView, now_s: float) -> None:
        lab.stop.set()
        raise SharerError("the connection broke")

    lab.announcing.add("the test", step)
    with caplog.at_level(logging.INFO):
        lab.round(VIEW)
    assert not caplog.messages
