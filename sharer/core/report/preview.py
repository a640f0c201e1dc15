"""What a policy would do to a live node, before it is applied: the same steps that the agent would take.

The node is the one of a NodeReport. Its holders are frozen: nobody comes and nobody goes, so the end that is shown is
what the node gets to by itself, and what waits then waits for the pods that are named. `core/change/transition` is
asked as the agent asks it, cycle by cycle, and what changes from one answer to the next is a step.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from sharer.core.change.rollout import turn_s
from sharer.core.change.transition import CYCLE_S, DROP_AFTER_READINGS, DROP_AFTER_S, Listed, Listing, step
from sharer.core.device_id import recognise, uuid_part
from sharer.core.errors import InputError
from sharer.core.holders.evidence import (
    CheckpointReading,
    Evidence,
    GpuProcess,
    Holder,
    ListReading,
    ProcessReading,
    SliceKey,
)
from sharer.core.holders.ledger import Entry, Ledger, Remnant, State
from sharer.core.mps.state import MpsInterface
from sharer.core.policy.model import Policy
from sharer.core.report.inventory import inventory_from
from sharer.core.report.node import HolderReport, NodeReport
from sharer.core.slices.plan import Plan, Refusal, make_plan
from sharer.core.values import dataclass, replace

_SETTLED_S = DROP_AFTER_S + (DROP_AFTER_READINGS + 1) * CYCLE_S  # free slices are dropped, and room is used, by then


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviewStep:
    """What happens to some slices of one GPU or MIG device."""

    at_s: float  # after the policy takes effect
    action: str  # "offer", "withdraw", "drop", "drain", "overdue"; "keep": it drained, and is planned again
    resource: str
    uuid: str
    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class InTheWay:
    """Somebody on a slice that is not of the new cut."""

    resource: str
    id: str
    uuid: str
    state: str
    namespace: str | None
    pod: str | None
    container: str | None
    overdue_after_s: float  # when its slice becomes unhealthy, so that its next release is final
    blocks: bool  # slices of the new cut wait on this GPU


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A GPU or MIG device that cannot have all of the new cut."""

    uuid: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LivePlanReport:
    """The way of a live node to a policy."""

    kind: ClassVar[str] = "LivePlan"
    node: str
    policy: str  # where it was read from
    turn_after_s: float  # after the node sees it: its turn within rollout.window
    steps: tuple[PreviewStep, ...]  # empty: nothing changes
    waiting: tuple[Waiting, ...]  # at the end
    in_the_way: tuple[InTheWay, ...]
    refusals: tuple[Refusal, ...]
    warnings: tuple[str, ...]


def preview(report: NodeReport, policy: Policy, digest: str) -> LivePlanReport:
    """The steps to a policy whose text has this digest.

    Raises PolicyError if a list would be too long for the kubelet, InputError if the report has no inventory.
    """
    if report.inventory is None:
        missing = "; ".join(report.missing())
        raise InputError(f"the agent of {report.metadata.name} does not know its GPUs yet: {missing}")
    adopt = [parsed for one in report.slices if one.planned and (parsed := recognise(one.id)) is not None]
    namespaced = {one.resource for one in report.mps or () if one.interface == MpsInterface.NAMESPACES}
    plan = make_plan(inventory_from(report.inventory), policy, adopt=adopt, namespaced=namespaced)
    steps, end = _walk(_listing(report), plan, _ledger(report), policy.drain_patience_s)
    window_s = 0.0 if report.status.policy.hash is None else policy.rollout_window_s
    return LivePlanReport(
        node=report.metadata.name,
        policy=policy.source,
        turn_after_s=turn_s(report.metadata.name, digest, 0.0, window_s),
        steps=tuple(steps),
        waiting=tuple(Waiting(uuid=uuid, reason=reason) for uuid, reason in end.waiting.items()),
        in_the_way=tuple(_in_the_way(report, plan, end, policy.drain_patience_s)),
        refusals=plan.refusals,
        warnings=plan.warnings,
    )


def _walk(listing: Listing, plan: Plan, ledger: Ledger, patience_s: float) -> tuple[list[PreviewStep], Listing]:
    steps: list[PreviewStep] = []
    for reading, at_s in enumerate(_moments(listing, patience_s), start=DROP_AFTER_READINGS):
        evidence = Evidence(
            listed=ListReading(serial=reading),
            checkpoint=CheckpointReading(serial=reading),
            processes=ledger.evidence.processes,
        )
        after = step(listing, plan, replace(ledger, evidence=evidence), at_s, patience_s=patience_s)
        steps += _steps(listing, after, at_s)
        listing = after
    return steps, listing


