"""What was told to the API server and asked of it on behalf of pods, in numbers, for reports and metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from sharer.core.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EventCounts:
    """Events since the agent's start, by reason: "GpuFault"."""

    sent: Mapping[str, int] = field(default_factory=dict)
    failed: Mapping[str, int] = field(default_factory=dict)  # tries that the API server did not take
    suppressed: Mapping[str, int] = field(default_factory=dict)  # what was over before its turn came


@dataclass(frozen=True, slots=True, kw_only=True)
class Evictions:
    """What came of the wish to end pods that stay above their promise."""

    counts: Mapping[str, int] = field(default_factory=dict)
    """By outcome, since the agent's start: "accepted", "blocked" (by a disruption budget), "gone", "failed"."""
    problem: str | None = None  # why none can be evicted, or the last one could not be; None: nothing is in the way
