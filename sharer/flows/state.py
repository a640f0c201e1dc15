"""What this node is now, as one frozen value. One thread writes it; every kubelet answer reads a whole one."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import field

from sharer.core.change.rollout import PolicyInForce
from sharer.core.change.transition import Listing
from sharer.core.edits import NodeFacts
from sharer.core.enforcement import Enforcement
from sharer.core.health import Health
from sharer.core.holders.evidence import SliceKey, SourceStatus
from sharer.core.holders.findings import Findings
from sharer.core.holders.ledger import Entry, Ledger
from sharer.core.holders.pace import Pace
from sharer.core.inventory import Inventory, Topology
from sharer.core.limits.excess import Excess
from sharer.core.mps.service import MpsServices
from sharer.core.offers import Faults, Offer
from sharer.core.policy.enforcers import Availability
from sharer.core.policy.model import Policy
from sharer.core.slices.plan import Plan
from sharer.core.told import EventCounts, Evictions
from sharer.core.values import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Basis:
    """What the lists were made from: while it is the same, so are they."""

    inventory: Inventory
    policy: Policy | None
    faults: Faults
    topology: Topology
    entries: Mapping[SliceKey, Entry]  # of the ledger
    contested: frozenset[str]  # GPUs and MIG devices whose free slices are withheld
    enforcers: Availability
    mps: MpsServices = field(default_factory=MpsServices)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """Everything a kubelet answer or a report needs, consistent within itself.

    A `core.known.Known` is made of it for whoever tells: without what only the flows go by to do their next step.
    """

    inventory: Inventory | None = None  # None: the driver has not answered yet
    driver_problem: str | None = None  # why the last look at the driver failed
    driver_read_s: float | None = None  # when it last answered; None: never
    paused: str | None = None  # why no slice is given out, by a label of the node; None: no label says so
    let_go: bool = False  # of the driver: it must not be asked now. A pause outlasts that until the driver answers
    policy: PolicyInForce = field(default_factory=PolicyInForce)
    plan: Plan = field(default_factory=Plan)
    ledger: Ledger = field(default_factory=Ledger)
    listing: Listing = field(default_factory=Listing)
    topology: Topology = field(default_factory=Topology)  # empty until it was read, and where nothing needs it
    facts: NodeFacts | None = None
    health: Health = field(default_factory=Health)
    recovery_counted: str | None = None  # the last annotation of an operator that had its effect
    faults: Faults = field(default_factory=dict)
    offers: Mapping[str, Offer] = field(default_factory=dict)  # by resource name
    basis: Basis | None = None  # of the lists; None: nothing was offered yet
    facts_offered: NodeFacts | None = None  # those under which everything that is listed can be given
    pace: Pace = field(default_factory=Pace)
    findings: Findings = field(default_factory=Findings)
    enforcers: Availability = field(default_factory=dict)  # what can hold which GPU or MIG device
    enforcement: Enforcement = field(default_factory=Enforcement)  # which promise is held by what
    excesses: tuple[Excess, ...] = ()  # containers above their promise
    mps: MpsServices = field(default_factory=MpsServices)  # what the MPS control daemons do
    evictions: Evictions = field(default_factory=Evictions)
    events: EventCounts = field(default_factory=EventCounts)
    sources: Mapping[str, SourceStatus] = field(default_factory=dict)  # of the ledger, by name


class NodeState:
    """Holds the present view. `change` is for the one writer; `view` is for everybody."""

    def __init__(self) -> None:
        self.view = NodeView()
        self.went_round_s = time.monotonic()  # when the writer last began a round: that it is alive

    def change(self, **parts: object) -> NodeView:
        """Replace parts of the view and return the new one; the same one if they are what they were."""
        if any(getattr(self.view, name) is not part for name, part in parts.items()):
            self.view = replace(self.view, **parts)  # type: ignore[arg-type]  # checked by the dataclass, one writer
        return self.view
