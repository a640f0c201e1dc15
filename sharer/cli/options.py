"""Options that several commands share."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from sharer.adapters.documents import Document, to_json, to_yaml

FILE = click.Path(readable=False)
PATH = click.Path(path_type=Path, readable=False)
"""What is named. click would look whether it can be read, also at a default that nobody needs; we say it better."""

_Command = TypeVar("_Command", bound=Callable[..., Any])


class Output(StrEnum):
    """How a result is printed."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    CSV = "csv"


def output_option(*choices: Output) -> Callable[[_Command], _Command]:
    """`-o`: the first choice is the default."""
    return click.option(
        "-o", "--output", type=click.Choice([choice.value for choice in choices]), default=choices[0].value,
        callback=lambda _context, _option, value: Output(value), show_default=True, help="How to print the result.",
    )  # fmt: skip


def command_line(context: click.Context) -> str:
    """The command as it was given, for a shell."""
    words = [context.command_path]
    for option in context.command.params:
        if context.get_parameter_source(option.name or "") is ParameterSource.COMMANDLINE:
            value = context.params[option.name or ""]
            if isinstance(value, bool):
                words.append((option.opts if value else option.secondary_opts)[0])
            else:
                for one in value if isinstance(value, tuple) else (value,):
                    words += [option.opts[-1], shlex.quote(str(one))]
    return " ".join(words)


def print_document(document: Document, output: Output) -> None:
    """Print a whole document as JSON or YAML."""
    click.echo(to_json(document) if output is Output.JSON else to_yaml(document), nl=False)


def run_dir_option(command: _Command) -> _Command:
    """`--run-dir`: where the agent of this node has its socket."""
    return click.option(
        "--run-dir", type=PATH, default=Path("/run/sharer"), show_default=True, metavar="DIR",
        envvar="SHARER_AGENT_RUN_DIR", help="The agent's --run-dir, where its socket is.",
    )(command)  # fmt: skip


def driver_library_option(command: _Command) -> _Command:
    """`--driver-library` and `--host-root`: where this node's driver is."""
    for option in (
        click.option("--host-root", type=PATH, default=Path("/"), show_default=True,
                     envvar="SHARER_AGENT_HOST_ROOT",
                     help="Where this process sees the host's /, in which the driver is looked for."),
        click.option("--driver-library", type=PATH, metavar="FILE",
                     envvar="SHARER_AGENT_DRIVER_LIBRARY",
                     help="The driver's libnvidia-ml.so.1. Default: looked for in the usual folders."),
    ):  # fmt: skip
        command = option(command)
    return command
