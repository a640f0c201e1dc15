"""Nodes and Leases in the core's words, as far as a report about the fleet needs them."""

from __future__ import annotations

import datetime
from collections.abc import Mapping

from sharer.adapters.kube.client import FIELD_MANAGER
from sharer.adapters.kube.pods import is_extended, whole_number
from sharer.adapters.kube.wire import ObjectMeta, Read
from sharer.core.cluster.facts import LeaseFacts, NodeCapacity, is_telling


class Condition(Read, frozen=True):
    """One of a Node's."""

    type: str
    status: str = "Unknown"
    reason: str = ""
    message: str = ""


class NodeSpec(Read, frozen=True):
    """Of a Node."""

    unschedulable: bool = False


class NodeStatus(Read, frozen=True):
    """Of a Node."""

    capacity: dict[str, str] | None = None
    allocatable: dict[str, str] | None = None
    conditions: list[Condition] | None = None


class Node(Read, frozen=True):
    """A Node."""

    metadata: ObjectMeta
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class LeaseSpec(Read, frozen=True):
    """Of a Lease."""

    lease_duration_seconds: int | None = None
    renew_time: str | None = None


class Managed(Read, frozen=True):
    """What the API server notes of whoever sets fields of an object."""

    manager: str = ""
    time: str | None = None  # by the server's clock, when they were last changed


class LeaseMeta(ObjectMeta, frozen=True):
    """Of a Lease."""

    managed_fields: tuple[Managed, ...] = ()


class Lease(Read, frozen=True):
    """A Lease."""

    metadata: LeaseMeta
    spec: LeaseSpec = LeaseSpec()


def node_facts(node: Node) -> NodeCapacity:
    """A Node in the core's words."""
    ready = next((one for one in node.status.conditions or () if one.type == "Ready"), None)
    why = None if ready is None else ": ".join(part for part in (ready.reason, ready.message) if part)
    capacity, allocatable = _extended(node.status.capacity), _extended(node.status.allocatable)
    return NodeCapacity(
        name=node.metadata.name,
        ready=None if ready is None else ready.status == "True",
        not_ready_reason=None if ready is None or ready.status == "True" else why or None,
        cordoned=node.spec.unschedulable,
        labels={key: value for key, value in (node.metadata.labels or {}).items() if is_telling(key)},
        capacity=capacity,
        allocatable=capacity if allocatable == capacity else allocatable,  # 5,000 nodes have few different ones
    )


def _extended(amounts: Mapping[str, str] | None) -> dict[str, int | None]:
    return {name: whole_number(amount) for name, amount in (amounts or {}).items() if is_extended(name)}


def lease_facts(lease: Lease, now: datetime.datetime) -> LeaseFacts | None:
    """A Lease at `now`, which has a time zone; None: nobody has renewed it yet, or it does not say when.

    `now` is the server's clock, and `renewTime` was read from the node's, which may be hours wrong. When the agent's
    renewal came in, the server has noted itself.
    """
    spec = lease.spec
    renewed = _time(spec.renew_time)
    if spec.renew_time is None or renewed is None or spec.lease_duration_seconds is None:
        return None
    ours = [one for one in lease.metadata.managed_fields if one.manager == FIELD_MANAGER]
    came_in = [time for one in ours if (time := _time(one.time)) is not None]
    at = max([*came_in, *([renewed] if renewed <= now else [])], default=renewed)
    return LeaseFacts(
        key=f"{lease.metadata.namespace}/{lease.metadata.name}",
        renewed_at=spec.renew_time if at == renewed else at.strftime("%Y-%m-%dT%H:%M:%SZ"),
        overdue_s=(now - at).total_seconds() - spec.lease_duration_seconds,
    )


def _time(text: str | None) -> datetime.datetime | None:
    """A time with its zone; None: it is none."""
    try:
        found = None if text is None else datetime.datetime.fromisoformat(text)
    except ValueError:
        return None
    return None if found is None or found.tzinfo is None else found
