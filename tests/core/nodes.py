"""A node that went from policy to policy, with slices that are held, and its report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sharer.core.change.transition import Listing, step
from sharer.core.holders.evidence import Evidence, ProcessReading, SliceKey
from sharer.core.holders.ledger import Entry, Ledger
from sharer.core.inventory import Inventory, Topology
from sharer.core.known import About, Known
from sharer.core.offers import Faults, Obstacles, make_offers
from sharer.core.policy.model import MemoryPolicy, Policy
from sharer.core.report.account import report_node
from sharer.core.report.node import NodeReport
from sharer.core.slices.plan import make_plan
from tests.core.builders import policy

ABOUT = About(node_name="node-7", version="1.2.3", kernel="6.1.0", cgroup="v2")
UNLIMITED = MemoryPolicy(limit=None)
NOW_S = 1000.0


def known(
    inventory: Inventory,
    *policies: Policy,
    entries: Mapping[SliceKey, Entry] | None = None,
    faults: Faults | None = None,
    processes: ProcessReading | None = None,
    every_s: float = 10.0,
    **parts: object,
) -> Known:
    """A node that went from policy to policy, with the slices of the end held all the time."""
    ledger = Ledger(entries=entries or {}, evidence=Evidence(processes=processes))
    listing, plan = Listing(), make_plan(inventory, policy())
    for number, wanted in enumerate(policies):
        plan = make_plan(inventory, wanted)
        for passed_s in (0.0, 3.0):
            now_s = NOW_S - every_s * (len(policies) - 1 - number) + passed_s - 3.0
            listing = step(listing, plan, ledger, now_s, patience_s=600.0)
    offers = make_offers(plan, listing, ledger, inventory, Topology(), Obstacles(faults=faults or {}))
    whole = Known(inventory=inventory, plan=plan, listing=listing, ledger=ledger, offers=offers, faults=faults or {})
    return replace(whole, **parts)  # type: ignore[arg-type]  # of `Known`


def report(what: Known) -> NodeReport:
    return report_node(what, ABOUT, NOW_S, lambda at_s: f"at {at_s:g}")
