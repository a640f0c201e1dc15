"""What arrived for the one writer, and the bell that wakes it."""

from __future__ import annotations

import queue
import threading
import time
from enum import StrEnum

from sharer.core.holders.observations import PodsSeen
from sharer.core.ports.driver import XidEvent
from sharer.core.values import dataclass


class Hint(StrEnum):
    """Something outside has probably changed, and is worth a look."""

    CHECKPOINT = "checkpoint"  # the kubelet wrote it
    CGROUPS = "cgroups"  # a container of a pod that matters started or ended
    START = "start"  # the kubelet is about to start a container
    STEERING = "steering"  # the node's labels or annotations, or the policies, changed in the API


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocated:
    """An Allocate was answered."""

    resource: str
    ids: tuple[str, ...]


News = XidEvent | Allocated | PodsSeen | Hint

GATHER_S = 0.02  # pods start in storms: without this each answer wakes the loop, whose work then delays the next answer


class Inbox:
    """Any thread puts in; the daemon's loop takes out."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[News | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._hinted: set[Hint] = set()

    def put(self, news: News) -> None:
        """Leave news and wake the loop. A hint that still lies there is not left twice."""
        if isinstance(news, Hint):
            with self._lock:
                if news in self._hinted:
                    return
                self._hinted.add(news)
        self._queue.put(news)

    def ring(self) -> None:
        """Wake the loop: something outside may have changed."""
        self._queue.put(None)

    def wait(self, timeout_s: float) -> list[News]:
        """Everything that arrived, in order, as soon as there is something; empty after a ring or the timeout.

        What an answer leaves is not urgent: the kubelet's own books follow it by milliseconds (core/holders/pace). So
        a first `Allocated` is given GATHER_S of company.
        """
        found = []
        try:
            found.append(self._queue.get(timeout=max(timeout_s, 0.0)))
            if isinstance(found[0], Allocated):
                time.sleep(GATHER_S)
            while True:
                found.append(self._queue.get_nowait())
        except queue.Empty:
            with self._lock:
                self._hinted.clear()
            return [news for news in found if news is not None]
