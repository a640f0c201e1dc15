"""The request log: what arrived, in order, and what it got."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import replace

from sharer.simulation.apiserver.records import Request


class Journal:
    """Keeps the latest requests; counts all of them."""

    def __init__(self, most: int) -> None:
        self._changed = threading.Condition()
        self._most = most
        self._requests: deque[Request] = deque()
        self._counts: Counter[tuple[str, str | None]] = Counter()
        self._arrived = 0

    def arrived(self, request: Request) -> Request:
        """Note a request; returns it with its number."""
        with self._changed:
            self._arrived += 1
            request = replace(request, number=self._arrived)
            self._counts[request.verb, request.resource] += 1
            self._requests.append(request)
            if len(self._requests) > self._most:
                self._requests.popleft()
            self._changed.notify_all()
            return request

    def answered(self, request: Request, code: int) -> None:
        """Note what a request gets."""
        with self._changed:
            place = request.number - self._arrived + len(self._requests) - 1
            if place >= 0:
                self._requests[place] = replace(request, code=code)
            self._changed.notify_all()

    def changed(self) -> None:
        """Something that somebody may wait for has happened."""
        with self._changed:
            self._changed.notify_all()

    def requests(self, verb: str | None = None, resource: str | None = None) -> tuple[Request, ...]:
        """The latest requests, oldest first."""
        with self._changed:
            return tuple(
                request
                for request in self._requests
                if verb in (None, request.verb) and resource in (None, request.resource)
            )

    def counts(self) -> Counter[tuple[str, str | None]]:
        """How many requests there were of each (verb, resource)."""
        with self._changed:
            return Counter(self._counts)

    def wait(self, happened: Callable[[], bool], timeout_s: float, what: str) -> None:
        """Wait until this is true. Raises TimeoutError that names it."""
        with self._changed:
            if not self._changed.wait_for(happened, timeout_s):
                raise TimeoutError(f"the simulated API server waited {timeout_s:g} s in vain for {what}")
