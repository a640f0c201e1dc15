"""A clock for what takes one as a function: time passes only when the test says so."""

from __future__ import annotations


class Clock:
    """Stands still until a test moves `now_s`."""

    def __init__(self, now_s: float = 1000.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s
