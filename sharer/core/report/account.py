"""From what an agent knows to its NodeReport. Nothing is decided here; what is not known stays None."""

from __future__ import annotations

from collections.abc import Iterator

from sharer.core.change.rollout import PolicyInForce
from sharer.core.change.transition import Listed
from sharer.core.device_id import uuid_part
from sharer.core.enforcement import Hold
from sharer.core.holders.evidence import Holder
from sharer.core.holders.ledger import Ledger, State
from sharer.core.known import About, Known, Stamp
from sharer.core.mps.service import MpsService
from sharer.core.mps.state import MpsWanted
from sharer.core.report.gpu_rows import report_gpus
from sharer.core.report.gpu_use import GpuUse, holders_of
from sharer.core.report.inventory import report_inventory
from sharer.core.report.node import (
    HolderReport,
    HostReport,
    MpsGpuReport,
    MpsReport,
    NodeReport,
    NodeStatus,
    ObjectName,
    PolicyReport,
    ProcessReport,
    ResourceReport,
    SliceReport,
    SourceReport,
    StagedReport,
    WarningReport,
)
from sharer.core.report.slice_counts import SliceNow, count, slices_now
from sharer.core.slices.plan import Plan
from sharer.core.values import replace


def report_node(known: Known, about: About, now_s: float, stamp: Stamp) -> NodeReport:
    """The report. The same knowledge gives the same one."""
    slices = _slices(known)
    inventory = known.inventory
    return NodeReport(
        metadata=ObjectName(name=about.node_name),
        status=_status(known, slices, about, now_s, stamp),
        slices=tuple(
            _slice(one, now_s) for one in slices if one.listed is not None or one.is_held or one.is_quarantined
        ),
        processes=_processes(known.ledger),
        findings=known.findings,
        sources=tuple(_sources(known, now_s, stamp)),
        inventory=None if inventory is None else report_inventory(inventory),
        mps=None
        if known.mps_wanted is None
        else tuple(_mps(one, known.mps.daemons.get(one.resource, MpsService())) for one in known.mps_wanted),
    )


def report_status(known: Known, about: About, now_s: float, stamp: Stamp) -> NodeStatus:
    """The report's status alone."""
    return _status(known, _slices(known), about, now_s, stamp)


def _slices(known: Known) -> tuple[SliceNow, ...]:
    return slices_now(known.plan, known.listing, known.ledger, known.offers, known.faults, known.mps)


def _status(known: Known, slices: tuple[SliceNow, ...], about: About, now_s: float, stamp: Stamp) -> NodeStatus:
    use = GpuUse(known.ledger)
    facts, inventory = known.facts, known.inventory
    return NodeStatus(
        observed_at=stamp(now_s),
        agent=about.version,
        facts_hash=None if facts is None else facts.digest(),
        node=HostReport(
            driver=None if inventory is None else inventory.driver_version,
            kernel=about.kernel,
            cgroup=about.cgroup,
            injection=None if facts is None else ",".join(facts.injection),
            injection_reason=None if facts is None else facts.injection_reason,
        ),
        policy=_policy(known.policy, stamp),
        resources=tuple(_resources(known.plan, slices)),
        gpus=tuple(report_gpus(known, slices, use)),
        holders=tuple(_with_hold(holder, known, stamp) for one in slices for holder in _holders(one, use)),
        warnings=tuple(_warnings(known)),
    )


def _policy(standing: PolicyInForce, stamp: Stamp) -> PolicyReport:
    staged = standing.staged
    return PolicyReport(
        wanted=standing.wanted_name,
        wanted_hash=standing.wanted_digest,
        in_force=None if standing.policy is None else standing.policy.source,
        hash=standing.digest,
        refused=standing.refused,
        unread=standing.unread,
        staged=None
        if staged is None
        else StagedReport(
            source=staged.text.source,
            hash=staged.text.digest,
            seen_at=stamp(staged.seen_s),
            applies_at=stamp(staged.turn_s),
            waits_for=standing.waits_for,
        ),
    )


