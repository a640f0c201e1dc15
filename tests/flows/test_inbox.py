"""The one writer finds everything that arrived, in order, as soon as there is something."""

from __future__ import annotations

import threading

from sharer.core.ports.driver import XidEvent
from sharer.flows.inbox import Allocated, Hint, Inbox, News
from tests.core.evidence import SHARED, seen

XID = XidEvent(gpu_uuid="GPU-a", gpu_instance_id=None, compute_instance_id=None, xid=79)
GIVEN = Allocated(resource=SHARED, ids=("a", "b"))


def test_everything_arrives_once_and_in_order() -> None:
    inbox = Inbox()
    left: list[News] = [XID, GIVEN, seen(), Hint.START, XID]
    for news in left:
        inbox.put(news)
    assert inbox.wait(0.0) == left
    assert inbox.wait(0.0) == []


def test_a_hint_lies_there_once_until_it_is_taken() -> None:
    """A watch rings for each of 250 pods at the same moment."""
    inbox = Inbox()
    for _ in range(3):
        inbox.put(Hint.CGROUPS)
        inbox.put(Hint.CHECKPOINT)
    assert inbox.wait(0.0) == [Hint.CGROUPS, Hint.CHECKPOINT]
    inbox.put(Hint.CGROUPS)
    assert inbox.wait(0.0) == [Hint.CGROUPS]


def test_a_ring_wakes_and_says_nothing() -> None:
    inbox, woken = Inbox(), threading.Event()

    def wait() -> None:
        if inbox.wait(60.0) == []:
            woken.set()

    waiting = threading.Thread(target=wait)
    waiting.start()
    inbox.ring()
    assert woken.wait(30)
    waiting.join()


def test_a_time_that_is_over_is_not_waited_for() -> None:
    assert Inbox().wait(-5.0) == []
