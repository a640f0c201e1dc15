"""Time that runs faster for a process of its own, so that what takes minutes is tested in seconds (`fast_clock.c`).

And a wall clock that somebody sets while the process runs, as NTP does after a boot.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.fakes.compiling import shared_library

_SOURCE = Path(__file__).with_name("fast_clock.c")


def fast_clock(rate: int) -> dict[str, str]:
    """The variables for a process of which `rate` seconds pass in each of ours.

    Its deadlines become shorter by as much: on a machine that is busy, leave the shortest that matters 50 ms.
    """
    return {"LD_PRELOAD": _library(), "SHARER_CLOCK_RATE": str(rate)}


class JumpingClock:
    """The wall clock of processes that are started with `variables`. It is true until it is told to jump."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._write(0.0)

    @property
    def variables(self) -> dict[str, str]:
        """For a process of its own."""
        return {"LD_PRELOAD": _library(), "SHARER_CLOCK_JUMP": str(self._file)}

    def jump_to(self, ahead_s: float) -> None:
        """Be so many seconds ahead of the true time from now on; behind it, if negative."""
        self._write(ahead_s)

    def _write(self, ahead_s: float) -> None:
        with self._file.open("r+b" if self._file.exists() else "wb") as file:  # in place: it is mapped
            file.write(round(ahead_s * 1e9).to_bytes(8, sys.byteorder, signed=True))


def _library() -> str:
    return str(shared_library("fast_clock.so", [_SOURCE]))
