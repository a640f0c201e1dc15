"""Reading mappings strictly: every key is known, every problem is kept with its place, nothing is guessed.

A reader asks a `Block` for its keys one by one. What a problem leaves without a value gets the default, so that reading
goes on and all problems are told at once; `Problems.refuse` then ends it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from typing import TypeVar

from sharer.core.errors import PolicyError, Problem
from sharer.core.policy.located import LocatedList, LocatedMapping, LocatedNode, LocatedScalar
from sharer.core.policy.values import Reader, describe, is_null, nearest, shown
from sharer.core.values import dataclass

_TOO_SHORT = "the list is empty; it needs at least one entry"

T = TypeVar("T")
D = TypeVar("D")


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """Which keys a format knows, per block: `rules[].match` -> its keys. The document itself is the block ""."""

    blocks: Mapping[str, tuple[str, ...]]
    foreign: Mapping[str, str] = field(default_factory=dict)  # key of some other format -> what to do about it

    def unknown_key(self, block: str, key: str) -> str:
        """What to say about a key that this block does not have (P01)."""
        known = self.blocks[block]
        homes = [other for other, keys in self.blocks.items() if key in keys and other != block]
        homes = [home for home in homes if block and home.startswith(block)] or homes  # rather one further in
        elsewhere = {one: other for other, keys in self.blocks.items() for one in keys if one not in known}
        if key.lower() in {one.lower() for one in known}:
            hint = f"; letter case counts, write {nearest(key, known)!r}."
        elif homes:
            hint = f"; it belongs {' or '.join(map(_title, homes))}."
        elif key in self.foreign:
            hint = f"; {self.foreign[key]}."
        elif near := nearest(key, known):
            hint = f"; did you mean {near!r}?"
        elif near := nearest(key, elsewhere):
            hint = f"; did you mean {near!r}, which belongs {_title(elsewhere[near])}?"
        else:
            hint = "."
        return f"unknown key{hint} Known here: {', '.join(sorted(known))}"


class Problems:
    """Everything that reading one policy brought up."""

    def __init__(self, source: str) -> None:
        self.source = source
        self._problems: list[Problem] = []
        self._warnings: list[Problem] = []

    def problem(self, place: LocatedNode, path: str, message: str) -> None:
        """Something that refuses the policy."""
        self._problems.append(self._at(place, path, message))

    def warning(self, place: LocatedNode, path: str, message: str) -> None:
        """Something accepted that the operator should know."""
        self._warnings.append(self._at(place, path, message))

    def refuse(self) -> None:
        """Raise PolicyError with all problems in the order of the text, if there is one."""
        if self._problems:
            raise PolicyError(in_text_order(self._problems))

    def warnings(self) -> tuple[str, ...]:
        """All warnings in the order of the text, each with its place."""
        return tuple(str(warning) for warning in in_text_order(self._warnings))

    def _at(self, place: LocatedNode, path: str, message: str) -> Problem:
        return Problem(source=self.source, line=place.line, column=place.column, path=path, message=message)


def in_text_order(problems: list[Problem]) -> tuple[Problem, ...]:
    """The problems by line and column; those without a place come first."""
    return tuple(sorted(problems, key=lambda problem: (problem.line or 0, problem.column or 0)))


class Block:
    """One mapping of a policy, with the path it stands at. Unknown keys are problems from the start."""

    def __init__(self, node: LocatedMapping, path: str, kind: str, schema: Schema, problems: Problems) -> None:
        self.node = node
        self.path = path
        self._kind = kind
        self._schema = schema
        self._problems = problems
        self._values = {key.text: value for key, value in node.entries}
        for key, _ in node.entries:
            if key.text not in schema.blocks[kind]:
                problems.problem(key, _join(path, shown_key(key.text)), schema.unknown_key(kind, key.text))

    @classmethod
    def of_document(cls, document: LocatedNode, schema: Schema, problems: Problems) -> Block:
        """The block of the whole document. Raises PolicyError if that is no mapping."""
        if not isinstance(document, LocatedMapping):
            problems.problem(
                document,
                "",
                f"a policy is a mapping with the keys {', '.join(schema.blocks[''])}; found {describe(document)}",
            )
            problems.refuse()
            raise AssertionError("unreachable: there is a problem")
        return cls(document, "", "", schema, problems)

    def has(self, key: str) -> bool:
        """Whether the key is written, with whatever value."""
        return key in self._values

    def problem(self, key: str | None, message: str) -> None:
        """Refuse the policy because of the value of a key, or of the whole block."""
        self._problems.problem(self._place(key), self._path(key), message)

    def warning(self, key: str | None, message: str) -> None:
        """Warn about the value of a key, or about the whole block."""
        self._problems.warning(self._place(key), self._path(key), message)

    def value(self, key: str, read: Reader[T], default: D) -> T | D:
        """The value of a key, or the default where it is absent or a problem."""
        node = self._values.get(key)
        if node is None:
            return default
        try:
            return read(node)
        except ValueError as error:
            self._problems.problem(node, self._path(key), str(error))
            return default

    def needed(self, key: str, read: Reader[T], example: str) -> T | None:
        """The value of a key that must be there; None where it is absent or a problem."""
        if key not in self._values:
            self._problems.problem(self.node, self._path(key), f"is missing; write {key}: {example}")
        return self.value(key, read, None)

    def values(self, key: str, read: Reader[T], default: tuple[T, ...], *, at_least: int = 0) -> tuple[T, ...]:
        """The values of a list in order; one that occurs twice is a problem, and so are fewer than `at_least`."""
        node = self._values.get(key)
        if node is None:
            return default
        if not isinstance(node, LocatedList):
            text = "" if is_null(node) or not isinstance(node, LocatedScalar) else node.text
            cure = f"; write [{text}]" if text or (is_null(node) and at_least == 0) else ""
            self._problems.problem(node, self._path(key), f"expected a list, found {describe(node)}{cure}")
            return default
        if len(node.items) < at_least:
            self._problems.problem(node, self._path(key), _TOO_SHORT)
        found: dict[T, int] = {}
        for index, item in enumerate(node.items):
            try:
                one = read(item)
            except ValueError as error:
                self._problems.problem(item, f"{self._path(key)}[{index}]", str(error))
                continue
            if found.setdefault(one, index) != index:
                message = f"{one} is already in the list, at {key}[{found[one]}]; remove one of them"
                self._problems.problem(item, f"{self._path(key)}[{index}]", message)
        return tuple(found)

    def block(self, key: str) -> Block:
        """The block under a key; an empty one where it is absent or a problem."""
        node = self._values.get(key)
        if node is not None and not isinstance(node, LocatedMapping):
            keys = ", ".join(sorted(self._schema.blocks[_join(self._kind, key)]))
            cure = "; write {} or leave the key out" if isinstance(node, LocatedScalar) and not node.text else ""
            self._problems.problem(node, self._path(key), f"expected a mapping of {keys}; found {describe(node)}{cure}")
        if not isinstance(node, LocatedMapping):
            node = LocatedMapping(entries=(), line=self.node.line, column=self.node.column)
        return Block(node, self._path(key), _join(self._kind, key), self._schema, self._problems)

    def blocks(self, key: str) -> list[Block]:
        """The blocks of a list, without those that are problems; an empty list is a problem too."""
        node = self._values.get(key)
        kind = f"{_join(self._kind, key)}[]"
        if node is None:
            return []
        if not isinstance(node, LocatedList):
            self._problems.problem(
                node, self._path(key), f"expected a list (each entry begins with '- '), found {describe(node)}"
            )
            return []
        if not node.items:
            self._problems.problem(node, self._path(key), _TOO_SHORT)
        found = []
        for index, item in enumerate(node.items):
            path = f"{self._path(key)}[{index}]"
            if isinstance(item, LocatedMapping):
                found.append(Block(item, path, kind, self._schema, self._problems))
            else:
                keys = ", ".join(sorted(self._schema.blocks[kind]))
                self._problems.problem(item, path, f"expected a mapping of {keys}; found {describe(item)}")
        return found

    def _path(self, key: str | None) -> str:
        return self.path if key is None else _join(self.path, key)

    def _place(self, key: str | None) -> LocatedNode:
        return self.node if key is None else self._values.get(key, self.node)


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def shown_key(key: str) -> str:
    """A key as it may stand in a path."""
    return key if re.fullmatch(r"[A-Za-z0-9_./-]{1,60}", key) else shown(key)


def _title(block: str) -> str:
    """Where a block is, for people."""
    return f"under {block}" if block else "at the top level"
