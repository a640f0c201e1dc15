"""`sharer policy plan --live`: the way of this node, as it is now, to a policy."""

from __future__ import annotations

import hashlib
from pathlib import Path

import click

from sharer.adapters.yaml_text import read_policy_text
from sharer.cli.inputs import read_text
from sharer.cli.options import Output, print_document
from sharer.cli.report.command import read_report
from sharer.cli.show.tables import print_list, print_table
from sharer.core.brief import some
from sharer.core.device_id import slice_part
from sharer.core.quantities import duration
from sharer.core.report.node import NodeReport, gpu_name
from sharer.core.report.preview import InTheWay, LivePlanReport, PreviewStep, preview

_MANY = 8  # slices that are named one by one
_DOES = {
    "offer": "offered",
    "keep": "planned again, so they stay",
    "withdraw": "unhealthy, for they are free and not wanted",
    "drop": "not listed any more",
    "drain": "drain: held, and not wanted once they are free",
    "overdue": "unhealthy, so that their next release is final",
}


def print_live_plan(file: str, run_dir: Path, output: Output) -> None:
    """Print what the policy in a file would do to the node of a running agent. Raises SharerError."""
    text, source = read_text(file)
    policy = read_policy_text(text, source)
    now = read_report(run_dir)
    plan = preview(now, policy, hashlib.sha256(text).hexdigest())
    if output is Output.TABLE:
        _print(plan, now)
    else:
        print_document(plan, output)


def _print(plan: LivePlanReport, now: NodeReport) -> None:
    names = {gpu.uuid: f"GPU {gpu_name(gpu)}" for gpu in now.status.gpus if gpu.index is not None}
    if not plan.steps:
        click.echo(f"{plan.policy} changes nothing on {plan.node}")
    else:
        turn = (
            "at once" if not plan.turn_after_s else f"{duration(plan.turn_after_s)} after it sees it (rollout.window)"
        )
        click.echo(f"{plan.policy} on {plan.node}, which takes it {turn}:\n")
        print_table(
            ("AFTER", "GPU", "SLICES", "RESOURCE", "BECOME", "IDS"),
            [
                [
                    duration(one.at_s),
                    names.get(one.uuid, one.uuid),
                    len(one.ids),
                    one.resource,
                    _DOES[one.action],
                    _numbers(one),
                ]
                for one in plan.steps
            ],
        )
    print_list("Waiting at the end", [f"{names.get(one.uuid, one.uuid)}: {one.reason}" for one in plan.waiting])
    print_list("In the way", [_sentence(one, names) for one in plan.in_the_way])
    print_list("Offers nothing", [f"{one.device}, {one.uuid}: {one.reason}" for one in plan.refusals])
    print_list("Warnings", plan.warnings)


def _numbers(one: PreviewStep) -> str:
    return some([slice_part(text) for text in one.ids], _MANY, between=" ")


def _sentence(one: InTheWay, names: dict[str, str]) -> str:
    who = (
        "a container that is not known yet" if one.container is None else f"{one.namespace}/{one.pod} ({one.container})"
    )
    what = f"{one.id.partition('::')[2]} of {names.get(one.uuid, one.uuid)}, {one.state}"
    return f"{who}: {what}; " + ("slices wait for it" if one.blocks else "nothing waits for it")
