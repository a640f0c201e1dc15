"""A ClusterReport for people, and as CSV."""

from __future__ import annotations

import csv
import io
import textwrap
from collections.abc import Callable, Iterable, Iterator

import click

from sharer.cli.show.long_table import Layout, at_the_end, in_the_middle, node_name, print_long_table
from sharer.cli.show.tables import Cell, amount, count, printable, product_name
from sharer.core.cluster.report import ClusterGpu, ClusterNode, ClusterReport, Fleet, NodeResource, Total
from sharer.core.cluster.rows import asking_names, gpu_rows, held_by, holder_names, notes_by_kind, resource_rows
from sharer.core.quantities import format_bytes
from sharer.core.report.node import gpu_name
from sharer.core.values import dataclass

_GPU = (
    "NODE", "GPU", "PRODUCT", "MEMORY", "STRATEGY", "SLICES", "HELD", "FREE", "LARGEST FREE", "PROMISED", "HOLDERS",
    "HELD BY", "HEALTH", "STATE",
)  # fmt: skip
_GPU_WIDE = ("RESOURCE", "AGENT", "UUID")
_ASKED = ("NODE", "RESOURCE", "PRODUCT", "ALLOCATABLE", "REQUESTED", "RUNNING", "FREE", "PODS", "STATE")
_TOTAL = (
    "RESOURCE", "PRODUCT", "NODES", "GPUS", "SLICES", "HELD", "FREE", "OUT OF REACH", "LARGEST FREE", "PROMISED",
    "MEMORY",
)  # fmt: skip
_LEFT_OUT = (
    "STRATEGY", "PROMISED", "MEMORY", "USED", "HELD BY", "RUNNING", "NODES", "PRODUCT", "SLICES", "OUT OF REACH",
    "HOLDERS", "PODS", "HEALTH", "ALLOCATABLE",
)  # fmt: skip
_CUT = {
    "NODE": (16, node_name), "RESOURCE": (16, in_the_middle), "PRODUCT": (12, at_the_end), "HOLDERS": (12, at_the_end),
    "PODS": (12, at_the_end), "STATE": (10, at_the_end),
}  # fmt: skip
_NAMES = 2  # holders that are named in a line
_NOTES = 10  # of a kind, before "and so many more"
_BAD = {
    "HEALTH": ("unhealthy",),
    "STATE": ("not ready", "gone", "agent silent", "not listed"),
    "HELD BY": ("nothing",),
}
_NOT_GOOD = {"HEALTH": ("unknown", "unmonitored"), "STATE": ("cordoned", "draining", "quarantined", "waiting")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """How a report is drawn."""

    width: int | None  # of the terminal; None: there is none
    wide: bool = False
    used: bool = False  # whether used memory was asked for
    sort_by: str = "node"


def print_cluster(report: ClusterReport, style: Style) -> None:
    """Print the report: a line for each GPU, then what only pods tell of, the totals, and what must not be missed."""
    _say(f"{report.cluster}: {_fleet(report.fleet)}, at {report.observed_at}", style, indent="")
    rows = gpu_rows(report, style.sort_by)
    columns: tuple[str, ...] = _GPU
    if style.used:
        columns = (*columns[:10], "USED", *columns[10:])
    if style.wide:
        columns += _GPU_WIDE
    totals = (*_TOTAL, *(("USED",) if style.used else ()))
    left_out = (
        *_table(columns, lambda: (_gpu(node, gpu, style) for node, gpu in rows), style),
        *_table(_ASKED, lambda: (_asked(node, one, style) for node, one in resource_rows(report)), style),
        *_table(totals, lambda: (_total(one, style) for one in report.totals), style),
    )
    if left_out:
        click.echo()
        _say(f"No room for {', '.join(dict.fromkeys(left_out))}: -o wide has them", style, indent="")
    for kind, notes in notes_by_kind(report).items():
        most = len(notes) if style.wide else _NOTES
        click.echo(f"\n{kind.capitalize().replace('-', ' ')}:")
        for note in notes[:most]:
            _say(f"{note.node}: {note.message}", style)
        if len(notes) > most:
            click.echo(f"  and {len(notes) - most} more; -o wide shows them")
    if report.unknown:
        click.echo("\nNot known:")
        for sentence in report.unknown:
            _say(sentence, style)


def _say(text: str, style: Style, indent: str = "  ") -> None:
    """Print a sentence; one that is longer than a line goes on below, further in."""
    for number, line in enumerate(text.splitlines()):
        words, first = printable(line), indent if number == 0 else f"{indent}  "
        if style.width is None or style.wide:
            click.echo(first + words)
        else:
            click.echo(
                textwrap.fill(
                    words, max(style.width, 20), initial_indent=first, subsequent_indent=f"{indent}  ",
                    break_long_words=False, break_on_hyphens=False,
                )
            )  # fmt: skip


def _fleet(fleet: Fleet) -> str:
    parts = [count(fleet.nodes, "node"), count(fleet.gpus, "GPU"), count(fleet.with_agent, "agent")]
    troubles = (
        (fleet.not_ready, "not ready"), (fleet.cordoned, "cordoned"), (fleet.agents_silent, "with a silent agent"),
    )  # fmt: skip
    parts += [f"{number} {what}" for number, what in troubles if number]
    return ", ".join([*parts, "pods unknown" if fleet.pods is None else count(fleet.pods, "pod")])


def _table(columns: tuple[str, ...], rows: Callable[[], Iterator[list[Cell]]], style: Style) -> tuple[str, ...]:
    """Print a table, if there is anything in it. Returns the columns for which there was no room."""
    if next(rows(), None) is None:
        return ()
    click.echo()
    width = None if style.wide else style.width
    layout = Layout(width=width, left_out=_LEFT_OUT, cut=_CUT)
    return print_long_table(columns, rows, layout, _colour)


def _colour(column: str, text: str) -> str | None:
    if any(word in text for word in _BAD.get(column, ())):
        return "red"
    return "yellow" if any(word in text for word in _NOT_GOOD.get(column, ())) else None


def _gpu(node: ClusterNode, gpu: ClusterGpu, style: Style) -> list[Cell]:
    names = holder_names(gpu)
    used: list[Cell] = [format_bytes(gpu.used_bytes)] if style.used else []
    more: list[Cell] = [gpu.resource, node.agent, gpu.uuid] if style.wide else []
    return [
        node.name,
        gpu_name(gpu),
        product_name(gpu.product, gpu.mig_profile),
        format_bytes(gpu.memory_bytes),
        gpu.strategy,
        gpu.slices,
        gpu.held,
        gpu.free,
        amount(gpu.largest_free_bytes),
        amount(gpu.promised_bytes),
        *used,
        _some(names, style, omitted=gpu.holders_omitted),
        held_by(gpu),
        gpu.health,
        ", ".join(gpu.state) or None,
        *more,
    ]


def _some(names: tuple[str, ...], style: Style, omitted: int = 0) -> str | None:
    most = len(names) if style.wide else _NAMES
    more = max(0, len(names) - most) + omitted
    shown = ", ".join(names[:most])
    if not more:
        return shown or None
    return f"{shown} and {more} more" if shown else f"{more} not told of"


def _asked(node: ClusterNode, one: NodeResource, style: Style) -> list[Cell]:
    return [
        node.name,
        one.name,
        node.product,
        _known(one.allocatable if one.capacity is not None or one.allocatable is not None else 0),
        _known(one.requested),
        _known(one.running),
        f"0, over by {one.over_by}" if one.over_by and not one.free else _known(one.free),
        _some(asking_names(node, one.name), style),
        None if node.state == "ready" else node.state.replace("-", " "),
    ]


def _total(one: Total, style: Style) -> list[Cell]:
    used: list[Cell] = [_known_bytes(one.used_bytes, one)] if style.used else []
    return [
        one.resource or "nothing offered",
        one.product or "unknown",
        one.nodes,
        one.gpus,
        one.slices,
        _known(one.held),
        _known(one.free),
        _known(one.out_of_reach),
        amount(one.largest_free_bytes),
        amount(one.promised_bytes),
        _known_bytes(one.memory_bytes, one),
        *used,
    ]


def _known(number: int | None) -> Cell:
    return "unknown" if number is None else number


def _known_bytes(amount_bytes: int | None, one: Total) -> str | None:
    return None if one.gpus is None else format_bytes(amount_bytes)


_CSV = (
    "node", "nodeState", "gpu", "uuid", "product", "migProfile", "memoryBytes", "strategy", "resource", "slices",
    "held", "free", "outOfReach", "largestFreeBytes", "promisedBytes", "usedBytes", "requested", "running", "holders",
    "heldBy", "health", "state",
)  # fmt: skip


def csv_pieces(report: ClusterReport, sort_by: str) -> Iterator[str]:
    """A line for each GPU, then for each resource that no agent offers. What is not known is empty."""
    yield _csv([_CSV])
    for node, gpu in gpu_rows(report, sort_by):
        yield _csv(
            [
                (
                    node.name, node.state, gpu_name(gpu), gpu.uuid, gpu.product, gpu.mig_profile, gpu.memory_bytes,
                    gpu.strategy, gpu.resource, gpu.slices, gpu.held, gpu.free, gpu.out_of_reach,
                    gpu.largest_free_bytes, gpu.promised_bytes, gpu.used_bytes, None, None,
                    " ".join(holder_names(gpu)), held_by(gpu), gpu.health, "; ".join(gpu.state),
                )
            ]
        )  # fmt: skip
    for node, one in resource_rows(report):
        yield _csv(
            [
                (
                    node.name, node.state, None, None, node.product, None, None, None, one.name, one.allocatable, None,
                    one.free, one.out_of_reach, None, None, None, one.requested, one.running,
                    " ".join(asking_names(node, one.name)), None, None, None,
                )
            ]
        )  # fmt: skip


def _csv(rows: Iterable[tuple[object, ...]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
