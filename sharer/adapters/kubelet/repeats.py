"""Say a thing once: a failure that repeats is logged at debug until something else has worked."""

from __future__ import annotations

import logging
import threading

_MOST = 256  # different sentences remembered; texts from outside may differ without end


class Repeats:
    """Which sentences were said since the last `forget`. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._said: set[str] = set()

    def level(self, level: int, sentence: str) -> int:
        """`level` the first time, DEBUG afterwards."""
        with self._lock:
            if sentence in self._said:
                return logging.DEBUG
            if len(self._said) >= _MOST:
                self._said.clear()
            self._said.add(sentence)
            return level

    def forget(self) -> None:
        """Things work: the next failure is news again."""
        with self._lock:
            self._said.clear()
