"""The values of every metric, worked out when somebody asks: nothing is kept up to date for nobody.

Each slice is counted once (`sharer_slices`), by the first of these that it is: quarantined; held, of an earlier cut
(*draining*) or of the present one; free; waiting for room; withdrawn, of an earlier cut; else *unhealthy*: nobody holds
it and nobody can be given it. So the states of a device add up to its slices (bug case P38).

What belongs to a container carries its pod, its GPU and its slice as labels of their own, what belongs to a device
carries no pod: a figure of a whole GPU is nobody's (P39).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from itertools import product

from sharer.core.change.rollout import PolicyInForce
from sharer.core.device_id import Strategy
from sharer.core.holders.findings import FindingKind
from sharer.core.known import About, Known
from sharer.core.report.gpu_rows import report_gpus
from sharer.core.report.gpu_use import GpuUse
from sharer.core.report.slice_counts import SliceNow, slices_now
from sharer.core.tell.metrics import (
    AGENT_INFO,
    API_ERRORS,
    CONTAINER_USED,
    EVENTS,
    EVICTIONS,
    FINDINGS,
    GPU_HEALTHY,
    GPU_INFO,
    HOLDERS_OMITTED,
    KUBELET_REQUESTS,
    KUBELET_SECONDS,
    LAST_SYNC,
    LIMIT_VERIFIED,
    LIMITS_RESTORED,
    MOST_HOLDERS,
    MPS_SERVING,
    NOBODY,
    PAUSED,
    POLICY_INFO,
    POLICY_REFUSED,
    QUARANTINE_AGE,
    REGISTERED,
    REGISTRATIONS,
    SLICE_HELD,
    SLICE_PROMISE,
    SLICES,
    Durations,
    Figure,
    Histogram,
    Labels,
)
from sharer.core.tell.news import Reason
from sharer.core.told import EventCounts
from sharer.core.values import dataclass

STATES = ("free", "held", "draining", "quarantined", "waiting", "withdrawn", "unhealthy")
SOURCES = ("driver", "checkpoint", "list", "cgroups", "processes")
"""Everything that is read on every node; what is followed in the API comes on top."""

_REFUSALS = {"Allocate": ("INVALID_ARGUMENT", "INTERNAL"), "PreStartContainer": ("FAILED_PRECONDITION", "INTERNAL")}
_METHODS = ("GetDevicePluginOptions", "ListAndWatch", "GetPreferredAllocation", "Allocate", "PreStartContainer")
TIMED_METHODS = ("GetPreferredAllocation", "Allocate", "PreStartContainer")  # the others are answered from a constant
_RESULTS = ("OK", "UNKNOWN", "UNAVAILABLE", "DEADLINE_EXCEEDED")
_API_VERBS = ("list", "watch", "get", "create", "patch")
_API_CODES = ("none", "401", "403", "404", "409", "429", "500", "503")
_OUTCOMES = ("accepted", "blocked", "gone", "failed")  # of evictions
_DIGITS = 12  # of a policy's hash, as in the log

Pair = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tallies:
    """What happened how often since the agent's start."""

    requests: Mapping[Pair, int] = field(default_factory=dict)  # of the kubelet: method and code
    registrations: Mapping[Pair, int] = field(default_factory=dict)  # resource and code
    bounds_s: tuple[float, ...] = ()
    durations: Mapping[str, Durations] = field(default_factory=dict)  # of the kubelet's requests, by method
    api_errors: Mapping[Pair, int] = field(default_factory=dict)  # verb and code


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What there is to know besides what the agent knows of the node."""

    now_s: float
    started_s: float  # of the agent, on the same clock
    registered: Mapping[str, bool] = field(default_factory=dict)  # by resource
    followed_s: Mapping[str, float | None] = field(default_factory=dict)  # in the API: when last confirmed; None: never


def figures(known: Known, about: About, tallies: Tallies, moment: Moment) -> Iterator[Figure | Histogram]:
    """Every metric of `metrics` once. Those of an agent that knows nothing yet exist as well."""
    slices = slices_now(known.plan, known.listing, known.ledger, known.offers, known.faults, known.mps)
    use = GpuUse(known.ledger)
    yield Figure(metric=SLICES, values=_states(slices))
    yield from _holders(known, slices, use)
    yield Figure(metric=LIMITS_RESTORED, values={(): float(known.lifts)})
    yield Figure(metric=MPS_SERVING, values=_mps(known, slices))
    yield Figure(metric=QUARANTINE_AGE, values=_quarantines(slices, moment.now_s))
    yield from _gpus(known, slices, use)
    yield Figure(metric=REGISTERED, values={(name,): float(yes) for name, yes in moment.registered.items()})
    yield from _counted(tallies, moment)
    outcomes = dict.fromkeys(_OUTCOMES, 0) | dict(known.evictions.counts)
    yield Figure(metric=EVICTIONS, values={(outcome,): float(number) for outcome, number in outcomes.items()})
    yield Figure(metric=EVENTS, values=_events(known.events))
    yield from _policy(known.policy)
    yield Figure(metric=LAST_SYNC, values=dict(_ages(known, moment)))
    kinds = [finding.kind for finding in known.findings]
    yield Figure(metric=FINDINGS, values={(kind.value,): kinds.count(kind) for kind in FindingKind})
    yield Figure(metric=PAUSED, values={(): float(known.paused is not None)})
    driver = None if known.inventory is None else known.inventory.driver_version
    yield Figure(metric=AGENT_INFO, values={(about.version, driver or ""): 1.0})


def state_of(one: SliceNow) -> str:
    """The one state that a slice counts as."""
    if one.is_quarantined:
        return "quarantined"
    if one.is_held:
        return "draining" if one.is_draining else "held"
    if one.is_free:
        return "free"
    if one.is_waiting:
        return "waiting"
    return "unhealthy" if one.planned else "withdrawn"


def _states(slices: tuple[SliceNow, ...]) -> dict[Labels, float]:
    devices = dict.fromkeys((one.key[0], one.uuid) for one in slices)
    values = {(*device, state): 0.0 for device, state in product(devices, STATES)}
    for one in slices:
        values[one.key[0], one.uuid, state_of(one)] += 1
    return values


def _holders(known: Known, slices: tuple[SliceNow, ...], use: GpuUse) -> Iterator[Figure]:
    """Of containers that hold slices now."""
    held = [(one, owner) for one in slices if (owner := one.entry.owner) is not None]
    holders: dict[Labels, float] = {}
    promises: dict[Labels, float] = {}
    used: dict[Labels, float] = {}
    verified: dict[Labels, float] = {}
    for one, owner in held[:MOST_HOLDERS]:
        who = (one.uuid, owner.namespace or "", owner.pod or "", owner.container)
        holders[*one.key, *who] = 1.0
        used_bytes = use.of_holder(owner, one.uuid)
        if used_bytes is not None:
            used[who] = float(used_bytes)
        if one.promise_bytes is None:
            continue
        promises[*one.key, *who] = float(one.promise_bytes)
        if known.holds is not None:
            hold = known.holds.get((owner.uid or "", owner.container, one.uuid))
            by = None if hold is None else hold.by
            verified[*who, by or NOBODY] = float(by is not None)
    yield Figure(metric=SLICE_HELD, values=holders)
    yield Figure(metric=SLICE_PROMISE, values=promises)
    yield Figure(metric=CONTAINER_USED, values=used)
    yield Figure(metric=LIMIT_VERIFIED, values=verified)
    yield Figure(metric=HOLDERS_OMITTED, values={(): float(max(0, len(held) - MOST_HOLDERS))})


def _mps(known: Known, slices: tuple[SliceNow, ...]) -> dict[Labels, float]:
    """Of each GPU with MPS slices of the policy in force: whether all of them can be served."""
    served: dict[Labels, float] = {}
    for one in slices:
        if one.planned and one.slice is not None and one.slice.id.strategy is Strategy.MPS:
            device = (one.key[0], one.uuid)
            can = known.mps.why_not(one.key[0], one.slice.id) is None
            served[device] = min(served.get(device, 1.0), float(can))
    return served


def _quarantines(slices: tuple[SliceNow, ...], now_s: float) -> dict[Labels, float]:
    ages: dict[Labels, float] = {(one.key[0], one.uuid): 0.0 for one in slices}
    for one in slices:
        if one.is_quarantined:
            since_s = min((remnant.since_s for remnant in one.entry.remnants), default=now_s)
            ages[one.key[0], one.uuid] = max(ages[one.key[0], one.uuid], now_s - since_s)
    return ages


def _gpus(known: Known, slices: tuple[SliceNow, ...], use: GpuUse) -> Iterator[Figure]:
    gpus = tuple(report_gpus(known, slices, use))
    what: dict[Labels, float] = {
        (
            gpu.uuid,
            gpu.gpu_uuid,
            "" if gpu.index is None else str(gpu.index),
            gpu.product or "",
            gpu.mig_profile or "",
        ): 1.0
        for gpu in gpus
    }
    yield Figure(metric=GPU_INFO, values=what)
    fit: dict[Labels, float] = {(gpu.uuid,): float(gpu.health in ("healthy", "unmonitored")) for gpu in gpus}
    yield Figure(metric=GPU_HEALTHY, values=fit)


def _counted(tallies: Tallies, moment: Moment) -> Iterator[Figure | Histogram]:
    """With what can be expected at 0: the first failure of all must show as a rise."""
    requests = {(method, code): 0.0 for method in _METHODS for code in ("OK", *_REFUSALS.get(method, ()))}
    yield Figure(metric=KUBELET_REQUESTS, values=requests | _floats(tallies.requests))
    nothing = Durations(counts=(0,) * (len(tallies.bounds_s) + 1), sum_s=0.0)
    timed: dict[Labels, Durations] = {(method,): tallies.durations.get(method, nothing) for method in TIMED_METHODS}
    yield Histogram(metric=KUBELET_SECONDS, bounds_s=tallies.bounds_s, durations=timed)
    registrations = dict.fromkeys(product(moment.registered, _RESULTS), 0.0)
    yield Figure(metric=REGISTRATIONS, values=registrations | _floats(tallies.registrations))
    errors = dict.fromkeys(product(_API_VERBS, _API_CODES), 0.0)
    yield Figure(metric=API_ERRORS, values=errors | _floats(tallies.api_errors))


def _events(events: EventCounts) -> dict[Labels, float]:
    by_result = {"sent": events.sent, "failed": events.failed, "suppressed": events.suppressed}
    return {(reason, result): float(counts.get(reason, 0)) for result, counts in by_result.items() for reason in Reason}


def _policy(standing: PolicyInForce) -> Iterator[Figure]:
    digests = (standing.wanted_digest, standing.digest)
    labels = tuple("" if digest is None else digest[:_DIGITS] for digest in digests)
    yield Figure(metric=POLICY_INFO, values={labels: 1.0})
    yield Figure(metric=POLICY_REFUSED, values={(): float(standing.refused is not None)})


def _ages(known: Known, moment: Moment) -> Iterator[tuple[Labels, float]]:
    read_s: dict[str, float | None] = dict.fromkeys(SOURCES)
    read_s |= {name: status.read_s for name, status in known.sources.items()}
    read_s |= {"driver": known.driver_read_s, **moment.followed_s}
    for name, at_s in read_s.items():
        yield (name,), max(0.0, moment.now_s - (moment.started_s if at_s is None else at_s))


def _floats(counts: Mapping[Pair, int]) -> dict[Labels, float]:
    return {labels: float(number) for labels, number in counts.items()}