def _moments(listing: Listing, patience_s: float) -> list[float]:
    """When anything can happen while holders stay as they are: until free slices are gone, and as patience ends."""
    cycles = {cycle * CYCLE_S for cycle in range(int(_SETTLED_S / CYCLE_S) + 1)}
    since = {0.0, *(listed.draining_s for listed in listing.ids.values() if listed.draining_s is not None)}
    return sorted(cycles | {max(0.0, since_s + patience_s) for since_s in since})


def _steps(before: Listing, after: Listing, at_s: float) -> Iterator[PreviewStep]:
    changed: dict[tuple[str, str, str], list[str]] = {}
    for key in dict.fromkeys([*after.ids, *before.ids]):
        action = _action(_standing(before.ids.get(key)), _standing(after.ids.get(key)))
        if action is not None:
            changed.setdefault((action, key[0], uuid_part(key[1])), []).append(key[1])
    for (action, resource, uuid), ids in changed.items():
        yield PreviewStep(at_s=at_s, action=action, resource=resource, uuid=uuid, ids=tuple(ids))


def _standing(listed: Listed | None) -> str:
    if listed is None:
        return "absent"
    if listed.withdrawn_s is not None:
        return "withdrawn"
    if listed.draining_s is None:
        return "offered"
    return "overdue" if listed.overdue else "draining"


def _action(before: str, after: str) -> str | None:
    if before == after:
        return None
    if after == "offered":
        return "keep" if before in ("draining", "overdue") else "offer"
    return {"absent": "drop", "withdrawn": "withdraw", "draining": "drain", "overdue": "overdue"}[after]


def _listing(report: NodeReport) -> Listing:
    """What the kubelet is shown now, at time 0."""
    return Listing(
        ids={
            (one.resource, one.id): Listed(
                withdrawn_s=None if one.withdrawn_s is None else -one.withdrawn_s,
                draining_s=None if one.draining_s is None else -one.draining_s,
                overdue=one.overdue,
            )
            for one in report.slices
            if one.listed
        }
    )


def _ledger(report: NodeReport) -> Ledger:
    """Who holds what now, and what the processes use."""
    holders: dict[SliceKey, list[HolderReport]] = {}
    for one in report.status.holders:
        holders.setdefault((one.resource, one.id), []).append(one)
    entries = {}
    for its_slice in report.slices:
        key, state = (its_slice.resource, its_slice.id), State(its_slice.state)
        if state is State.OFFERED:
            continue
        mine = holders.get(key, [])
        owner = next((_holder(one) for one in mine if one.state in _OWNING and one.container is not None), None)
        remnants = [_holder(one) for one in mine if one.state not in _OWNING and one.container is not None]
        entries[key] = Entry(
            state=state,
            owner=owner,
            remnants=tuple(Remnant(holder=holder, since_s=0.0, known=True) for holder in remnants),
        )
    return Ledger(entries=entries, evidence=Evidence(processes=_processes(report)))


_OWNING = (State.ALLOCATED, State.HELD, State.RELEASING)


def _holder(one: HolderReport) -> Holder:
    return Holder(uid=one.uid, namespace=one.namespace, pod=one.pod, container=one.container or "")


def _processes(report: NodeReport) -> ProcessReading | None:
    if report.processes is None:
        return None
    return ProcessReading(
        processes=tuple(
            GpuProcess(
                pid=one.pid,
                gpu_uuid=one.gpu_uuid,
                used_bytes=one.used_bytes,
                command=one.command,
                uid=one.uid,
                container_id=None,
                attributed=one.attributed,
            )
            for one in report.processes
        )
    )


def _in_the_way(report: NodeReport, plan: Plan, end: Listing, patience_s: float) -> Iterator[InTheWay]:
    planned = {(resource.name, str(one.id)) for resource in plan.resources for one in resource.slices}
    drains = {(one.resource, one.id): one.draining_s for one in report.slices}
    for holder in report.status.holders:
        key = (holder.resource, holder.id)
        if key in planned:
            continue
        uuid = uuid_part(holder.id)
        yield InTheWay(
            resource=holder.resource,
            id=holder.id,
            uuid=uuid,
            state=holder.state,
            namespace=holder.namespace,
            pod=holder.pod,
            container=holder.container,
            overdue_after_s=max(0.0, patience_s - (drains.get(key) or 0.0)),
            blocks=uuid in end.waiting,
        )
