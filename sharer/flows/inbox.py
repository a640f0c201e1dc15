"""What arrived for the one writer, and the bell that wakes it."""

from __future__ import annotations

import queue

from sharer.core.ports import XidEvent


class Inbox:
    """Any thread puts in; the daemon's loop takes out."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[XidEvent | None] = queue.SimpleQueue()

    def put(self, event: XidEvent) -> None:
        """Leave an event and wake the loop."""
        self._queue.put(event)

    def ring(self) -> None:
        """Wake the loop: something outside may have changed."""
        self._queue.put(None)

    def wait(self, timeout_s: float) -> list[XidEvent]:
        """Everything that arrived, in order, as soon as there is something; empty after a ring or the timeout."""
        events = []
        try:
            events.append(self._queue.get(timeout=timeout_s))
            while True:
                events.append(self._queue.get_nowait())
        except queue.Empty:
            return [event for event in events if event is not None]
