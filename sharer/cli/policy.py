"""`sharer policy`: what a policy says, what it would do on a node, and the way from NVIDIA's format to ours.

The agent's own parser and planner answer here, so that a policy which passes is one the agent accepts.
"""

from __future__ import annotations

from pathlib import Path

import click

from sharer.cli.inputs import (
    inventory_from_file,
    inventory_of_node,
    inventory_of_products,
    read_policy,
)
from sharer.cli.live_plan import print_live_plan
from sharer.cli.options import Output, driver_library_option, output_option, print_document, run_dir_option
from sharer.cli.tables import Cell, count, print_list, print_table
from sharer.core.errors import InputError, PolicyError, Problem
from sharer.core.inventory import Inventory
from sharer.core.plan import Refusal, make_plan
from sharer.core.policy_text import to_yaml
from sharer.core.quantities import format_bytes
from sharer.core.report import (
    Change,
    CheckedPolicy,
    Offered,
    PlanReport,
    PolicyCheckReport,
    accepted_policy,
    refused_policy,
    report_changes,
    report_plan,
)

FOUND_SOMETHING = 1
WRONG_INPUT = 2
_INVENTORY = click.option(
    "--inventory", "inventory_file", metavar="FILE", help="A node, as `sharer devices -o json` described it."
)


@click.group(epilog="Example: sharer policy check policy.yaml")
def policy() -> None:
    """Check, plan and convert sharing policies."""


@policy.command(
    epilog="""\b
Example: sharer policy check config/*.yaml
         sharer policy check --inventory node-7.json new.yaml"""
)
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@_INVENTORY
@output_option(Output.TABLE, Output.JSON, Output.YAML)
@click.pass_context
def check(context: click.Context, files: tuple[str, ...], inventory_file: str | None, output: Output) -> None:
    """Say everything that is wrong with policies. FILE "-" is standard input.

    With an inventory also which of its GPUs would offer nothing, and why. Exit status: 0 fine, 1 a GPU would offer
    nothing, 2 a policy is wrong.
    """
    inventory = None if inventory_file is None else inventory_from_file(inventory_file)
    report = PolicyCheckReport(policies=tuple(_check(file, inventory) for file in files))
    if output is Output.TABLE:
        for checked in report.policies:
            _print_check(checked)
    else:
        print_document(report, output)
    if not all(checked.accepted for checked in report.policies):
        context.exit(WRONG_INPUT)
    if any(checked.refusals for checked in report.policies):
        context.exit(FOUND_SOMETHING)


@policy.command(
    epilog="""\b
Example: sharer policy plan new.yaml --gpus 8xA100-80GB
         sharer policy plan new.yaml --inventory node-7.json --diff old.yaml
         sharer policy plan new.yaml --live"""
)
@click.argument("file", metavar="FILE")
@_INVENTORY
@click.option("--gpus", metavar="GPUS", help='A node with these GPUs, such as "8xA100-80GB,2xL4".')
@click.option("--diff", "old_file", metavar="OLD", help="Show only what changes from this policy to FILE.")
@click.option("--live", is_flag=True, help="Show the steps there of the running node, and which pods are in the way.")
@run_dir_option
@driver_library_option
@output_option(Output.TABLE, Output.JSON, Output.YAML)
def plan(
    file: str,
    inventory_file: str | None,
    gpus: str | None,
    old_file: str | None,
    live: bool,
    run_dir: Path,
    driver_library: Path | None,
    host_root: Path,
    output: Output,
) -> None:
    """Show the slices that a policy offers.

    On the node of an inventory, on a node with some GPUs, or on this one. With --live, how this node gets there from
    what its agent offers and its pods hold now. The exit status is 0 also where a GPU offers nothing or where --diff
    finds a difference: `policy check` is the check.
    """
    if live:
        if inventory_file is not None or gpus is not None or old_file is not None:
            raise click.UsageError("--live is about this node as it is now, without --inventory, --gpus and --diff.")
        print_live_plan(file, run_dir, output)
        return
    if inventory_file is not None and gpus is not None:
        raise click.UsageError("--inventory and --gpus both describe the node; give one of them.")
    wanted = read_policy(file)
    old = None if old_file is None else read_policy(old_file)
    if inventory_file is not None:
        inventory = inventory_from_file(inventory_file)
    elif gpus is not None:
        inventory = inventory_of_products(gpus)
    else:
        inventory = inventory_of_node(driver_library, host_root)
    if old is None:
        report = report_plan(wanted, make_plan(inventory, wanted), inventory)
    else:
        before = make_plan(inventory, old)
        after = make_plan(inventory, wanted, adopt=[one.id for one in before.slices()])  # as an agent with `old` would
        report = report_plan(wanted, after, inventory, report_changes(before, after))
    if output is Output.TABLE:
        _print_plan(report, inventory)
    else:
        print_document(report, output)


