"""`sharer` itself: which commands there are, and what their errors mean to a shell."""

from __future__ import annotations

import errno
import importlib
import importlib.metadata
import io
import os
import sys
from typing import Any

import click

from sharer.core.errors import InputError, SharerError

COMMANDS = {
    "agent": (".group:agent", "Share this node's GPUs until told to stop."),
    "devices": (".devices:devices", "Show the GPUs and MIG devices of this node."),
    "mps": (".mps:mps", "Supervise this node's MPS control daemons until told to stop."),
    "doctor": (".doctor.command:doctor", "Look at everything that sharing needs, and say what to do."),
    "policy": (".policy.command:policy", "Check, plan, convert and roll out sharing policies."),
    "report": (".report.command:report", "Show GPUs, slices, owners and policy, of this node or of a cluster."),
    "simulate": (".simulate:simulate", "Run the agent on a simulated node, or plan which pods fit."),
}
"""Name -> where the command is, from this package on, and its help in one line. Listing them imports none of them."""

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})

EPILOG = """\b
Exit status: 0 fine, 1 failed or a check found something, 2 wrong input, 3 partial data.
Example: sharer simulate --gpus 2xA100-80GB"""


class LazyGroup(click.Group):
    """A group that imports a command when it is used. An error of ours ends it with one sentence, not a traceback."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Their names, in the order of help."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name."""
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        command = getattr(importlib.import_module(module, __package__), name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does it; the nearest name is looked for here, because click knows only what is imported."""
        if args[0] not in COMMANDS and not args[0].startswith("-") and not ctx.resilient_parsing:
            import difflib

            for near in difflib.get_close_matches(args[0], COMMANDS, n=1):
                ctx.fail(f"No such command {args[0]!r}. Did you mean {near!r}?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list in `sharer --help`."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, help_line) for name, (_, help_line) in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:  # Any: click's own signature
        """Run a command."""
        try:
            return super().invoke(ctx)
        except SharerError as error:
            click.echo(str(error), err=True)
            ctx.exit(2 if isinstance(error, InputError) else 1)

    def main(self, *args: Any, **kwargs: Any) -> Any:  # Any: click's own signature
        """As click does it, and also for help: what cannot be written because there is no room is said, and is 1.

        A character that the terminal's encoding does not have is written as its number, as Python does on stderr.
        """
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")
        try:
            return super().main(*args, **kwargs)
        except OSError as error:
            if error.errno not in _FULL:
                raise
            click.echo(f"what is said cannot be written: {os.strerror(error.errno)}", err=True)
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python would try the rest once more
            sys.exit(1)


def _show_version(context: click.Context, _option: click.Parameter, wanted: bool) -> None:
    if wanted:
        try:
            version = importlib.metadata.version("sharer")
        except importlib.metadata.PackageNotFoundError:
            version = "(version unknown: run from source, not installed)"
        click.echo(f"sharer {version}")
        context.exit()


@click.group(cls=LazyGroup, epilog=EPILOG)
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_show_version,
              help="Show the version and exit.")  # fmt: skip
def sharer() -> None:
    """Share NVIDIA GPUs between pods on a stock Kubernetes cluster."""


@click.command(add_help_option=False, context_settings={"ignore_unknown_options": True})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def agent(arguments: tuple[str, ...]) -> None:
    """Share this node's GPUs until told to stop."""
    from sharer.cli.agent import run_agent

    raise SystemExit(run_agent(arguments, os.environ))
