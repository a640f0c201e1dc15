"""Where policies come from, and the last good one over a restart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from sharer.core.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyText:
    """A policy before it is read."""

    source: str  # "/etc/sharer/policy.yaml", for messages
    text: bytes
    digest: str  # SHA-256 of the text, hexadecimal


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyShelf:
    """Every policy there is in one place, as they are at one moment."""

    place: str  # "/etc/sharer/policies", "configmap gpu/policies"
    texts: Mapping[str, PolicyText]  # by key
    is_for_every_node: bool = False  # one file: no label chooses
    warnings: tuple[str, ...] = ()


class PolicySource(Protocol):
    """Where policies come from."""

    def shelf(self) -> PolicyShelf:
        """What is there now. Raises NodeError if it cannot be told, saying where it was looked for."""
        ...


class PolicyMemory(Protocol):
    """The last good policy, kept over a restart."""

    def keep(self, good: PolicyText) -> None:
        """Store a text that was accepted; cheap if it is stored. Failing to do so is logged, once, and never raised."""
        ...

    def last_good(self) -> PolicyText | None:
        """The text kept last; None if there is none or it cannot be read."""
        ...
