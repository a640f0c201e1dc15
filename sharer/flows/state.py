"""What this node is now, as one frozen value. One thread writes it; every kubelet answer reads a whole one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from sharer.core.edits import NodeFacts
from sharer.core.health import Health
from sharer.core.inventory import Inventory, Topology
from sharer.core.ledger import Ledger
from sharer.core.listing import Faults, Offer
from sharer.core.plan import Plan
from sharer.core.policy import Policy
from sharer.core.transition import Listing


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyInForce:
    """The policy that the plan follows, and the one that was refused after it."""

    policy: Policy | None = None  # None: no good policy was ever seen, nothing new is offered
    digest: str | None = None  # of the text in force
    wanted_digest: str | None = None  # of the last text seen, good or not
    refused: str | None = None  # every problem of the text that is wanted but refused; None: it is in force


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """Everything a kubelet answer or a report needs, consistent within itself."""

    inventory: Inventory | None = None  # None: the driver has not answered yet
    driver_problem: str | None = None  # why the last look at the driver failed
    policy: PolicyInForce = field(default_factory=PolicyInForce)
    plan: Plan = field(default_factory=Plan)
    ledger: Ledger = field(default_factory=Ledger)
    listing: Listing = field(default_factory=Listing)
    topology: Topology = field(default_factory=Topology)  # empty until it was read, and where nothing needs it
    facts: NodeFacts | None = None
    health: Health = field(default_factory=Health)
    faults: Faults = field(default_factory=dict)
    offers: Mapping[str, Offer] = field(default_factory=dict)  # by resource name


class NodeState:
    """Holds the present view. `change` is for the one writer; `view` is for everybody."""

    def __init__(self) -> None:
        self.view = NodeView()

    def change(self, **parts: object) -> NodeView:
        """Replace parts of the view and return the new one."""
        self.view = replace(self.view, **parts)  # type: ignore[arg-type]  # checked by the dataclass, one writer
        return self.view
