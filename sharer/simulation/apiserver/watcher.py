"""One watch: what it is to be sent, in order, and how it is made to end."""

from __future__ import annotations

import threading
from collections import deque
from enum import Enum

import msgspec

from sharer.simulation.apiserver.kinds import Kind
from sharer.simulation.apiserver.selectors import Select
from sharer.simulation.apiserver.statuses import Failure, Object

MOST_WAITING = 10_000  # events; a client that reads more slowly than that loses its watch, as on a real server


class Ending(Enum):
    """How a watch in progress is interrupted."""

    CLEAN = "the stream ends properly, as at its timeout"
    CUT = "the connection breaks in the middle of a line"
    HALF_LINE = "a proxy ends the stream properly, in the middle of a line"
    RESET = "the connection is reset"
    SILENT = "the connection stays open and carries nothing any more"


class Watcher:
    """The queue between the store and one stream."""

    def __init__(self, kind: Kind, namespace: str | None, select: Select, fields: str) -> None:
        self.kind = kind
        self.namespace = namespace
        self.select = select
        self.fields = fields  # the field selector, for people
        self.since = 0
        self.is_served = False  # its request was answered; before that, nobody should count on it
        self._changed = threading.Condition()
        self._waiting: deque[bytes | Ending] = deque()

    def tell(self, event: str, raw: bytes) -> None:
        """Queue an event about an object."""
        self.send(b'{"type":"%b","object":%b}\n' % (event.encode(), raw))

    def send(self, line: bytes) -> None:
        """Queue bytes as they are."""
        self._queue(line)

    def refuse(self, failure: Failure) -> None:
        """Queue an ERROR event, after which the stream ends. The HTTP status is 200 all the same."""
        self.tell("ERROR", msgspec.json.encode(failure.status))
        self.end(Ending.CLEAN)

    def bookmark(self, version: int, *, ends_initial_events: bool) -> None:
        """Queue a BOOKMARK."""
        metadata: Object = {"resourceVersion": str(version), "creationTimestamp": None}
        if ends_initial_events:
            metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
        obj = {"kind": self.kind.kind, "apiVersion": self.kind.api_version, "metadata": metadata}
        self.tell("BOOKMARK", msgspec.json.encode(obj))

    def end(self, ending: Ending) -> None:
        """Interrupt the stream after what is queued."""
        self._queue(ending)

    def next(self, timeout_s: float) -> bytes | Ending | None:
        """The next line to send, or how to end; None after the timeout."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting, max(timeout_s, 0.0))
            return self._waiting.popleft() if self._waiting else None

    def ending(self) -> Ending | None:
        """How the stream was to end, if it was, whatever should have been sent before."""
        with self._changed:
            return next((item for item in self._waiting if isinstance(item, Ending)), None)

    def _queue(self, item: bytes | Ending) -> None:
        with self._changed:
            if len(self._waiting) >= MOST_WAITING:
                self._waiting.clear()
                item = Ending.CLEAN
            self._waiting.append(item)
            self._changed.notify()
