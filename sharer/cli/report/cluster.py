"""`sharer report` where no local agent answers: the whole cluster, as the API server tells it."""

from __future__ import annotations

import contextlib
import datetime
import gc
import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

import click

from sharer.adapters.documents import json_pieces, yaml_pieces
from sharer.cli.cluster_access import open_cluster
from sharer.cli.options import Output
from sharer.cli.report.cluster_table import Style, csv_pieces, print_cluster
from sharer.cli.show.long_table import terminal_width
from sharer.cli.show.progress import Progress
from sharer.cli.signals import forget_interrupt
from sharer.core.cluster.account import Selection, report_cluster
from sharer.core.cluster.live import with_live
from sharer.core.cluster.report import ClusterReport, MissingSource
from sharer.core.cluster.rows import in_namespace
from sharer.core.errors import NodeError
from sharer.core.report.node import NodeReport
from sharer.core.values import dataclass, replace

if TYPE_CHECKING:
    from sharer.adapters.kube.client import KubeClient

PARTIAL_DATA = 3
WATCH_S = 5.0  # between two looks at a cluster
WATCH_SHARE = 0.1  # of the time may be spent reading: who watches must not be who overloads (bug case P33)
_PIECES = 50  # that are written at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is to be reported, and how."""

    output: Output
    selector: str = ""  # of Nodes, by labels
    namespace: str | None = None
    nodes: tuple[str, ...] = ()  # globs
    resources: tuple[str, ...] = ()  # globs
    sort_by: str = "node"
    live: bool = False
    kubeconfig: str | None = None
    context: str | None = None
    html: str | None = None  # the file of a page, instead of any output
    command: str = ""  # how all this was asked for


def show_cluster(asked: Asked, read_live: Callable[[], NodeReport]) -> int:
    """Print the report. Returns the exit status. Raises SharerError if there is nothing to be reported."""
    with without_collecting(), open_cluster(asked.kubeconfig, asked.context) as client:
        report = read_report(client, asked, read_live)
        show(report, asked)
    for missing in report.missing:
        click.echo(f"missing: {missing.source}: {missing.problem}", err=True)
    return PARTIAL_DATA if report.missing else 0


def watch_cluster(
    asked: Asked, read_live: Callable[[], NodeReport], pause: Callable[[float], None] = time.sleep
) -> None:
    """Show the report again and again; a KeyboardInterrupt is the end."""
    documents = asked.output in (Output.JSON, Output.YAML, Output.CSV)
    with open_cluster(asked.kubeconfig, asked.context) as client:
        try:
            while True:
                start_s = time.monotonic()
                try:
                    with without_collecting():
                        report: ClusterReport | NodeError = read_report(client, asked, read_live)
                except NodeError as error:  # the API server may come back; that is worth watching
                    report = error
                took_s = time.monotonic() - start_s
                if not documents:
                    click.clear()  # does nothing where there is no terminal
                if isinstance(report, NodeError):
                    click.echo(str(report), err=documents)
                else:
                    if asked.output is Output.YAML:
                        click.echo("---")
                    show(report, asked)
                    for missing in report.missing:
                        click.echo(f"missing: {missing.source}: {missing.problem}", err=documents)
                pause(max(WATCH_S, took_s / WATCH_SHARE))
        except KeyboardInterrupt:
            forget_interrupt()
            click.echo()


@contextlib.contextmanager
def without_collecting() -> Iterator[None]:
    """Look for no garbage meanwhile: of a million values without a circle there is none, and looking takes a second."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def read_report(
    client: KubeClient, asked: Asked, read_live: Callable[[], NodeReport] | None = None, *, pods: bool = True
) -> ClusterReport:
    """The report as it is now. Raises ApiError if nothing at all can be read."""
    from sharer.adapters.kube.cluster import Narrowing, read_cluster

    exact = asked.nodes[0] if len(asked.nodes) == 1 and not _is_glob(asked.nodes[0]) else None
    server = client.server()
    with Progress(f"reading {server}") as progress:
        facts = read_cluster(client, Narrowing(labels=asked.selector, node=exact, pods=pods), progress.tell)
        if asked.selector and facts.nodes.items is None:
            raise NodeError(f"which nodes have the labels {asked.selector!r} is not known: {facts.nodes.problem}")
        problem = None
        if asked.live and read_live is not None:
            try:
                facts = with_live(facts, read_live())
            except NodeError as error:
                problem = MissingSource(source="live", problem=str(error))
        selection = Selection(resources=asked.resources, nodes=asked.nodes, only_listed=bool(asked.selector))
        now = datetime.datetime.now(datetime.UTC)
        report = report_cluster(facts, selection, cluster=server, observed_at=now.strftime("%Y-%m-%dT%H:%M:%SZ"))
    if problem is not None:
        report = replace(report, missing=(*report.missing, problem))
    return report if asked.namespace is None else in_namespace(report, asked.namespace)


def show(report: ClusterReport, asked: Asked) -> None:
    """Print it, or write its page."""
    if asked.html is not None:
        from sharer.cli.report.picture import write_picture

        write_picture(report, asked.html, asked.command)
        return
    match asked.output:
        case Output.JSON:
            write_pieces(json_pieces(report))
        case Output.YAML:
            write_pieces(yaml_pieces(report))
        case Output.CSV:
            write_pieces(csv_pieces(report, asked.sort_by))
        case Output.TABLE | Output.WIDE:
            style = Style(
                width=terminal_width(), wide=asked.output is Output.WIDE, used=asked.live, sort_by=asked.sort_by
            )
            print_cluster(report, style)


def write_pieces(pieces: Iterator[str]) -> None:
    """Write a long text, which should not lie in memory as a whole."""
    while some := "".join(islice(pieces, _PIECES)):
        click.echo(some, nl=False)


def _is_glob(name: str) -> bool:
    return any(sign in name for sign in "*?[")