def _resources(plan: Plan, slices: tuple[SliceNow, ...]) -> Iterator[ResourceReport]:
    strategies = {resource.name: resource.strategy.policy_name for resource in plan.resources}
    by_name: dict[str, list[SliceNow]] = {}
    for one in slices:
        by_name.setdefault(one.key[0], []).append(one)
    for name, mine in sorted(by_name.items()):
        counts = count(mine)
        yield ResourceReport(
            name=name,
            strategy=strategies.get(name),
            slices=counts.slices,
            held=counts.held,
            free=counts.free,
            over_by=counts.over_by,
            quarantined=counts.quarantined,
            draining=counts.draining,
            unhealthy=counts.unhealthy,
            waiting=counts.waiting,
        )


def _holders(one: SliceNow, use: GpuUse) -> Iterator[HolderReport]:
    """The owner, or the unknown one of an allocated slice, then the remnants."""
    entry = one.entry
    if entry.owner is not None or entry.state is State.ALLOCATED:
        yield _holder(one, entry.owner, entry.state.value, entry.reason, use)
    for remnant in entry.remnants:
        state, reason = State.QUARANTINED.value, entry.reason
        if entry.state is not State.QUARANTINED:
            state, reason = "remnant", _STILL_RUNS if remnant.known else _CANNOT_BE_TOLD
        yield _holder(one, remnant.holder, state, reason, use)


_STILL_RUNS = "it does not own the slice any more, and something of it still runs"
_CANNOT_BE_TOLD = "it does not own the slice any more, and whether something of it still runs cannot be told"


def _holder(one: SliceNow, holder: Holder | None, state: str, reason: str, use: GpuUse) -> HolderReport:
    return HolderReport(
        resource=one.key[0],
        id=one.key[1],
        state=state,
        namespace=None if holder is None else holder.namespace,
        pod=None if holder is None else holder.pod,
        uid=None if holder is None else holder.uid,
        container=None if holder is None else holder.container,
        promise_bytes=one.promise_bytes,
        used_bytes=None if holder is None else use.of_holder(holder, one.uuid),
        held_by=None,
        verified_at=None,
        reason=reason,
    )


def _with_hold(holder: HolderReport, known: Known, stamp: Stamp) -> HolderReport:
    """The holder with what was seen to hold it to its promise, or why nothing does."""
    if holder.uid is None or holder.container is None or known.holds is None:
        return holder
    key = (holder.uid, holder.container, uuid_part(holder.id))
    return _with_memory_hold(_with_share_hold(holder, known.share_holds.get(key)), known.holds.get(key), stamp)


def _with_share_hold(holder: HolderReport, hold: Hold | None) -> HolderReport:
    if hold is None:
        return holder
    stands = f"not held: {hold.reason}" if hold.by is None else f"held by {hold.by}"
    return replace(holder, reason=f"{holder.reason}; its share of SMs is {stands}")


def _with_memory_hold(holder: HolderReport, hold: Hold | None, stamp: Stamp) -> HolderReport:
    if hold is None:
        return holder
    if hold.by is None:
        return replace(holder, reason=f"{holder.reason}; not held to its promise: {hold.reason}")
    return replace(holder, held_by=hold.by, verified_at=None if hold.verified_s is None else stamp(hold.verified_s))


def _slice(one: SliceNow, now_s: float) -> SliceReport:
    listed = one.listed or Listed()
    return SliceReport(
        resource=one.key[0],
        id=one.key[1],
        gpu_uuid=one.uuid if one.slice is None else one.slice.gpu_uuid,
        state=one.entry.state.value,
        reason=_why_unhealthy(one) or one.entry.reason,
        listed=one.listed is not None,
        healthy=one.healthy,
        planned=one.planned,
        promise_bytes=one.promise_bytes,
        draining_s=None if listed.draining_s is None else now_s - listed.draining_s,
        overdue=listed.overdue,
        withdrawn_s=None if listed.withdrawn_s is None else now_s - listed.withdrawn_s,
    )


def _why_unhealthy(one: SliceNow) -> str | None:
    """Why the kubelet is shown it Unhealthy, or not at all, where its state does not say."""
    if one.listed is None:
        return "it is not listed"
    if one.fault is not None:
        return f"its GPU is at fault: {one.fault}"
    if one.listed.withdrawn_s is not None:
        why = "there is no room for it beside what is held" if one.planned else "it is not in the plan any more"
        return f"it is free and withdrawn: {why}"
    if one.listed.overdue:
        return "it has drained for longer than the policy's patience; its next release is final"
    return None if one.unserved is None else f"it is not given out: {one.unserved}"


