"""The GpuNode: what the API server is told of a node (DESIGN §8).

Its status is the NodeReport's without what changes by itself: no used bytes, no reading's age, no time that moves on
while all stays as it is. Two looks at an unchanged node give the same GpuNode, so nothing is written for them.
`observedAt` is the time of the last change, and a holder's `verifiedAt` the time from which on each look has seen its
limit in force. It is small enough for a fleet: see `core/report/gpu_node_size`.

`summary` is for kubectl's columns, which cannot add up (api-server-facts §3); all of it follows from the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from sharer.core.known import About, Known, Stamp
from sharer.core.report.account import report_status
from sharer.core.report.gpu_node_size import TEXT_BYTES, fitted, plain, shortened
from sharer.core.report.inventory import InventoryReport, report_inventory
from sharer.core.report.node import NodeStatus, PolicyReport, WarningReport
from sharer.core.values import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A node in one line. Units and null as in the rest."""

    gpus: int | None  # physical ones; null: the driver has not answered yet
    products: str | None  # "NVIDIA A100-SXM4-80GB", "2x NVIDIA A100-SXM4-80GB, 1x NVIDIA T4"
    resources: str  # the names, by comma; "" is none
    slices: int  # of all resources together, as the next five
    held: int
    free: int
    quarantined: int
    draining: int
    unhealthy: int
    policy: str | None  # the key of the policy in force, or its file; null: none is
    state: str  # "ok", or what somebody should look at, by comma


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuNode:
    """What is published of one node."""

    name: str  # as the Node's
    summary: Summary
    status: NodeStatus

    def status_fields(self) -> dict[str, object]:
        """The object's `status`: names in camelCase, unknown is null."""
        summary, status = plain(self.summary), plain(self.status)
        assert isinstance(status, dict)
        return {"observedAt": status.pop("observedAt"), "summary": summary, **status}

    def _differs(self, before: GpuNode) -> bool:
        """In more than the time at which it was made."""
        status = replace(self.status, observed_at=before.status.observed_at)
        return (self.name, self.summary, status) != (before.name, before.summary, before.status)

    def is_fleet_news(self, before: GpuNode) -> bool:
        """Whether it differs in what may change on every node at once: agent, driver, policy."""
        ours, theirs = self.status, before.status
        return (ours.agent, ours.node, ours.policy) != (theirs.agent, theirs.node, theirs.policy)


def make_gpu_node(known: Known, about: About, before: GpuNode | None, now_s: float, stamp: Stamp) -> GpuNode:
    """What to publish now; `before` itself, if that is still so. `before`: what was made last, None the first time."""
    told = report_status(_steady(known), about, now_s, stamp)
    now = stamp(now_s)
    status = fitted(replace(told, warnings=tuple(replace(one, since=now) for one in told.warnings)))
    if before is not None:
        status = replace(status, warnings=tuple(_since(before.status.warnings, status.warnings)))
    inventory = None if known.inventory is None else report_inventory(known.inventory)
    summary = _summary(known, told, inventory)
    made = GpuNode(name=about.node_name, summary=summary, status=status)
    return made if before is None or made._differs(before) else before


def _steady(known: Known) -> Known:
    """The same knowledge, in words and times that stay while nothing happens."""
    holds = known.holds
    return replace(
        known,
        findings=tuple(finding.without_use() for finding in known.findings),
        holds=None if holds is None else {key: replace(hold, verified_s=hold.since_s) for key, hold in holds.items()},
    )


def _since(before: Iterable[WarningReport], now: Iterable[WarningReport]) -> Iterator[WarningReport]:
    """The warnings of now, each with the time at which it was first among them."""
    known = {(one.reason, one.message): one.since for one in before}
    for one in now:
        yield replace(one, since=known.get((one.reason, one.message), one.since))


def _summary(known: Known, status: NodeStatus, inventory: InventoryReport | None) -> Summary:
    def total(of: str) -> int:
        return sum(getattr(resource, of) for resource in status.resources)

    return Summary(
        gpus=None if inventory is None else len(inventory.gpus),
        products=shortened(_products(inventory), TEXT_BYTES),
        resources=shortened(", ".join(one.name for one in status.resources), TEXT_BYTES) or "",
        slices=total("slices"),
        held=total("held"),
        free=total("free"),
        quarantined=total("quarantined"),
        draining=total("draining"),
        unhealthy=total("unhealthy"),
        policy=shortened(_policy_name(status.policy), TEXT_BYTES),
        state=shortened(", ".join(_concerns(known, status)), TEXT_BYTES) or "ok",
    )


def _products(inventory: InventoryReport | None) -> str | None:
    if inventory is None or not inventory.gpus:
        return None
    counts = Counter(gpu.product or "unknown" for gpu in inventory.gpus)
    if len(counts) == 1:
        return next(iter(counts))
    return ", ".join(f"{count}x {product}" for product, count in counts.items())


def _policy_name(policy: PolicyReport) -> str | None:
    """The last word of where it was read: the key in a ConfigMap, or a file."""
    return None if policy.in_force is None else policy.in_force.rpartition(" key ")[2]


def _concerns(known: Known, status: NodeStatus) -> Iterator[str]:
    """What somebody should look at, in few words."""
    if known.paused is not None:
        yield "paused"
    elif known.inventory is None or known.driver_problem is not None:
        yield "driver does not answer"
    if status.policy.refused is not None:
        yield "policy refused"
    elif status.policy.in_force is None:
        yield "no policy"
    if status.policy.staged is not None:
        yield "policy staged"
    counts: dict[str, int] = {
        "unhealthy": sum(gpu.health == "unhealthy" for gpu in status.gpus),
        "quarantined": sum(resource.quarantined for resource in status.resources),
        "over": sum(resource.over_by for resource in status.resources),
        "draining": sum(resource.draining for resource in status.resources),
        **Counter(finding.kind.value for finding in known.findings),
    }
    yield from (f"{count} {what}" for what, count in counts.items() if count)
