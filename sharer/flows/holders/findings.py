"""Look for what is not as it should be, and tell it once."""

from __future__ import annotations

import logging

from sharer.core.brief import some_sentences
from sharer.core.holders.findings import find
from sharer.core.values import replace
from sharer.flows.holders.observe import our_resources
from sharer.flows.state import NodeState

log = logging.getLogger(__name__)


def look_for_findings(state: NodeState, now_s: float) -> str | None:
    """Bring the findings up to date. Returns which are over; None: none is. New ones are warned of."""
    view = state.view
    if view.inventory is None:
        return None
    found = find(view.findings, view.ledger, view.inventory, view.plan, our_resources(view), now_s)
    pods = view.ledger.evidence.pods_by_cgroup()
    excesses = (excess.finding(pods.get(excess.key[0][0])) for excess in view.excesses)
    found = replace(found, found=(*found.found, *excesses))
    if found == view.findings:
        return None
    state.change(findings=found)
    before, after = ({one.key: one for one in findings.found} for findings in (view.findings, found))
    for key in after.keys() - before.keys():
        log.warning("%s: %s. What to do: %s", after[key].kind, after[key].message, after[key].cure)
    over = sorted(f"over: {before[key].message}" for key in before.keys() - after.keys())
    return "; ".join(some_sentences(over)) or None