def _mps(wanted: MpsWanted, daemon: MpsService) -> MpsReport:
    return MpsReport(
        resource=wanted.resource,
        slices=wanted.slices,
        limits_memory=wanted.limits_memory,
        user_id=wanted.user_id,
        interface=None if daemon.interface is None else daemon.interface.value,
        interface_reason=daemon.interface_reason,
        limits_are=None if daemon.interface is None else "per process, not per container",
        gpus={uuid: MpsGpuReport(problem=gpu.problem, clients=gpu.clients) for uuid, gpu in daemon.gpus.items()},
        warnings=daemon.warnings,
    )


def _mps_warnings(known: Known) -> Iterator[str]:
    """What its users should know of each daemon; GPUs with the same problem together."""
    for resource, daemon in known.mps.daemons.items():
        problems: dict[str, list[str]] = {}
        for uuid, gpu in daemon.gpus.items():
            if gpu.problem is not None:
                problems.setdefault(gpu.problem, []).append(uuid)
        for problem, uuids in problems.items():
            yield f"free slices of {resource} on {', '.join(uuids)} are not given out: {problem}"
        yield from (f"{resource}: {warning}" for warning in daemon.warnings)


def _processes(ledger: Ledger) -> tuple[ProcessReport, ...] | None:
    """By device and PID."""
    reading = ledger.evidence.processes
    if reading is None:
        return None
    holders = [holder for entry in ledger.entries.values() for holder in holders_of(entry)]
    nameless: tuple[str | None, str | None] = (None, None)
    names = {one.uid: (one.namespace, one.pod) for one in holders if one.uid is not None} | dict(ledger.names)
    found = []
    for process in sorted(reading.processes, key=lambda process: (process.gpu_uuid, process.pid or 0)):
        namespace, pod = nameless if process.uid is None else names.get(process.uid, nameless)
        found.append(
            ProcessReport(
                gpu_uuid=process.gpu_uuid,
                pid=process.pid,
                command=process.command,
                used_bytes=process.used_bytes,
                namespace=namespace,
                pod=pod,
                uid=process.uid,
                attributed=process.attributed,
            )
        )
    return tuple(found)


def _warnings(known: Known) -> Iterator[WarningReport]:
    facts = () if known.facts is None else known.facts.warnings
    inventory = () if known.inventory is None else known.inventory.warnings
    for reason, messages in (
        ("Policy", known.policy.warnings),
        ("Plan", known.plan.warnings),
        ("Inventory", inventory),
        ("Injection", facts),
        ("Mps", _mps_warnings(known)),
        ("UnattributedFault", known.health.unattributed),
        ("Source", [f"{name}: {status.problem}" for name, status in known.sources.items() if status.problem]),
        ("Driver", [] if known.driver_problem is None else [known.driver_problem]),
        ("Eviction", [] if known.evictions.problem is None else [known.evictions.problem]),
    ):
        for message in messages:
            yield WarningReport(reason=reason, message=message, since=None)
    for finding in known.findings:
        yield WarningReport(reason=finding.kind.value, message=f"{finding.message}; {finding.cure}", since=None)


def _sources(known: Known, now_s: float, stamp: Stamp) -> Iterator[SourceReport]:
    unread = "it was not read yet"
    driver = known.driver_problem or (unread if known.inventory is None else None)
    yield _source("driver", known.driver_read_s, driver, now_s, stamp)
    for name, status in known.sources.items():
        problem = status.problem or (unread if status.read_s is None else None)
        yield _source(name, status.read_s, problem, now_s, stamp)


def _source(name: str, read_s: float | None, problem: str | None, now_s: float, stamp: Stamp) -> SourceReport:
    return SourceReport(
        name=name,
        read_at=None if read_s is None else stamp(read_s),
        age_s=None if read_s is None else round(now_s - read_s, 1),
        problem=problem,
    )
