"""What Kubernetes should be told of by Events, worked out from what is known now (DESIGN §8).

On pods: LimitNotEnforced, OverPromise, Evicted, Unserved. On the node: PolicyRefused, GpuFault, GpuRecovered,
SliceQuarantined, RivalPlugin. Most are conditions: true for a while, and found here. Evicted and GpuRecovered happen at
one moment; who brings them about tells of them. When each is told, and how often, is `core/tell/notices`.

A pod that the API server does not name is told nothing: an Event needs its name and its UID there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum

from sharer.core.change.rollout import PolicyInForce
from sharer.core.device_id import uuid_part
from sharer.core.enforcement import Enforcement
from sharer.core.holders.findings import Finding, FindingKind
from sharer.core.holders.ledger import Ledger, State
from sharer.core.holders.observations import PodSeen
from sharer.core.inventory import Inventory
from sharer.core.limits.excess import Excess
from sharer.core.offers import Faults
from sharer.core.policy.enforcers import Promise
from sharer.core.values import dataclass

PASSING_S = 30.0  # what is over by itself within this time is no news: a start, a slow end after a force delete


class Reason(StrEnum):
    """The word by which an Event is looked for."""

    LIMIT_NOT_ENFORCED = "LimitNotEnforced"
    OVER_PROMISE = "OverPromise"
    EVICTED = "Evicted"
    UNSERVED = "Unserved"
    POLICY_REFUSED = "PolicyRefused"
    GPU_FAULT = "GpuFault"
    GPU_RECOVERED = "GpuRecovered"
    SLICE_QUARANTINED = "SliceQuarantined"
    RIVAL_PLUGIN = "RivalPlugin"


NewsKey = tuple[str, Reason, str]
"""The pod's UID in the API ("": the node), the reason, and which part of it. What names an Event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """One thing that is so, or has happened."""

    reason: Reason
    message: str  # a sentence without a full stop; its words may change while it stays the same news
    about: str = ""  # which part: a container, a GPU
    pod: PodSeen | None = None  # None: it is about the node
    lasting_s: float = 0.0  # how long it must have been so before it is told

    @property
    def key(self) -> NewsKey:
        """What makes it this news and no other."""
        return ("" if self.pod is None else self.pod.uid, self.reason, self.about)

    @property
    def is_warning(self) -> bool:
        """Whether somebody should do something about it."""
        return self.reason is not Reason.GPU_RECOVERED


def find_news(
    *,
    inventory: Inventory | None,
    policy: PolicyInForce,
    ledger: Ledger,
    faults: Faults,
    findings: Iterable[Finding],
    enforcement: Enforcement,
    excesses: Iterable[Excess],
) -> Iterator[News]:
    """Everything that is so now and worth an Event, the node's first."""
    seen = ledger.evidence.pods_by_cgroup()
    pods = {uid: pod for uid, pod in seen.items() if not pod.phase.is_terminal}
    if policy.refused is not None:
        yield News(reason=Reason.POLICY_REFUSED, message=policy.refused)
    for uuid, reason in sorted(faults.items()):
        message = f"{_title(uuid, inventory)} is at fault: {reason}; its slices are Unhealthy"
        yield News(reason=Reason.GPU_FAULT, about=uuid, message=message)
    yield from _quarantined(ledger, inventory)
    findings = tuple(findings)
    for finding in findings:
        if finding.kind is FindingKind.CONTESTED and finding.gpu_uuid is not None:
            message = f"{finding.message}; {finding.cure}"
            yield News(reason=Reason.RIVAL_PLUGIN, about=finding.gpu_uuid, message=message)
    over = {}
    for excess in excesses:
        (uid, container, _), uuid = excess.key
        over[uid, container, uuid] = excess
        if uid in pods and excess.readings >= 2:
            about = f"{container} {uuid}"
            yield News(reason=Reason.OVER_PROMISE, pod=pods[uid], about=about, message=excess.sentence)
    for finding in findings:
        if finding.kind is FindingKind.UNSERVED and finding.uid in pods:
            about, message = f"{finding.container} {finding.resource}", f"{finding.message}; {finding.cure}"
            yield News(reason=Reason.UNSERVED, pod=pods[finding.uid], about=about, message=message)
    for (uid, container, promise), reasons in sorted(_not_enforced(ledger, enforcement, over.keys()).items()):
        if uid in pods:
            why = "; ".join(f"on {', '.join(sorted(uuids))}: {reason}" for reason, uuids in sorted(reasons.items()))
            yield News(
                reason=Reason.LIMIT_NOT_ENFORCED,
                pod=pods[uid],
                about=f"{container} {promise}",
                message=f"container {container} is not held to the {promise} it was promised {why}",
                lasting_s=PASSING_S,
            )


def recovered(uuid: str, inventory: Inventory | None) -> Iterator[News]:
    """A GPU or MIG device that was told to be at fault is not any more; no news if it is not there any more."""
    title = _title(uuid, inventory)
    if title != uuid:
        yield News(reason=Reason.GPU_RECOVERED, about=uuid, message=f"{title} is healthy again")


def evicted(excess: Excess, pod: PodSeen) -> News:
    """A pod was asked to end for what one of its containers uses."""
    (_, container, _), uuid = excess.key
    message = f"{excess.message}, and the policy says onExceed: evict"
    return News(reason=Reason.EVICTED, pod=pod, about=f"{container} {uuid}", message=message)


def _quarantined(ledger: Ledger, inventory: Inventory | None) -> Iterator[News]:
    """One for each GPU: a node with many quarantined slices has one trouble, not many."""
    reasons: dict[str, dict[str, int]] = {}
    for (_, device_id), entry in sorted(ledger.entries.items()):
        if entry.state is State.QUARANTINED:
            found = reasons.setdefault(uuid_part(device_id), {})
            found[entry.reason] = found.get(entry.reason, 0) + 1
    for uuid, counts in reasons.items():
        told = "; ".join(f"{count} × {reason}" for reason, count in counts.items())
        message = f"slices of {_title(uuid, inventory)} are in quarantine: {told}"
        yield News(reason=Reason.SLICE_QUARANTINED, about=uuid, message=message, lasting_s=PASSING_S)


def _not_enforced(
    ledger: Ledger, enforcement: Enforcement, over: Iterable[tuple[str, str | None, str]]
) -> Mapping[tuple[str, str, Promise], Mapping[str, set[str]]]:
    """Pod UID, container and promise -> reason -> devices. Who is above its promise is told of for that."""
    owners = {(entry.owner.uid, entry.owner.container) for entry in ledger.entries.values() if entry.owner is not None}
    known = set(over)
    found: dict[tuple[str, str, Promise], dict[str, set[str]]] = {}
    for promise in Promise:
        for (uid, container, uuid), hold in enforcement.by_container(promise).items():
            if hold.by is None and (uid, container) in owners and (uid, container, uuid) not in known:
                found.setdefault((uid, container, promise), {}).setdefault(hold.reason or "", set()).add(uuid)
    return found


def _title(uuid: str, inventory: Inventory | None) -> str:
    """A GPU or MIG device, for people."""
    for gpu in () if inventory is None else inventory.gpus:
        if gpu.uuid == uuid:
            return f"GPU {gpu.index}, {uuid},"
        for mig in gpu.mig_devices:
            if mig.uuid == uuid:
                return f"MIG device {mig.index} of GPU {gpu.index}, {uuid},"
    return uuid
