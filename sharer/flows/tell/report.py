"""Tell what this node's agent knows, in the words of the NodeReport. On any thread: it reads one frozen view."""

from __future__ import annotations

from datetime import UTC, datetime

from sharer.core.known import About, Known, Stamp
from sharer.core.mps.state import MpsWanted
from sharer.core.mps.wanted import mps_wanted
from sharer.core.policy.enforcers import Promise
from sharer.core.report.account import report_node
from sharer.core.report.node import NodeReport
from sharer.flows.look.availability import terms_of
from sharer.flows.state import NodeView


def report(view: NodeView, about: About, now_s: float, stamp: Stamp) -> NodeReport:
    """The report of one view. `now_s` is on the clock that `stamp` translates."""
    return report_node(known_of(view), about, now_s, stamp)


def known_of(view: NodeView) -> Known:
    """What a view holds of what a report tells."""
    return Known(
        inventory=view.inventory,
        driver_problem=view.driver_problem,
        driver_read_s=view.driver_read_s,
        paused=view.paused,
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
        share_holds=view.enforcement.by_container(Promise.COMPUTE),
        mps=view.mps,
        mps_wanted=_mps_wanted(view),
        lifts=view.enforcement.lift_count,
        evictions=view.evictions,
        events=view.events,
    )


def _mps_wanted(view: NodeView) -> tuple[MpsWanted, ...] | None:
    """None until everything is listed that may be held: the supervisor ends what is not wanted, and its clients."""
    checkpoint = view.sources.get("checkpoint")
    if view.basis is None or view.policy.policy is None or checkpoint is None or checkpoint.read_s is None:
        return None
    if not view.mps.daemons:
        return ()
    return mps_wanted(view.listing, view.inventory, view.policy.policy, terms_of(view))


def stamper(monotonic_s: float, wall_s: float) -> Stamp:
    """Translates the monotonic clock, given both clocks' readings of one moment; whole seconds.

    Made once a run: a time that was told once stays the same when the wall clock is set, and nothing that is published
    changes for that.
    """

    def stamp(at_s: float) -> str:
        seconds = int(wall_s + (at_s - monotonic_s))
        return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")

    return stamp
