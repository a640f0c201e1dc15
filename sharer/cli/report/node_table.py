"""A NodeReport for people."""

from __future__ import annotations

from collections.abc import Iterator

import click

from sharer.cli.show.tables import Cell, amount, print_list, print_table, product_name
from sharer.core.device_id import slice_part, uuid_part
from sharer.core.holders.findings import FindingKind
from sharer.core.quantities import duration, format_bytes
from sharer.core.report.node import (
    GpuStatus,
    HolderReport,
    MpsReport,
    NodeReport,
    PolicyReport,
    ResourceReport,
    SliceReport,
    gpu_name,
)

_GPU = ("GPU", "PRODUCT", "MEMORY", "STRATEGY", "SLICES", "HELD", "FREE", "LARGEST FREE", "PROMISED", "USED", "HEALTH")
_GPU_WIDE = ("RESOURCE", "UUID")
_RESOURCE = ("RESOURCE", "SLICES", "HELD", "FREE", "QUARANTINED", "DRAINING", "UNHEALTHY", "WAITING")
_MPS = ("MPS DAEMON OF", "INTERFACE", "GPU", "SERVES", "CLIENTS", "LIMITS ARE")
_HOLDER = ("GPU", "SLICE", "STATE", "POD", "CONTAINER", "PROMISE", "USED")
_HOLDER_WIDE = ("HELD BY", "POD UID", "RESOURCE")
_TOLD_ELSEWHERE = {"Source", "Driver", *FindingKind}  # warnings with a place of their own in the report
_HASH = 12  # digits shown of a policy's hash


def print_node(report: NodeReport, *, wide: bool) -> None:
    """Print the report; wide: also UUIDs, free slices, processes and how old everything is."""
    status = report.status
    node = status.node
    click.echo(
        f"{report.metadata.name}: sharer {status.agent}, driver {node.driver or 'unknown'},"
        f" injection {node.injection or 'unknown'}, at {status.observed_at}"
    )
    for line in _policy(status.policy):
        click.echo(line)
    if status.gpus:
        click.echo()
        print_table(_GPU + (_GPU_WIDE if wide else ()), [_gpu(gpu, wide) for gpu in status.gpus])
    if status.resources:
        click.echo()
        print_table(_RESOURCE, [_resource(resource) for resource in status.resources])
    names = {gpu.uuid: gpu_name(gpu) for gpu in status.gpus}
    if report.mps:
        click.echo()
        print_table(_MPS, [row for daemon in report.mps for row in _mps(daemon, names)])
    slices = {(one.resource, one.id): one for one in report.slices}
    if status.holders:
        click.echo()
        rows = [_holder(one, slices.get((one.resource, one.id)), names, wide) for one in status.holders]
        print_table(_HOLDER + (_HOLDER_WIDE if wide else ()), rows)
    if wide:
        _print_more(report, names)
    print_list("Findings", [f"{one.kind}: {one.message}. Cure: {one.cure}" for one in report.findings])
    print_list("Unhealthy", [f"GPU {gpu_name(gpu)}, {gpu.uuid}: {gpu.reason}" for gpu in status.gpus if gpu.reason])
    print_list(
        "Offers nothing", [f"GPU {gpu_name(g)}, {g.uuid}: {g.offers_nothing}" for g in status.gpus if g.offers_nothing]
    )
    print_list("Waiting", [f"GPU {gpu_name(gpu)}, {gpu.uuid}: {gpu.waiting}" for gpu in status.gpus if gpu.waiting])
    print_list("Warnings", [one.message for one in status.warnings if one.reason not in _TOLD_ELSEWHERE])


def _policy(policy: PolicyReport) -> Iterator[str]:
    in_force = "none" if policy.in_force is None else f"{policy.in_force}, {(policy.hash or '')[:_HASH]}"
    wanted = "" if policy.wanted is None else f" (key {policy.wanted} is wanted)"
    yield f"policy in force: {in_force}{wanted}"
    if policy.staged is not None:
        staged = policy.staged
        waits = "" if staged.waits_for is None else f", if nothing keeps it: {staged.waits_for}"
        yield f"policy staged: {staged.source}, {staged.hash[:_HASH]}, takes effect at {staged.applies_at}{waits}"
    if policy.refused is not None:
        yield f"policy refused: {policy.refused}"
    if policy.unread is not None:
        yield f"policy not read: {policy.unread}"


def _gpu(gpu: GpuStatus, wide: bool) -> list[Cell]:
    more: list[Cell] = [gpu.resource, gpu.uuid] if wide else []
    return [
        gpu_name(gpu),
        product_name(gpu.product, gpu.mig_profile),
        format_bytes(gpu.memory_bytes),
        gpu.strategy,
        gpu.slices,
        gpu.held,
        gpu.free,
        amount(gpu.largest_free_bytes),
        amount(gpu.promised_bytes),
        format_bytes(gpu.used_bytes),
        gpu.health,
        *more,
    ]


def _resource(resource: ResourceReport) -> list[Cell]:
    return [
        resource.name,
        resource.slices,
        resource.held,
        resource.free if not resource.over_by else f"{resource.free}, over by {resource.over_by}",
        resource.quarantined,
        resource.draining,
        resource.unhealthy,
        resource.waiting,
    ]


def _mps(daemon: MpsReport, names: dict[str, str]) -> Iterator[list[Cell]]:
    for uuid, gpu in daemon.gpus.items():
        yield [
            daemon.resource,
            daemon.interface or "unknown",
            names.get(uuid, "?"),
            "yes" if gpu.problem is None else "no",
            "unknown" if gpu.clients is None else gpu.clients,
            daemon.limits_are,
        ]


def _holder(one: HolderReport, its_slice: SliceReport | None, names: dict[str, str], wide: bool) -> list[Cell]:
    uuid, number = uuid_part(one.id), slice_part(one.id)
    pod = "not known yet" if one.container is None else "unknown" if one.pod is None else f"{one.namespace}/{one.pod}"
    more: list[Cell] = [one.held_by or "nothing", one.uid, one.resource] if wide else []
    return [
        names.get(uuid, "?"),
        number,
        one.state + _draining(its_slice),
        pod,
        one.container,
        amount(one.promise_bytes),
        format_bytes(one.used_bytes),
        *more,
    ]


def _draining(one: SliceReport | None) -> str:
    if one is None or one.draining_s is None:
        return ""
    return f", draining for {duration(one.draining_s)}" + (" (overdue)" if one.overdue else "")


def _print_more(report: NodeReport, names: dict[str, str]) -> None:
    free = [one for one in report.slices if one.state == "offered"]
    if free:
        click.echo()
        print_table(
            ("GPU", "SLICE NOBODY HOLDS", "LISTED", "WHY", "RESOURCE"),
            [
                [
                    names.get(uuid_part(one.id), "?"),
                    slice_part(one.id),
                    "healthy" if one.healthy else "unhealthy",
                    one.reason,
                    one.resource,
                ]
                for one in free
            ],
        )
    if report.processes:
        click.echo()
        print_table(
            ("GPU", "PID", "USED", "POD", "COMMAND"),
            [
                [
                    names.get(one.gpu_uuid, "?"),
                    one.pid,
                    format_bytes(one.used_bytes),
                    f"{one.namespace}/{one.pod}" if one.pod else "unknown" if one.uid or not one.attributed else "host",
                    one.command,
                ]
                for one in report.processes
            ],
        )
    click.echo()
    print_table(
        ("SOURCE", "AGE", "PROBLEM"),
        [[one.name, None if one.age_s is None else f"{one.age_s} s", one.problem] for one in report.sources],
    )
