"""`sharer policy`: what a policy says, what it would do on a node, and the way from NVIDIA's format to ours.

The agent's own parser and planner answer here, so that a policy which passes is one the agent accepts.
"""

from __future__ import annotations

from pathlib import Path

import click

from sharer.cli.cluster_access import access_options
from sharer.cli.inputs import (
    files_in,
    inventory_from_file,
    inventory_of_node,
    inventory_of_products,
    read_policy,
    source_of,
    why_to_go_on,
)
from sharer.cli.options import (
    FILE,
    PATH,
    Output,
    driver_library_option,
    output_option,
    print_document,
    run_dir_option,
)
from sharer.cli.policy.live_plan import print_live_plan
from sharer.cli.policy.steps import apply, hold, rollback
from sharer.cli.show.tables import Cell, count, offered_text, print_list, print_table
from sharer.core.errors import InputError, NodeError, PolicyError, Problem
from sharer.core.inventory import Inventory
from sharer.core.policy.text import to_yaml
from sharer.core.quantities import format_bytes
from sharer.core.report.plan import (
    Change,
    CheckedPolicy,
    PlanReport,
    PolicyCheckReport,
    accepted_policy,
    refused_policy,
    report_changes,
    report_plan,
)
from sharer.core.slices.plan import Refusal, make_plan

FOUND_SOMETHING = 1
WRONG_INPUT = 2
_INVENTORY = click.option(
    "--inventory", "inventory_file", type=FILE, metavar="FILE",
    help="A node, as `sharer devices -o json` described it.",
)  # fmt: skip


@click.group(epilog="Example: sharer policy check policy.yaml")
def policy() -> None:
    """Check, plan, convert and roll out sharing policies."""


policy.add_command(apply)
policy.add_command(rollback)
policy.add_command(hold)


@policy.command(
    epilog="""\b
Example: sharer policy check config/*.yaml
         sharer policy check --inventory node-7.json new.yaml"""
)
@click.argument("files", nargs=-1, required=True, type=FILE, metavar="FILE...")
@_INVENTORY
@click.option(
    "--unless-held", "checkpoint", type=PATH, metavar="CHECKPOINT",
    help="Exit with 0 all the same where this checkpoint of the kubelet has slices in use, or where one FILE is right.",
)  # fmt: skip
@output_option(Output.TABLE, Output.JSON, Output.YAML)
@click.pass_context
def check(
    context: click.Context,
    files: tuple[str, ...],
    inventory_file: str | None,
    checkpoint: Path | None,
    output: Output,
) -> None:
    """Say everything that is wrong with policies.

    FILE "-" is standard input; of a directory, such as a mounted ConfigMap, every file is read. With an inventory also
    which of its GPUs would offer nothing, and why. Exit status: 0 fine, 1 a GPU would offer nothing, 2 a policy is
    wrong.

    --unless-held is for an init container: a wrong policy should stop a new node, and no node whose containers need its
    agent, or which may follow another FILE: its label says which, and only the agent knows it. Where there is no policy
    at all, the agent waits for one. It keeps the last good one itself.
    """
    inventory = None if inventory_file is None else inventory_from_file(inventory_file)
    try:
        named = [one for file in files for one in files_in(file)]
    except InputError as error:
        if checkpoint is None:
            raise
        _all_the_same(f"{error}; the agent waits for one")
        return
    report = PolicyCheckReport(policies=tuple(_check(file, inventory) for file in named))
    if output is Output.TABLE:
        for checked in report.policies:
            _print_check(checked)
    else:
        print_document(report, output)
    good = [checked.policy for checked in report.policies if checked.accepted]
    accepted = len(good) == len(report.policies)
    if not accepted and checkpoint is not None:
        why = f"a node follows one policy, and {good[0]} is fine" if good else why_to_go_on(checkpoint)
        if why is not None:
            _all_the_same(why)
            return
    if not accepted:
        context.exit(WRONG_INPUT)
    if any(checked.refusals for checked in report.policies):
        context.exit(FOUND_SOMETHING)


@policy.command(
    epilog="""\b
Example: sharer policy plan new.yaml --gpus 8xA100-80GB
         sharer policy plan new.yaml --inventory node-7.json --diff old.yaml
         sharer policy plan new.yaml --live
         sharer policy plan new.yaml --cluster --name a100"""
)
@click.argument("file", type=FILE, metavar="FILE")
@_INVENTORY
@click.option("--gpus", metavar="GPUS", help='A node with these GPUs, such as "8xA100-80GB,2xL4".')
@click.option("--diff", "old_file", type=FILE, metavar="OLD",
              help="Show only what changes from this policy to FILE.")  # fmt: skip
@click.option("--live", is_flag=True, help="Show the steps there of the running node, and which pods are in the way.")
@click.option("--cluster", is_flag=True, help="Show what changes on each node of the cluster, and who is in the way.")
@click.option("--name", metavar="NAME", help="With --cluster: only nodes whose label sharer.dev/policy is NAME.")
@click.option("-l", "--selector", metavar="LABELS", help="With --cluster: only nodes with these labels.")
@access_options
@run_dir_option
@driver_library_option
@output_option(Output.TABLE, Output.JSON, Output.YAML)
@click.pass_context
def plan(
    context: click.Context,
    /,
    file: str,
    inventory_file: str | None,
    gpus: str | None,
    old_file: str | None,
    live: bool,
    cluster: bool,
    name: str | None,
    selector: str | None,
    kubeconfig: str | None,
    kube_context: str | None,
    run_dir: Path,
    driver_library: Path | None,
    host_root: Path,
    output: Output,
) -> None:
    """Show the slices that a policy offers.

    On the node of an inventory, on a node with some GPUs, or on this one. With --live, how this node gets there from
    what its agent offers and its pods hold now. With --cluster, what would change on every node of which an agent
    publishes a GpuNode; that needs the rights to list nodes and gpunodes.sharer.dev.

    The exit status is 0 also where a GPU offers nothing or where --diff finds a difference: `policy check` is the
    check.
    """
    if cluster:
        if live or inventory_file is not None or gpus is not None or old_file is not None:
            raise click.UsageError(
                "--cluster is about its nodes as they are, without --live, --inventory, --gpus, --diff."
            )
        from sharer.cli.policy.cluster_plan import print_cluster_plan
        from sharer.cli.report.cluster import Asked

        asked = Asked(output=output, selector=selector or "", kubeconfig=kubeconfig, context=kube_context)
        if status := print_cluster_plan(file, asked, name):
            context.exit(status)
        return
    if name is not None or selector is not None or kubeconfig is not None or kube_context is not None:
        raise click.UsageError(
            "--name, --selector, --kubeconfig and --context are about a cluster; give --cluster too."
        )
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
        try:
            inventory = inventory_of_node(driver_library, host_root)
        except NodeError as error:
            raise NodeError(f"{error}. For another node than this one give --gpus or --inventory") from error
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
@click.argument("file", type=FILE, metavar="FILE")
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
        source = source_of(file)
        problem = Problem(
            source=source, line=None, column=None, path="", message=str(error).removeprefix(f"{source}: ")
        )
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


def _all_the_same(why: str) -> None:
    click.echo(f"exit status 0 all the same: {why}", err=True)


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
        offered_text(change.before),
        offered_text(change.after),
        len(change.ids_going),
        len(change.ids_coming),
    ]
