"""What was asked how often, and what failed, as plain numbers for whoever publishes metrics."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping

from sharer.core.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeCounters:
    """Counts since the process started."""

    requests: Mapping[tuple[str, str], int]  # (verb, resource)
    errors: Mapping[tuple[str, str], int]  # (verb, HTTP status or "none")


class Tally:
    """Counts from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: Counter[tuple[str, str]] = Counter()
        self._errors: Counter[tuple[str, str]] = Counter()

    def request(self, verb: str, resource: str) -> None:
        """A request is sent."""
        with self._lock:
            self._requests[verb, resource] += 1

    def error(self, verb: str, code: int | None) -> None:
        """A request, or the stream that it opened, failed."""
        with self._lock:
            self._errors[verb, "none" if code is None else str(code)] += 1

    def snapshot(self) -> KubeCounters:
        """The counts now; they do not change afterwards."""
        with self._lock:
            return KubeCounters(requests=dict(self._requests), errors=dict(self._errors))
