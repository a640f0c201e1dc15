"""`sharer report`: what this node's agent knows, from its local socket; without one, what the API server knows."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from sharer.adapters.documents import read_node_report
from sharer.adapters.local_socket import ask, socket_path
from sharer.cli.cluster_access import access_options, has_access
from sharer.cli.options import Output, command_line, output_option, print_document, run_dir_option
from sharer.cli.signals import forget_interrupt
from sharer.core.errors import InputError, NodeError, SharerError
from sharer.core.report.node import NodeReport

if TYPE_CHECKING:
    from sharer.cli.report.cluster import Asked

PARTIAL_DATA = 3
WATCH_S = 2.0  # between two looks
_SORTS = ("node", "free", "held", "largest-free", "promised", "used", "memory", "product", "health")
_OF_A_NODE_TOO = ("output", "html", "watch", "color", "run_dir")  # every other option means a cluster


@click.command(
    epilog="""\b
Example: sharer report
         sharer report -l pool=a100 --sort-by free
         sharer report --resource nvidia.com/gpu -o csv
         sharer report --html fleet.html
         kubectl sharer report -n team-a --watch
         kubectl exec -n NAMESPACE AGENT_POD -- sharer report -o wide --watch"""
)
@output_option(Output.TABLE, Output.WIDE, Output.JSON, Output.YAML, Output.CSV)
@click.option("--watch", is_flag=True, help="Show it again every few seconds, until Ctrl-C.")
@click.option("--html", type=click.Path(dir_okay=False, readable=False, allow_dash=True), metavar="FILE",
              help="Write all of it as one page to look at in a browser, instead of printing. -: standard"
              " output.")  # fmt: skip
@click.option("--cluster", is_flag=True, help="The cluster, also where an agent runs. -o csv means that too, and each"
              " option but -o, --html, --watch, --no-color and --run-dir.")  # fmt: skip
@click.option("-l", "--selector", default="", metavar="LABELS", help="Only nodes with these labels, as in kubectl.")
@click.option("--node", "nodes", multiple=True, metavar="GLOB", help="Only nodes of this name. Repeatable.")
@click.option("--resource", "resources", multiple=True, metavar="GLOB",
              help="Only this resource, whatever it is. Repeatable. Default: what agents offer, NVIDIA's, and others"
              " with gpu in their name.")  # fmt: skip
@click.option("-n", "--namespace", metavar="NAME",
              help="Only holders and pods in this namespace; counts and totals stay those of everybody.")  # fmt: skip
@click.option("--sort-by", type=click.Choice(_SORTS), default="node", show_default=True,
              help="Order of the lines; largest first.")  # fmt: skip
@click.option("--live", is_flag=True, help="Used memory too, of the node on which this runs: no other is known.")
@click.option(
    "--color/--no-color",
    default=True,
    help="In a terminal, colour what is not as it should be. NO_COLOR is obeyed too.",
)
@access_options
@run_dir_option
@click.pass_context
def report(context: click.Context, /, output: Output, watch: bool, run_dir: Path, **options: Any) -> None:
    """Show GPUs, slices, owners and policy, of this node or of a cluster.

    Where an agent answers on its socket (on a node, as root) it is that node, as its agent knows it. Elsewhere it is
    the cluster: what agents publish as GpuNodes, beside what pods ask for; without agents, pods alone. That needs the
    rights to list nodes, pods, gpunodes.sharer.dev, and leases in the agents' namespace.

    What could not be read is "unknown", with the reason on standard error, and the exit status is then 3. It is 1 if
    nothing could be read.
    """
    if not options.pop("color") or os.environ.get("NO_COLOR"):
        context.color = False
    options.pop("cluster")  # that it was given is what counts
    if options["html"] is not None and (watch or _is_given(context, "output")):
        raise click.UsageError("--html writes one page, once: leave out --watch and -o.")
    asked = _means_cluster(context) or output is Output.CSV
    if not asked and (_is_given(context, "run_dir") or _agent_answers(run_dir, options)):
        _report_node(context, run_dir, output, watch, options["html"])
        return
    from sharer.cli.report.cluster import show_cluster, watch_cluster

    what = _asked(context, output, options)
    if watch:
        watch_cluster(what, lambda: read_report(run_dir))
        return
    if status := show_cluster(what, lambda: read_report(run_dir)):
        context.exit(status)


def _asked(context: click.Context, output: Output, options: dict[str, Any]) -> Asked:
    from sharer.cli.report.cluster import Asked

    return Asked(output=output, context=options.pop("kube_context"), command=command_line(context), **options)


def _means_cluster(context: click.Context) -> bool:
    return any(name not in _OF_A_NODE_TOO and _is_given(context, name) for name in context.params)


def _is_given(context: click.Context, name: str) -> bool:
    return context.get_parameter_source(name) not in (ParameterSource.DEFAULT, None)


def _agent_answers(run_dir: Path, options: dict[str, Any]) -> bool:
    """Whether to ask the agent of this node. Raises NodeError if there is neither an agent nor a cluster to ask."""
    try:
        ask(run_dir)
    except NodeError as error:
        if not has_access(options["kubeconfig"], options["kube_context"]):
            raise NodeError(f"{error}; and nothing says which cluster to ask instead (--kubeconfig)") from error
        if os.path.lexists(socket_path(run_dir)):
            click.echo(f"{error}; this is the cluster", err=True)
        return False
    return True


def _report_node(context: click.Context, run_dir: Path, output: Output, watch: bool, html: str | None) -> None:
    if watch:
        socket_path(run_dir)  # a wrong one is wrong input, not something to wait for
        keep_showing(lambda: read_report(run_dir), lambda found: _show_again(found, output), time.sleep)
        return
    found = read_report(run_dir)
    if html is None:
        _show(found, output)
    else:
        from sharer.cli.report.picture import of_one_node, write_picture

        write_picture(of_one_node(found), html, command_line(context))
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
        forget_interrupt()
        click.echo()


def _show(found: NodeReport, output: Output) -> None:
    if output in (Output.JSON, Output.YAML):
        print_document(found, output)
        return
    from sharer.cli.report.node_table import print_node

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
