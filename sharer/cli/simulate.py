"""`sharer simulate`: the agent at work without GPU or cluster, and the planner."""

from __future__ import annotations

import re

import click

from sharer.adapters.yaml_text import read_policy_text
from sharer.cli.inputs import read_text
from sharer.cli.options import FILE, Output, output_option, print_document
from sharer.cli.show.long_table import Layout, at_the_end, in_the_middle, print_long_table, terminal_width
from sharer.cli.show.tables import Cell, print_list, print_table
from sharer.cli.signals import exit_on_sigterm
from sharer.core.brief import some
from sharer.core.quantities import duration, format_bytes
from sharer.simulation.manifests import read_manifests
from sharer.simulation.node import default_policy
from sharer.simulation.planner import PodOutcome, PodPlanReport, plan_pods
from sharer.simulation.products import parse_gpus
from sharer.simulation.scenario import play
from sharer.simulation.story import Audience, Observation, SimulationReport

FAILED = 1
DEFAULT_GPUS = "2xA100-80GB"
_SLICES = (
    "GPU", "PRODUCT", "RESOURCE", "SLICES", "MEMORY EACH", "HELD", "DRAINING", "FREE", "UNHEALTHY", "HELD BY", "PODS",
)  # fmt: skip
_LEFT_OUT = ("MEMORY EACH", "PRODUCT", "RESOURCE")  # in a narrow terminal, the first of them first
_CUT = {"RESOURCE": (15, in_the_middle), "PODS": (16, at_the_end)}
_UUID = re.compile(r"\b(GPU|MIG)-([0-9a-f]{8})(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")


@click.command(
    epilog="""\b
Example: sharer simulate
         sharer simulate --gpus 8xA100-80GB,2xL4 --policy new.yaml
         sharer simulate --gpus 4xH100-80GB --pods batch.yaml -o json
\b
A pod of FILE comes at once and runs for ever, unless its annotations say otherwise:
  simulation.sharer.dev/start-after: 5m
  simulation.sharer.dev/run-for: 1h30m"""
)
@click.option("--gpus", metavar="GPUS", default=DEFAULT_GPUS, show_default=True,
              help='The node\'s GPUs, such as "8xA100-80GB,2xL4" or "1xA100-80GB:mig(3x1g.10gb)".')  # fmt: skip
@click.option("--policy", "policy_file", type=FILE, metavar="FILE",
              help="How they are shared. Default: four slices a GPU.")  # fmt: skip
@click.option("--pods", "pods_file", type=FILE, metavar="FILE",
              help="Say which of these pods fit, instead of the demo.")  # fmt: skip
@output_option(Output.TABLE, Output.JSON, Output.YAML)
@click.pass_context
def simulate(context: click.Context, gpus: str, policy_file: str | None, pods_file: str | None, output: Output) -> None:
    """Run the agent on a simulated node, or plan which pods fit.

    The agent's own code runs against simulated GPUs and a kubelet, over real sockets. Without --pods it is shown at
    work; everything that is printed was observed, and the exit status is 1 if anything was not as it should be. With
    --pods the exit status is 1 if a pod never runs.
    """
    simulated = parse_gpus(gpus)
    policy, source = (default_policy(), "built-in policy") if policy_file is None else read_text(policy_file)
    if pods_file is not None:
        manifests = read_manifests(*read_text(pods_file))
        with exit_on_sigterm():
            plan = plan_pods(simulated, policy, source, manifests.pods, manifests.warnings)
        if output is Output.TABLE:
            _print_pods(plan)
        else:
            print_document(plan, output)
        context.exit(0 if plan.all_fit else FAILED)
    read_policy_text(policy, source)  # a wrong one is refused before anything is printed
    if output is Output.TABLE:
        click.echo(f"{gpus}, {source}")
    with exit_on_sigterm():
        report = play(simulated, policy, source, _Live() if output is Output.TABLE else Audience())
    if output is Output.TABLE:
        print_slices(report, terminal_width())
    else:
        print_document(report, output)
    context.exit(FAILED if report.failed else 0)


class _Live(Audience):
    """Prints the demo while it runs. UUIDs are cut short, to fit a line; the documents have them in full."""

    def begins(self, title: str) -> None:
        click.echo(f"\n{click.style(title, bold=True)}")

    def sees(self, observation: Observation) -> None:
        click.echo(f"{observation.at_s:7.3f} s  {observation.by:<9} {_short(observation.text)}")

    def fails(self, failure: str) -> None:
        click.echo(f"not as expected: {failure}", err=True)


def _short(text: str) -> str:
    return _UUID.sub(r"\1-\2…", text)


def print_slices(report: SimulationReport, width: int | None) -> None:
    """What there is in the end, in lines of this width; None: as wide as they need."""
    rows: list[list[Cell]] = [
        [
            str(one.gpu),
            one.product,
            one.resource,
            one.slices,
            None if one.promise_bytes is None else format_bytes(one.promise_bytes),
            one.held,
            one.draining,
            one.free,
            one.unhealthy,
            " ".join(one.held_by) or None,
            some(one.pods, between=" "),
        ]
        for one in report.slices
    ]
    layout = Layout(width=width, left_out=_LEFT_OUT, cut=_CUT)
    click.echo()
    print_long_table(_SLICES, lambda: iter(rows), layout, lambda _column, _text: None)


def _print_pods(plan: PodPlanReport) -> None:
    fit = sum(pod.started_at_s is not None for pod in plan.pods)
    click.echo(f"{fit} of {len(plan.pods)} pods fit, {plan.policy}\n")
    print_table(
        ("POD", "STATE", "COMES", "STARTS", "ENDS", "GPU", "DEVICE IDS"),
        [
            [
                f"{pod.namespace}/{pod.name}",
                pod.state.value,
                duration(pod.came_at_s),
                None if pod.started_at_s is None else duration(pod.started_at_s),
                None if pod.ended_at_s is None else duration(pod.ended_at_s),
                ",".join(str(gpu) for gpu in sorted({gpu for one in pod.holdings for gpu in one.gpus})) or None,
                some([device_id for one in pod.holdings for device_id in one.ids], between=" ") or None,
            ]
            for pod in plan.pods
        ],
    )
    print_list("Not running", [f"{pod.namespace}/{pod.name}: {_why(pod)}" for pod in plan.pods if pod.reason])
    click.echo(f"\nLeft after {duration(plan.ends_at_s)}:")
    print_table(
        ("GPU", "RESOURCE", "SLICES", "HELD", "FREE", "MOST HELD", "UUID"),
        [[str(one.gpu), one.resource, one.slices, one.held, one.free, one.most_held, one.uuid] for one in plan.devices],
    )
    print_list("Warnings", plan.warnings)


def _why(pod: PodOutcome) -> str:
    return f"{pod.state}, {pod.reason}"
