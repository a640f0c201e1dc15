"""Tables of any length: 40,000 lines in a second, where a table with wrapped cells would take a minute.

In a terminal a line stays within its width: first the columns that matter least are left out, then the longest texts
are cut. Numbers are never cut. Without a terminal nothing is left out or cut.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

import click

from sharer.cli.tables import Cell
from sharer.core.values import dataclass

_GAP = "  "
_LEAST = 12  # characters that a text keeps
_CHUNK = 1000  # lines that are written at a time
Paint = Callable[[str, str], str | None]
"""From a column's name and a cell's text to a colour; None: no colour."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How a table may be made narrower."""

    width: int | None  # of a line; None: as wide as it needs
    left_out: tuple[str, ...] = ()  # columns that may be left out, those that matter least first
    cut: tuple[str, ...] = ()  # columns of texts that may be cut


def terminal_width() -> int | None:
    """How wide a line may be; None: it is not a terminal that is written to."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def print_long_table(
    columns: Sequence[str], rows: Callable[[], Iterator[Sequence[Cell]]], layout: Layout, paint: Paint
) -> None:
    """Print a table. Columns of numbers are aligned to the right.

    `rows` is called twice, to measure and to print: a large fleet's cells are not to lie in memory.
    """
    texts, numbers = [False] * len(columns), [False] * len(columns)
    widths = [len(name) for name in columns]
    for row in rows():
        for number, cell in enumerate(row):
            texts[number] |= isinstance(cell, str)
            numbers[number] |= isinstance(cell, int)
            widths[number] = max(widths[number], len(_text(cell)))
    numeric = [some and not other for some, other in zip(numbers, texts, strict=True)]
    shown = _shown(columns, widths, layout)
    _narrow(columns, widths, shown, layout)
    click.echo(_line(columns, columns, widths, numeric, shown, lambda _name, _text: "bold"))
    lines = (_line(columns, [_text(cell) for cell in row], widths, numeric, shown, paint) for row in rows())
    while chunk := "\n".join(islice(lines, _CHUNK)):
        click.echo(chunk)


def _text(cell: Cell) -> str:
    return "-" if cell is None else str(cell)


def _total(widths: Sequence[int], shown: Sequence[int]) -> int:
    return sum(widths[number] for number in shown) + len(_GAP) * (len(shown) - 1)


def _floor(columns: Sequence[str], widths: Sequence[int], number: int, layout: Layout) -> int:
    """How narrow a column can become."""
    name = columns[number]
    return min(widths[number], max(_LEAST, len(name))) if name in layout.cut else widths[number]


def _shown(columns: Sequence[str], widths: Sequence[int], layout: Layout) -> list[int]:
    shown = list(range(len(columns)))
    if layout.width is None:
        return shown
    floors = [_floor(columns, widths, number, layout) for number in shown]
    for name in layout.left_out:
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


def _line(
    columns: Sequence[str],
    row: Sequence[str],
    widths: Sequence[int],
    numeric: Sequence[bool],
    shown: Sequence[int],
    paint: Paint,
) -> str:
    cells = []
    for number in shown:
        text, width = row[number], widths[number]
        if len(text) > width:
            text = text[: width - 1] + "…"
        padded = text.rjust(width) if numeric[number] else text.ljust(width)
        if number == shown[-1]:
            padded = padded.rstrip()
        style = paint(columns[number], row[number])
        cells.append(padded if style is None else _styled(padded, style))
    return _GAP.join(cells)


def _styled(text: str, style: str) -> str:
    return click.style(text, bold=True) if style == "bold" else click.style(text, fg=style)
