"""Tell what this node's agent knows, in the words of the NodeReport. On any thread: it reads one frozen view."""

from __future__ import annotations

from datetime import UTC, datetime

from sharer.core.known import About, Known, Stamp
from sharer.core.node_account import report_node
from sharer.core.node_report import NodeReport
from sharer.flows.state import NodeView


def report(view: NodeView, about: About, now_s: float, stamp: Stamp) -> NodeReport:
    """The report of one view. `now_s` is on the clock that `stamp` translates."""
    known = Known(
        inventory=view.inventory,
        driver_problem=view.driver_problem,
        policy=view.policy,
        plan=view.plan,
        listing=view.listing,
        ledger=view.ledger,
        offers=view.offers,
        facts=view.facts,
        health=view.health,
        faults=view.faults,
        sources=view.sources,
        findings=view.findings.found,
        holds=view.enforcement.by_container(),
    )
    return report_node(known, about, now_s, stamp)


def stamper(monotonic_s: float, wall_s: float) -> Stamp:
    """Translates the monotonic clock, given both clocks' readings of one moment; whole seconds.

    Made once a run: a time that was told once stays the same when the wall clock is set, and nothing that is published
    changes for that.
    """

    def stamp(at_s: float) -> str:
        seconds = int(wall_s + (at_s - monotonic_s))
        return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")

    return stamp
