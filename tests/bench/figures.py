"""What a figure is, and how to measure so that a busy machine distorts little."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured figure and what it may be at most."""

    name: str
    measured: float
    unit: str
    beside: float | None  # of the bare plugin, or the floor, in the same run
    bound: float | None  # in the same unit; None: no bound is set

    @property
    def holds(self) -> bool:
        return self.bound is None or self.measured <= self.bound


def in_turn(one: Callable[[], float], other: Callable[[], float], count: int) -> tuple[list[float], list[float]]:
    """Both, alternately, so that what else the machine does falls on both. The first tenth is warm-up."""
    pairs = [(one(), other()) for _ in range(count + count // 10)][count // 10 :]
    return [first for first, _ in pairs], [second for _, second in pairs]


def timed(work: Callable[[], object]) -> float:
    start_s = time.perf_counter()
    work()
    return time.perf_counter() - start_s


def p(values: Sequence[float], percent: int) -> float:
    """The value that this share of all values does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, bisect_right(range(len(ordered)), len(ordered) * percent // 100) - 1)]
