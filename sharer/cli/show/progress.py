"""One line on standard error about something that takes longer than a moment.

In a terminal it counts on and is gone in the end; elsewhere it is written once, so that a log stays a log.
"""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType
from typing import Self, TextIO

AFTER_S = 0.2  # starting and importing took as long again: something is seen within a second
_EVERY_S = 0.1


class Progress:
    """`with Progress("reading") as progress: …`; `tell` is for any thread."""

    def __init__(self, what: str, stream: TextIO | None = None, *, after_s: float = AFTER_S) -> None:
        self._what = what
        self._stream = stream if stream is not None else sys.stderr
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}
        self._shown_s: float | None = None  # None: nothing was shown yet
        self._timer = threading.Timer(after_s, self._begin)
        self._timer.daemon = True

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        with self._lock:
            if self._shown_s is not None and self._stream.isatty():
                self._stream.write("\r\x1b[K")
                self._stream.flush()

    def tell(self, what: str, count: int) -> None:
        """How many of something there are so far."""
        with self._lock:
            self._counts[what] = count
            if self._shown_s is not None and self._stream.isatty() and time.monotonic() > self._shown_s + _EVERY_S:
                self._show()

    def _begin(self) -> None:
        with self._lock:
            self._show()

    def _show(self) -> None:
        self._shown_s = time.monotonic()
        counts = ", ".join(f"{count:,} {what}" for what, count in self._counts.items())
        text = self._what + (f": {counts}" if counts else "")
        self._stream.write(f"\r{text}\x1b[K" if self._stream.isatty() else text + " …\n")
        self._stream.flush()
