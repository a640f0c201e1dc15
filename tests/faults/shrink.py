"""From a sequence that fails to one that cannot be made shorter: drop steps for as long as it still fails.

Large pieces first, then smaller ones, down to single steps. Time is part of these sequences, so a piece that is needed
may go unnoticed once in a while, and what comes out is small rather than smallest.
"""

from __future__ import annotations

from collections.abc import Callable


def shrink(steps: int, fails: Callable[[frozenset[int]], bool]) -> frozenset[int]:
    """The numbers, from 1, of the steps that are left. `fails` runs the sequence with only these."""
    kept = list(range(1, steps + 1))
    size = max(1, steps // 2)
    while True:
        start, dropped = 0, False
        while start < len(kept):
            left = kept[:start] + kept[start + size :]
            if fails(frozenset(left)):
                kept, dropped = left, True
            else:
                start += size
        if size == 1 and not dropped:
            return frozenset(kept)
        size = max(1, size // 2)
