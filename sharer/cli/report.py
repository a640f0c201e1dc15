"""`sharer report`: what this node's agent knows, from its local socket."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import click

from sharer.adapters.documents import read_node_report
from sharer.adapters.local_socket import ask, socket_path
from sharer.cli.options import Output, output_option, print_document, run_dir_option
from sharer.core.errors import InputError, NodeError, SharerError
from sharer.core.node_report import NodeReport

PARTIAL_DATA = 3
WATCH_S = 2.0  # between two looks


@click.command(
    epilog="""\b
Example: sharer report
         kubectl exec -n NAMESPACE AGENT_POD -- sharer report -o wide --watch"""
)
@output_option(Output.TABLE, Output.WIDE, Output.JSON, Output.YAML)
@click.option("--watch", is_flag=True, help="Show it again every 2 seconds, until Ctrl-C.")
@run_dir_option
@click.pass_context
def report(context: click.Context, output: Output, watch: bool, run_dir: Path) -> None:
    """Show this node's GPUs, slices, owners and policy.

    As its agent knows them: run it where the agent runs, as root. What could not be read is "unknown", with the reason
    on standard error, and the exit status is then 3. It is 1 if no agent answers.
    """
    if watch:
        socket_path(run_dir)  # a wrong one is wrong input, not something to wait for
        keep_showing(lambda: read_report(run_dir), lambda found: _show_again(found, output), time.sleep)
        return
    found = read_report(run_dir)
    _show(found, output)
    for missing in found.missing():
        click.echo(f"missing: {missing}", err=True)
    if found.missing():
        context.exit(PARTIAL_DATA)


def read_report(run_dir: Path) -> NodeReport:
    """What the agent with this RUN_DIR says. Raises NodeError if none answers, or in words that are not understood."""
    answer = ask(run_dir)
    try:
        return read_node_report(answer, str(socket_path(run_dir)))
    except InputError as error:
        raise NodeError(str(error)) from error


def keep_showing(
    read: Callable[[], NodeReport], show: Callable[[NodeReport | SharerError], None], pause: Callable[[float], None]
) -> None:
    """Show the report, or why there is none, again and again; a KeyboardInterrupt is the end."""
    try:
        while True:
            try:
                found: NodeReport | SharerError = read()
            except NodeError as error:  # the agent may be starting; that is worth watching
                found = error
            show(found)
            pause(WATCH_S)
    except KeyboardInterrupt:
        click.echo()


def _show(found: NodeReport, output: Output) -> None:
    if output in (Output.JSON, Output.YAML):
        print_document(found, output)
        return
    from sharer.cli.node_table import print_node

    print_node(found, wide=output is Output.WIDE)


def _show_again(found: NodeReport | SharerError, output: Output) -> None:
    documents = output in (Output.JSON, Output.YAML)
    if not documents:
        click.clear()  # does nothing where there is no terminal
    if isinstance(found, SharerError):
        click.echo(str(found), err=documents)
        return
    if output is Output.YAML:
        click.echo("---")
    _show(found, output)
    for missing in found.missing():
        click.echo(f"missing: {missing}", err=documents)
