"""Tables of any length: 40,000 lines in a second, where a table with wrapped cells would take a minute.

In a terminal a line stays within its width: first the columns that matter least are left out, then the longest texts
are cut. Numbers are never cut. Without a terminal nothing is left out or cut.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from itertools import islice

import click

from sharer.cli.show.tables import Cell, cell_text
from sharer.core.values import dataclass

_GAP = "  "
_CHUNK = 1000  # lines that are written at a time
Paint = Callable[[str, str], str | None]
"""From a column's name and a cell's text to a colour; None: no colour."""
Shorten = Callable[[str, int], str]
"""Makes a text that is too long as long as this."""


def at_the_end(text: str, width: int) -> str:
    """For what can be told by how it begins.

    >>> at_the_end("default/train, default/other", 12)
    'default/tra…'
    """
    return f"{text[: width - 1]}…"


def in_the_middle(text: str, width: int) -> str:
    """For what differs in the end.

    >>> in_the_middle("nvidia.com/gpu.shared", 16)
    'nvidia.c….shared'
    """
    end = (width - 1) // 2
    return f"{text[: width - 1 - end]}…{text[len(text) - end :]}"


def node_name(text: str, width: int) -> str:
    """For nodes: their domain is the same, and those of a pool differ in the end of their names.

    >>> node_name("ip-10-0-123-45.eu-central-1.compute.internal", 16), node_name("gke-a100-pool-7d3f9c2a-x8zp", 16)
    ('ip-10-0-123-45.…', 'gke-a100…2a-x8zp')
    """
    host, _, _ = text.partition(".")
    return at_the_end(text, width) if len(host) < width else in_the_middle(host, width)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How a table may be made narrower."""

    width: int | None  # of a line; None: as wide as it needs
    left_out: tuple[str, ...] = ()  # columns that may be left out, those that matter least first
    cut: Mapping[str, tuple[int, Shorten]] = field(default_factory=dict)
    """Columns of texts that may be cut -> how many characters they keep at least, and how they are cut."""


def terminal_width() -> int | None:
    """How wide a line may be; None: it is not a terminal that is written to."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def print_long_table(
    columns: Sequence[str], rows: Callable[[], Iterator[Sequence[Cell]]], layout: Layout, paint: Paint
) -> tuple[str, ...]:
    """Print a table. Columns of numbers are aligned to the right. Returns the columns that were left out.

    `rows` is called twice, to measure and to print: a large fleet's cells are not to lie in memory.
    """
    texts, numbers = [False] * len(columns), [False] * len(columns)
    widths = [len(name) for name in columns]
    for row in rows():
        for number, cell in enumerate(row):
            texts[number] |= isinstance(cell, str)
            numbers[number] |= isinstance(cell, int)
            widths[number] = max(widths[number], len(cell_text(cell)))
    numeric = [some and not other for some, other in zip(numbers, texts, strict=True)]
    shown = _shown(columns, widths, layout)
    _narrow(columns, widths, shown, layout)
    line = _Lines(columns, widths, numeric, shown, layout)
    click.echo(line.text(columns, lambda _name, _text: "bold"))
    lines = (line.text(list(map(cell_text, row)), paint) for row in rows())
    while chunk := "\n".join(islice(lines, _CHUNK)):
        click.echo(chunk)
    return tuple(name for number, name in enumerate(columns) if number not in shown)


def _total(widths: Sequence[int], shown: Sequence[int]) -> int:
    return sum(widths[number] for number in shown) + len(_GAP) * (len(shown) - 1)


def _floor(columns: Sequence[str], widths: Sequence[int], number: int, layout: Layout) -> int:
    """How narrow a column can become."""
    name = columns[number]
    return min(widths[number], max(layout.cut[name][0], len(name))) if name in layout.cut else widths[number]


def _shown(columns: Sequence[str], widths: Sequence[int], layout: Layout) -> list[int]:
    shown = list(range(len(columns)))
    if layout.width is None:
        return shown
    floors = [_floor(columns, widths, number, layout) for number in shown]
    for name in (name for name in layout.left_out if name in columns):
        if _total(floors, shown) <= layout.width:
            break
        shown.remove(columns.index(name))
    return shown


def _narrow(columns: Sequence[str], widths: list[int], shown: Sequence[int], layout: Layout) -> None:
    """Take from the widest of the texts, as far as they go."""
    if layout.width is None:
        return
    while (too_much := _total(widths, shown) - layout.width) > 0:
        able = [number for number in shown if widths[number] > _floor(columns, widths, number, layout)]
        if not able:
            return
        widest = max(able, key=lambda number: widths[number])
        next_width = max((widths[number] for number in able if widths[number] < widths[widest]), default=0)
        least = max(_floor(columns, widths, widest, layout), next_width - 1)
        widths[widest] = max(least, widths[widest] - too_much)


class _Lines:
    """Puts cells together."""

    def __init__(
        self,
        columns: Sequence[str],
        widths: Sequence[int],
        numeric: Sequence[bool],
        shown: Sequence[int],
        layout: Layout,
    ) -> None:
        self._columns, self._widths, self._numeric, self._shown = columns, widths, numeric, shown
        self._shorten = [layout.cut[name][1] if name in layout.cut else at_the_end for name in columns]

    def text(self, row: Sequence[str], paint: Paint) -> str:
        """One line."""
        cells = []
        for number in self._shown:
            text, width = row[number], self._widths[number]
            if len(text) > width:
                text = self._shorten[number](text, width)
            padded = text.rjust(width) if self._numeric[number] else text.ljust(width)
            if number == self._shown[-1]:
                padded = padded.rstrip()
            style = paint(self._columns[number], row[number])
            cells.append(padded if style is None else _styled(padded, style))
        return _GAP.join(cells)


def _styled(text: str, style: str) -> str:
    return click.style(text, bold=True) if style == "bold" else click.style(text, fg=style)
