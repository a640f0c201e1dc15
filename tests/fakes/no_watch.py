"""A `core.ports.watch.Watcher` for what is read only when a test reads it."""

from __future__ import annotations

from collections.abc import Callable


class NoWatch:
    """Never tells of a change."""

    def subscribe(self, directory: str, changed: Callable[[], None]) -> Callable[[], None]:
        return lambda: None
