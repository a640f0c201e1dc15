"""Runs `sharer` in this process, as a shell would see it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from click.testing import CliRunner

from sharer.cli.group import sharer


class Ran(NamedTuple):
    """How a command ended."""

    status: int
    out: str
    err: str

    def document(self) -> Any:  # Any: JSON
        return json.loads(self.out)

    def row(self, *cells: str) -> list[str]:
        """The words of the one line of a table that has all these."""
        (line,) = [line for line in self.out.splitlines() if all(cell in line.split() for cell in cells)]
        return line.split()


def run(*arguments: str | Path, stdin: str | None = None) -> Ran:
    result = CliRunner().invoke(sharer, [str(argument) for argument in arguments], input=stdin, prog_name="sharer")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Ran(result.exit_code, result.stdout, result.stderr)


def write_policy(folder: Path, name: str = "policy.yaml", **rule: str | int) -> Path:
    """A policy of one rule for every GPU: `write_policy(tmp_path, slices=4)`."""
    lines: Mapping[str, str | int] = {"match": "{}", "strategy": "time-slicing", **rule}
    path = folder / name
    path.write_text(
        "apiVersion: sharer.dev/v1alpha1\nkind: SharingPolicy\nrules:\n  - "
        + "\n    ".join(f"{key}: {value}" for key, value in lines.items())
        + "\n"
    )
    return path
