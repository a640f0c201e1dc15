"""A text's structure together with its places: what `adapters/yaml_text` hands to the readers of policies.

A scalar keeps the text that was written and whether it was in quotes, so that a reader judges what the operator typed,
never what a YAML library made of it (`010` is not 8, `yes` is not a boolean).
"""

from __future__ import annotations

from sharer.core.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LocatedScalar:
    """One value or key."""

    text: str  # escapes resolved; "" for a value left out
    quoted: bool  # in quotes or as a block (| or >): surely text
    line: int  # from 1
    column: int  # from 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LocatedList:
    """A list, placed where it begins."""

    items: tuple[LocatedNode, ...]
    line: int
    column: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LocatedMapping:
    """A mapping, placed where it begins. No key occurs twice."""

    entries: tuple[tuple[LocatedScalar, LocatedNode], ...]
    line: int
    column: int


LocatedNode = LocatedScalar | LocatedList | LocatedMapping
