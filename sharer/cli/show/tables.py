"""Tables for people: as wide as the terminal there, as wide as they need in a pipe, so that a line stays a line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from sharer.core.quantities import format_bytes
from sharer.core.report.plan import Offered

if TYPE_CHECKING:
    from rich.table import Table

Cell = str | int | None  # None: nothing to say


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
    """Print a table. Columns of numbers are aligned to the right."""
    from rich.table import Table  # here, because most uses of the command line draw no table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for number, name in enumerate(columns):
        numeric = all(isinstance(row[number], int | None) for row in rows)
        table.add_column(name, justify="right" if numeric and rows else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(cell_text, row))
    echo_table(table)


def echo_table(table: Table) -> None:
    """Print a table of rich's, without blanks at the end of a line."""
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = 10_000
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().splitlines():
        click.echo(line.rstrip())


def print_list(title: str, lines: Sequence[str]) -> None:
    """Print some sentences below a title; nothing if there are none."""
    if lines:
        click.echo(f"\n{title}:")
        for line in lines:
            for part in line.splitlines():
                click.echo(f"  {printable(part)}")


def cell_text(cell: Cell) -> str:
    """What stands in a cell."""
    return "-" if cell is None else printable(str(cell))


def amount(amount_bytes: int | None) -> Cell:
    """An amount of memory; nothing where none is promised, or nobody tells."""
    return None if amount_bytes is None else format_bytes(amount_bytes)


def product_name(product: str | None, mig_profile: str | None) -> str:
    """What a GPU or MIG device is.

    >>> product_name("NVIDIA A100-SXM4-80GB", "1g.10gb"), product_name(None, None)
    ('NVIDIA A100-SXM4-80GB 1g.10gb', 'unknown')
    """
    return (product or "unknown") + ("" if mig_profile is None else f" {mig_profile}")


def printable(text: str) -> str:
    r"""The text without what would steer a terminal: names and reasons come from nodes, pods and drivers.

    >>> printable("train\x1b[2J"), printable("two\nlines")
    ('train�[2J', 'two lines')
    """
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else " " if sign.isspace() else "�" for sign in text)


def count(number: int, word: str) -> str:
    """A number of things, for people.

    >>> count(1, "GPU"), count(8, "slice"), count(0, "GPU")
    ('1 GPU', '8 slices', 'no GPUs')
    """
    return f"{number or 'no'} {word}{'' if number == 1 else 's'}"


def offered_text(offered: Offered | None) -> str:
    """What a device offers, in a cell: "4 × 20 GiB, time-slicing"."""
    if offered is None:
        return "nothing"
    memory = "no limit" if offered.promise_bytes is None else format_bytes(offered.promise_bytes)
    share = "" if offered.compute_percent is None else f", {offered.compute_percent} %"
    return f"{offered.slices} × {memory}{share}, {offered.strategy}"
