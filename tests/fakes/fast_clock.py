"""Time that runs faster for a process of its own, so that what takes minutes is tested in seconds (`fast_clock.c`).

And a wall clock that somebody sets while the process runs, as NTP does after a boot.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from tests.fakes.compiling import shared_library

_SOURCE = Path(__file__).with_name("fast_clock.c")


def fast_clock(rate: int) -> dict[str, str]:
    """The variables for a process of which `rate` seconds pass in each of ours.

    Its deadlines become shorter by as much: on a machine that is busy, leave the shortest that matters 50 ms.
    """
    return {"LD_PRELOAD": _library(), "SHARER_CLOCK_RATE": str(rate)}


class QuickenedClock:
    """The clock of processes that are started with `variables`: true until they have begun, and a test quickens it.

    So nothing of their beginning is cut short, which on a busy machine may take its time.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        file.write_bytes(bytes(16))

    @property
    def variables(self) -> dict[str, str]:
        """For a process of its own."""
        return {"LD_PRELOAD": _library(), "SHARER_CLOCK_PACE": str(self._file)}

    def quicken(self, rate: int) -> None:
        """Let `rate` seconds pass in each of ours from now on. Once."""
        with self._file.open("r+b", buffering=0) as file:  # in place: it is mapped; the rate comes last
            file.write(time.monotonic_ns().to_bytes(8, sys.byteorder))
            file.write(rate.to_bytes(8, sys.byteorder))


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
