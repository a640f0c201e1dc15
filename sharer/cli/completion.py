"""`kubectl sharer <TAB>`: kubectl calls `kubectl_complete-sharer` with the words so far; the last may be empty.

One line a word, its explanation behind a tab, and at the end a directive: 4 says not to complete file names, 0 to do so
(api-server-facts §7).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click
from click.shell_completion import ShellComplete

from sharer.cli.group import sharer

_FILES, _NO_FILES = ":0", ":4"


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
    plain = [one for one in found if one.type == "plain"]
    lines = [f"{one.value}\t{one.help}" if one.help else one.value for one in plain]
    return [*lines, _NO_FILES if len(plain) == len(found) else _FILES]
