"""What can happen next to MPS, as a seed decides it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from tests.faults import mps_steps as steps
from tests.faults.mps_steps import MpsStep

Move = Callable[[], Iterator[MpsStep]]


@dataclass(slots=True, kw_only=True)
class MpsModel:
    """What there is of MPS, as far as the next step depends on it."""

    rng: random.Random
    supervisor: bool = True
    hangs: bool = False  # the daemon
    is_away: bool = False  # the driver's control executable

    def moves(self, pods: Sequence[str]) -> list[tuple[Move, float]]:
        """What may come next, and its weight. `pods`: the names of those that are not over."""
        return [
            (self._kill_daemon, 1.2),
            (self._hang_or_free, 2.5 if self.hangs else 0.6),
            (self._take_control, 2.5 if self.is_away else 0.4),
            (self._end_supervisor, 1.2 if self.supervisor else 0.0),
            (self._start_supervisor, 0.0 if self.supervisor else 3.0),
            (partial(self._join, pods), 2.0 if pods else 0.0),
        ]

    def _kill_daemon(self) -> Iterator[MpsStep]:
        yield steps.KillDaemon(self.rng.choice((0, 0, 1, 2, 3)))

    def _hang_or_free(self) -> Iterator[MpsStep]:
        self.hangs = not self.hangs
        yield steps.HangDaemon() if self.hangs else steps.FreeDaemon()

    def _take_control(self) -> Iterator[MpsStep]:
        self.is_away = not self.is_away
        yield steps.TakeControl(self.is_away)

    def _end_supervisor(self) -> Iterator[MpsStep]:
        self.supervisor = False
        yield self.rng.choice((steps.KillSupervisor, steps.KillSupervisor, steps.StopSupervisor))()
        if self.rng.random() < 0.6:
            yield from self._start_supervisor()

    def _start_supervisor(self) -> Iterator[MpsStep]:
        if not self.supervisor:
            self.supervisor = True
            yield steps.StartSupervisor()

    def _join(self, pods: Sequence[str]) -> Iterator[MpsStep]:
        yield steps.JoinDaemon(self.rng.choice(pods))
