"""How GPUs get into containers on this node, and sharer's own CDI specs."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Protocol

from sharer.core.device_id import DeviceId
from sharer.core.edits import NodeFacts
from sharer.core.inventory import Inventory


class FactsReader(Protocol):
    """How GPUs get into a container on this node."""

    def read(self, inventory: Inventory) -> NodeFacts:
        """Look at device nodes, CDI specs and paths. What is missing is said in the facts, never raised."""
        ...


class SliceSpecs(Protocol):
    """sharer's own CDI specs. Containers that were given one of their names need it at every start, also without us."""

    @property
    def is_behind(self) -> bool:
        """Whether something could not be written, and should be tried again though nothing else has changed."""
        ...

    @property
    def has_leftovers(self) -> bool:
        """Whether `keep_only` could not take everything away: call it again, though nothing else has changed."""
        ...

    def write(self, ids: Iterable[DeviceId], facts: NodeFacts) -> NodeFacts:
        """Have a spec in place for each of these slices; call it before any of them is listed. Nothing is taken away.

        Returns the facts as they are now: only devices whose slices are all in place are marked so, and what could not
        be written is said in the warnings, never raised. Cheap when nothing changed.
        """
        ...

    def keep_only(self, ids: Collection[DeviceId]) -> None:
        """Take away every spec, those of earlier runs too, but for these slices.

        What resists is said once in the log, and in the warnings of the facts that are read or written next.
        """
        ...