@policy.command(epilog="Example: sharer policy convert nvidia-config.yaml > policy.yaml")
@click.argument("file", metavar="FILE")
def convert(file: str) -> None:
    """Write a policy in sharer's own format.

    FILE may also be a config of NVIDIA's device plugin. What has no meaning here is named on standard error.
    """
    read = read_policy(file)
    for warning in read.warnings:
        click.echo(f"{read.source}: warning: {warning}", err=True)
    click.echo(to_yaml(read), nl=False)


def _check(file: str, inventory: Inventory | None) -> CheckedPolicy:
    try:
        read = read_policy(file)
        return accepted_policy(read, None if inventory is None else make_plan(inventory, read))
    except PolicyError as error:
        return refused_policy(file, error)
    except InputError as error:  # the others are still worth a look
        problem = Problem(source=file, line=None, column=None, path="", message=str(error).removeprefix(f"{file}: "))
        return refused_policy(file, PolicyError((problem,)))


def _print_check(checked: CheckedPolicy) -> None:
    for problem in checked.problems:
        click.echo(str(problem))
    for warning in checked.warnings:
        click.echo(f"{checked.policy}: warning: {warning}")
    for refusal in checked.refusals or ():
        click.echo(f"{checked.policy}: {_sentence(refusal)}")
    if checked.accepted and not checked.refusals:
        click.echo(f"{checked.policy}: fine")


def _sentence(refusal: Refusal) -> str:
    return f"{refusal.device}, {refusal.uuid}, offers nothing: {refusal.reason}"


def _print_plan(report: PlanReport, inventory: Inventory) -> None:
    gpus = count(len(inventory.gpus), "GPU")
    if report.changes is None:
        total = sum(resource.slices for resource in report.resources)
        click.echo(f"{report.policy} on {gpus}: {count(total, 'slice')}")
        _print_slices(report)
    elif report.changes:
        click.echo(f"{report.policy} changes on {gpus}:\n")
        print_table(
            ("RESOURCE", "DEVICE", "BEFORE", "AFTER", "IDS GOING", "IDS COMING"),
            [_change_row(change) for change in report.changes],
        )
    else:
        click.echo(f"{report.policy} changes nothing on {gpus}")
    print_list("Not offered", [_sentence(refusal) for refusal in report.refusals])
    print_list("Warnings", report.warnings)


def _print_slices(report: PlanReport) -> None:
    rows: list[list[Cell]] = [
        [
            resource.name,
            f"GPU {device.gpu_index}" + ("" if device.mig_profile is None else f", {device.mig_profile}"),
            device.product or "unknown",
            resource.strategy,
            device.slices,
            None if device.promise_bytes is None else format_bytes(device.promise_bytes),
            None if device.compute_percent is None else f"{device.compute_percent} %",
            device.uuid,
        ]
        for resource in report.resources
        for device in resource.devices
    ]
    if rows:
        click.echo()
        print_table(("RESOURCE", "GPU", "PRODUCT", "STRATEGY", "SLICES", "MEMORY EACH", "SMS EACH", "UUID"), rows)
        if len(report.resources) > 1 or len(rows) > 1:
            click.echo()
            print_table(("RESOURCE", "SLICES"), [[one.name, one.slices] for one in report.resources])


def _change_row(change: Change) -> list[Cell]:
    return [
        change.resource,
        change.uuid,
        _side(change.before),
        _side(change.after),
        len(change.ids_going),
        len(change.ids_coming),
    ]


def _side(offered: Offered | None) -> str:
    if offered is None:
        return "nothing"
    memory = "no limit" if offered.promise_bytes is None else format_bytes(offered.promise_bytes)
    share = "" if offered.compute_percent is None else f", {offered.compute_percent} %"
    return f"{offered.slices} × {memory}{share}, {offered.strategy}"
