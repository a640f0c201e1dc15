"""`kubectl sharer <TAB>`: kubectl calls `kubectl_complete-sharer` with the words so far; the last may be empty.

One line a word, its explanation behind a tab, and at the end a directive: 4 says not to complete file names
(api-server-facts §7).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click
from click.shell_completion import ShellComplete

from sharer.cli.group import sharer

_NO_FILES = ":4"


def complete() -> None:
    """Print what could follow the words on the command line."""
    for line in completions(sys.argv[1:]):
        click.echo(line)


def completions(words: Sequence[str]) -> list[str]:
    """The lines for kubectl.

    >>> completions(["report", "--output", "w"])
    ['wide', ':4']
    """
    *before, incomplete = words or [""]
    found = ShellComplete(sharer, {}, "sharer", "_SHARER_COMPLETE").get_completions(before, incomplete)
    return [f"{one.value}\t{one.help}" if one.help else one.value for one in found] + [_NO_FILES]
