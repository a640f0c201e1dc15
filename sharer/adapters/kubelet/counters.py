"""What happened how often, as plain numbers for whoever publishes metrics."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeletCounters:
    """Counts since the process started."""

    registrations: Mapping[tuple[str, str], int]  # (resource, "OK" or the gRPC code's name)
    requests: Mapping[tuple[str, str], int]  # (method, gRPC code's name); our own readiness checks are among them


class Tally:
    """Counts from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._registrations: Counter[tuple[str, str]] = Counter()
        self._requests: Counter[tuple[str, str]] = Counter()

    def registration(self, resource: str, result: str) -> None:
        """One Register call has ended."""
        with self._lock:
            self._registrations[resource, result] += 1

    def request(self, method: str, code: str) -> None:
        """One request of the kubelet was answered; a stream counts when it opens."""
        with self._lock:
            self._requests[method, code] += 1

    def snapshot(self) -> KubeletCounters:
        """The counts now; they do not change afterwards."""
        with self._lock:
            return KubeletCounters(registrations=dict(self._registrations), requests=dict(self._requests))
