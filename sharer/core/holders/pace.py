"""When to ask the kubelet and the GPUs who is there: soon after a hint, seldom while nothing happens.

podresources has one limit for all clients of a node (kubelet-contract §12), so `List` is asked once a second on average
and never twice within 200 ms. A hint (an Allocate, a written checkpoint, a pod that ends) is worth a burst of three:
the first answer may be too early, and a slice is free only when two in a row are without it.
"""

from __future__ import annotations

import math

from sharer.core.values import dataclass, replace

BURST = 3
GAP_S = 0.2  # between two calls, whatever happens
SETTLE_S = 0.03  # a hint runs ahead of the kubelet's own books by some milliseconds (runtime-facts 54)
PER_SECOND = 1.0  # calls, in the long run
SAVED = 6.0  # calls that a quiet time leaves for hints
RESERVE = 3.0  # of these, what calls without a hint leave
CGROUPS_GAP_S = 0.1  # a storm of pods that end is read in steps: a reading takes 2 to 5 ms for 250 pods


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """What was asked when, and what is still to be asked. Times are seconds on one clock."""

    asked_s: float | None = None  # the last call; None: none yet
    saved: float = SAVED  # calls in reserve at that time
    burst: int = 0  # calls that hints want and that are still to come
    hinted_s: float = 0.0  # when the last hint came
    cgroups_s: float = -math.inf  # when cgroups were read last
    cgroups_hinted: bool = False  # whether they want to be read again

    def hinted(self, now_s: float, calls: int = BURST) -> Pace:
        """Something happened: so many calls are worth it, or more if they were anyway."""
        return replace(self, burst=max(self.burst, calls), hinted_s=now_s)

    def asking(self, now_s: float) -> Pace:
        """A call is made now."""
        return replace(self, asked_s=now_s, saved=self._saved(now_s) - 1.0, burst=max(0, self.burst - 1))

    def hinted_at_cgroups(self) -> Pace:
        """Something happened in a cgroup."""
        return replace(self, cgroups_hinted=True)

    def reading_cgroups(self, now_s: float) -> Pace:
        """Cgroups are read now."""
        return replace(self, cgroups_s=now_s, cgroups_hinted=False)

    def due_s(self, every_s: float) -> float:
        """When the next call is due, if one is wanted every so many seconds without any hint."""
        if self.asked_s is None:
            return 0.0
        due_s = max(self.asked_s + every_s, self._when_saved(1.0 + RESERVE))
        if self.burst > 0:
            due_s = min(due_s, max(self.hinted_s + SETTLE_S, self._when_saved(1.0)))
        return max(due_s, self.asked_s + GAP_S)

    def cgroups_due_s(self) -> float:
        """When cgroups are to be read for a hint alone; infinite: there was none."""
        return self.cgroups_s + CGROUPS_GAP_S if self.cgroups_hinted else math.inf

    def _saved(self, now_s: float) -> float:
        passed_s = 0.0 if self.asked_s is None else now_s - self.asked_s
        return min(SAVED, self.saved + passed_s * PER_SECOND)

    def _when_saved(self, calls: float) -> float:
        """When so many calls are in reserve."""
        missing = max(0.0, calls - self.saved)
        return (self.asked_s or 0.0) + missing / PER_SECOND
