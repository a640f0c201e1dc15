"""`sharer doctor`: looks at everything that sharing needs, and says what to do about what is missing."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from sharer.cli.cluster_access import access_options, has_access, open_cluster
from sharer.cli.options import Output, output_option, print_document
from sharer.cli.show.tables import echo_table
from sharer.core.doctor.checkup import Doctor, Level, exit_status

if TYPE_CHECKING:
    from sharer.adapters.kube.client import KubeClient
    from sharer.settings import Settings


@click.command(
    context_settings={"ignore_unknown_options": True},
    epilog="""\b
Example: sharer doctor
         kubectl exec -n NAMESPACE AGENT_POD -- sharer doctor --node
         sharer doctor --node -o json --host-root=/host   (as the agent's own flags)""",
)
@click.option("--node", is_flag=True, help="Look at the node that this runs on, from inside the agent's pod.")
@output_option(Output.TABLE, Output.JSON, Output.YAML)
@access_options
@click.argument("agent_flags", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def doctor(
    context: click.Context,
    node: bool,
    output: Output,
    kubeconfig: str | None,
    kube_context: str | None,
    agent_flags: tuple[str, ...],
) -> None:
    """Look at everything that sharing needs, and say what to do.

    Without --node: what the API server tells of the whole cluster. With it: driver, container toolkit, cgroups,
    kubelet, other plugins, rights and the agent of this node. AGENT_FLAGS are those of its agent, where it has some;
    its SHARER_AGENT_* variables are read too.

    Each line says what was found and, where something is to be done, what. The exit status is 1 if something does not
    work and 3 if something could not be looked at; warnings alone are 0.
    """
    if not node and agent_flags:
        raise click.UsageError(f"{agent_flags[0]}: flags of the agent mean something only with --node")
    with _client(node, kubeconfig, kube_context) as client:
        found = _of_node(agent_flags, client) if node else _of_cluster(client)
    if output is Output.TABLE:
        _print(found)
    else:
        print_document(found, output)
    context.exit(exit_status(found.checks))


@contextlib.contextmanager
def _client(node: bool, kubeconfig: str | None, kube_context: str | None) -> Iterator[KubeClient | None]:
    """The API server; on a node it may be missing. Raises InputError."""
    if node and not has_access(kubeconfig, kube_context):
        yield None
        return
    with open_cluster(kubeconfig, kube_context) as client:
        yield client


def _of_node(agent_flags: tuple[str, ...], client: KubeClient | None) -> Doctor:
    from sharer.cli.doctor.node_survey import as_seen_here, survey_node
    from sharer.core.doctor.node_checks import check_node
    from sharer.settings import read_settings

    settings: Settings = as_seen_here(read_settings(agent_flags, os.environ))
    return Doctor(node=settings.node_name, checks=tuple(check_node(survey_node(settings, client))))


def _of_cluster(client: KubeClient | None) -> Doctor:
    from sharer.adapters.kube.survey import survey_cluster
    from sharer.core.doctor.cluster_checks import check_cluster

    assert client is not None  # only a node may do without
    return Doctor(node=None, checks=tuple(check_cluster(survey_cluster(client))))


def _print(found: Doctor) -> None:
    from rich.table import Table
    from rich.text import Text

    styles = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "bold red", Level.UNKNOWN: "magenta"}
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for check in found.checks:
        table.add_row(Text(check.level.value, styles[check.level]), f"{check.name}: {check.found}")
        if check.cure is not None:
            table.add_row("", Text(f"what to do: {check.cure}", "dim"))
    echo_table(table)
    counts = ", ".join(f"{found.count(level)} {level.value}" for level in Level if found.count(level))
    click.echo(f"\n{found.node or 'the cluster'}: {counts}")
