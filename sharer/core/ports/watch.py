"""How it is told that a directory has changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Watcher(Protocol):
    """Tells when to look at a directory again."""

    def subscribe(self, directory: str, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` soon after anything in the directory changes, and every few seconds in any case.

        The directory may be missing and may come later. `changed` runs on the watcher's thread: it returns at once, and
        compares for itself, since most calls are news of nothing. Returns the function that ends the subscription.
        """
        ...
