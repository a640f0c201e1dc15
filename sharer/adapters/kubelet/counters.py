"""What happened how often and took how long, as plain numbers for whoever publishes metrics."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping

from sharer.core.values import dataclass

BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
"""An answer takes about 0.1 ms; 1 s is what the kubelet should ever wait (kubelet-contract §17.27), 2 s PreStart's own
limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeletCounters:
    """Counts since the process started."""

    registrations: Mapping[tuple[str, str], int]  # (resource, "OK" or the gRPC code's name)
    requests: Mapping[tuple[str, str], int]  # (method, gRPC code's name); our own readiness checks are among them
    durations: Mapping[str, tuple[int, ...]]  # method -> answers that took up to each of BOUNDS_S; the last: longer
    took_s: Mapping[str, float]  # method -> all its answers together


class Tally:
    """Counts from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._registrations: Counter[tuple[str, str]] = Counter()
        self._requests: Counter[tuple[str, str]] = Counter()
        self._durations: dict[str, list[int]] = {}
        self._took_s: dict[str, float] = {}

    def registration(self, resource: str, result: str) -> None:
        """One Register call has ended."""
        with self._lock:
            self._registrations[resource, result] += 1

    def request(self, method: str, code: str, took_s: float | None = None) -> None:
        """One request of the kubelet was answered; a stream counts when it opens, and takes no time."""
        with self._lock:
            self._requests[method, code] += 1
            if took_s is not None:
                sizes = self._durations.get(method)
                if sizes is None:
                    sizes = self._durations[method] = [0] * (len(BOUNDS_S) + 1)
                sizes[bisect_left(BOUNDS_S, took_s)] += 1
                self._took_s[method] = self._took_s.get(method, 0.0) + took_s

    def snapshot(self) -> KubeletCounters:
        """The counts now; they do not change afterwards."""
        with self._lock:
            return KubeletCounters(
                registrations=dict(self._registrations),
                requests=dict(self._requests),
                durations={method: tuple(sizes) for method, sizes in self._durations.items()},
                took_s=dict(self._took_s),
            )
