"""`sharer policy plan --cluster`: what a policy would change on every node, and who is in the way."""

from __future__ import annotations

import functools
import hashlib
from collections import Counter
from collections.abc import Iterator

import click

from sharer.adapters.documents import json_pieces, yaml_pieces
from sharer.adapters.yaml_text import read_policy_text
from sharer.cli.cluster_access import open_cluster
from sharer.cli.inputs import read_text
from sharer.cli.options import Output
from sharer.cli.report.cluster import PARTIAL_DATA, Asked, read_report, without_collecting, write_pieces
from sharer.cli.show.long_table import Layout, at_the_end, node_name, print_long_table, terminal_width
from sharer.cli.show.tables import Cell, count, offered_text, print_list, print_table
from sharer.core.cluster.plan import ClusterPlan, DeviceChange, NodeChange, asking_for, plan_cluster
from sharer.core.cluster.report import ClusterReport
from sharer.core.quantities import duration
from sharer.core.report.plan import Offered

_MANY = 20  # lines of a list
_CUT = {
    "NODE": (16, node_name), "PRODUCT": (12, at_the_end), "BEFORE": (14, at_the_end), "AFTER": (14, at_the_end),
    "IN THE WAY": (12, at_the_end),
}  # fmt: skip
_COLUMNS = ("NODE", "GPU", "PRODUCT", "BEFORE", "AFTER", "TURN", "IN THE WAY")


def print_cluster_plan(file: str, asked: Asked, wanted_by: str | None) -> int:
    """Print the plan. `wanted_by`: only nodes that ask for a policy of this name. Returns the exit status."""
    text, source = read_text(file)
    policy = read_policy_text(text, source)
    with without_collecting(), open_cluster(asked.kubeconfig, asked.context) as client:
        report = read_report(client, asked, pods=False)
        if wanted_by is not None:
            report = asking_for(report, wanted_by)
        plan = plan_cluster(report, policy, hashlib.sha256(text).hexdigest())
        if asked.output is Output.TABLE:
            _print(plan, report)
        else:
            write_pieces(json_pieces(plan) if asked.output is Output.JSON else yaml_pieces(plan))
    for missing in report.missing:
        click.echo(f"missing: {missing.source}: {missing.problem}", err=True)
    return PARTIAL_DATA if report.missing else 0


def _print(plan: ClusterPlan, report: ClusterReport) -> None:
    devices = sum(len(node.changes) for node in plan.nodes)
    changing = sum(bool(node.changes) for node in plan.nodes)
    if devices:
        click.echo(f"{plan.policy} changes {count(devices, 'GPU')} on {count(changing, 'node')} of {plan.cluster}:\n")
        layout = Layout(width=terminal_width(), left_out=("PRODUCT", "TURN"), cut=_CUT)
        print_long_table(_COLUMNS, lambda: _rows(plan), layout, lambda _column, _text: None)
        click.echo()
        kinds = Counter((change.product, *_sides(change)) for node in plan.nodes for change in node.changes)
        rows = [[product, before, after, number] for (product, before, after), number in kinds.most_common()]
        print_table(("PRODUCT", "BEFORE", "AFTER", "GPUS"), rows)
    else:
        click.echo(f"{plan.policy} changes nothing on {count(plan.unchanged, 'node')} of {plan.cluster}")
    _some("Would not take it", [f"{node.node}: {node.refused}" for node in plan.nodes if node.refused is not None])
    refusals = [f"{node.node}: {one.device}: {one.reason}" for node in plan.nodes for one in node.refusals]
    _some("Offers nothing", refusals)
    held = [node.name for node in report.nodes if node.held_back]
    _some("Held back by the label sharer.dev/hold", held)
    _some("Not told of by any agent", plan.not_told)
    omitted = [
        f"{node.node}: {count(number, word)} left out of its GpuNode"
        for node in plan.nodes
        for number, word in ((node.gpus_omitted, "device"), (node.holders_omitted, "holder"))
        if number
    ]
    print_list("Not known", [*plan.unknown, *omitted])


def _rows(plan: ClusterPlan) -> Iterator[list[Cell]]:
    for node in plan.nodes:
        turn = "held back" if node.turn_after_s is None else "at once"
        if node.turn_after_s:
            turn = f"after {duration(node.turn_after_s)}"
        for change in node.changes:
            yield [
                node.node,
                change.device,
                change.product,
                *_sides(change),
                turn,
                _in_the_way(node, change),
            ]


def _in_the_way(node: NodeChange, change: DeviceChange) -> str | None:
    who = dict.fromkeys(
        "somebody unknown" if one.pod is None else f"{one.namespace}/{one.pod}"
        for one in node.in_the_way
        if one.uuid == change.uuid
    )
    return ", ".join(who) or None


def _sides(change: DeviceChange) -> tuple[str, str]:
    """Before and after; with the names of the resources where they differ, too."""
    return _side_texts(
        change.before, change.before_is_sure, change.resource_before, change.after, change.resource_after
    )


@functools.lru_cache  # a fleet's 40,000 GPUs change in few different ways
def _side_texts(
    before: Offered | None,
    is_sure: bool,
    resource_before: str | None,
    after: Offered | None,
    resource_after: str | None,
) -> tuple[str, str]:
    said, then = offered_text(before), offered_text(after)
    if before is not None and not is_sure:
        said = f"{before.slices} × unknown, {before.strategy}"
    if None not in (before, after) and resource_before != resource_after:
        return f"{said}, as {resource_before}", f"{then}, as {resource_after}"
    return said, then


def _some(title: str, lines: list[str] | tuple[str, ...]) -> None:
    more = [f"and {len(lines) - _MANY} more; -o json has them all"] if len(lines) > _MANY else []
    print_list(title, [*lines[:_MANY], *more])
