"""Everything that an agent knows at one moment, gathered for a report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field

from sharer.core.change.rollout import PolicyInForce
from sharer.core.change.transition import Listing
from sharer.core.edits import NodeFacts
from sharer.core.enforcement import Hold
from sharer.core.health import Health
from sharer.core.holders.evidence import SourceStatus
from sharer.core.holders.findings import Finding
from sharer.core.holders.ledger import Ledger
from sharer.core.inventory import Inventory
from sharer.core.mps.service import MpsServices
from sharer.core.mps.state import MpsWanted
from sharer.core.offers import Faults, Offer
from sharer.core.slices.plan import Plan
from sharer.core.told import EventCounts, Evictions
from sharer.core.values import dataclass

Stamp = Callable[[float], str]
"""Turns a time on the agent's clock into RFC 3339 in UTC, the same one each time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """What does not change while an agent runs."""

    node_name: str
    version: str  # of the agent
    kernel: str | None = None
    cgroup: str | None = None  # "v1", "v2", "hybrid"; None: the host's mount is not seen


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """Everything that an agent knows at one moment and tells of.

    `flows/tell/report` makes it of a `flows.state.NodeView`: without what only the flows go by to do their next step.
    """

    inventory: Inventory | None = None
    driver_problem: str | None = None
    driver_read_s: float | None = None  # when the driver last answered; None: never
    paused: str | None = None  # why no slice is given out, by a label of the node; None: no label says so
    policy: PolicyInForce = field(default_factory=PolicyInForce)
    plan: Plan = field(default_factory=Plan)
    listing: Listing = field(default_factory=Listing)
    ledger: Ledger = field(default_factory=Ledger)
    offers: Mapping[str, Offer] = field(default_factory=dict)
    facts: NodeFacts | None = None
    health: Health = field(default_factory=Health)
    faults: Faults = field(default_factory=dict)
    sources: Mapping[str, SourceStatus] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    holds: Mapping[tuple[str, str, str], Hold] | None = None
    """Pod UID, container and device UUID -> how its memory promise stands; None: nothing was looked at yet."""
    share_holds: Mapping[tuple[str, str, str], Hold] = field(default_factory=dict)  # … how its share of SMs stands
    mps: MpsServices = field(default_factory=MpsServices)  # what the MPS control daemons do
    mps_wanted: tuple[MpsWanted, ...] | None = None  # what they are to serve; None: not known yet
    lifts: int = 0  # limits that somebody else had changed and that were set again, since the agent's start
    evictions: Evictions = field(default_factory=Evictions)
    events: EventCounts = field(default_factory=EventCounts)
