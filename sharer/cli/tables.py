"""Tables for people: as wide as the terminal there, as wide as they need in a pipe, so that a line stays a line."""

from __future__ import annotations

from collections.abc import Sequence

import click

Cell = str | int | None  # None: nothing to say


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
    """Print a table. Columns of numbers are aligned to the right."""
    from rich.console import Console  # here, because most uses of the command line draw no table
    from rich.table import Table

    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = 10_000
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for number, name in enumerate(columns):
        numeric = all(isinstance(row[number], int | None) for row in rows)
        table.add_column(name, justify="right" if numeric and rows else "left", overflow="fold")
    for row in rows:
        table.add_row(*("-" if cell is None else str(cell) for cell in row))
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().splitlines():
        click.echo(line.rstrip())


def print_list(title: str, lines: Sequence[str]) -> None:
    """Print some sentences below a title; nothing if there are none."""
    if lines:
        click.echo(f"\n{title}:")
        for line in lines:
            click.echo(f"  {line}")


def count(number: int, word: str) -> str:
    """A number of things, for people.

    >>> count(1, "GPU"), count(8, "slice"), count(0, "GPU")
    ('1 GPU', '8 slices', 'no GPUs')
    """
    return f"{number or 'no'} {word}{'' if number == 1 else 's'}"
