"""Find out what can hold a container on each GPU of this node, and what the policy makes of it.

A means is only there if it was seen to work just now; so it is looked for again when GPUs or driver change, and from
time to time, since whoever manages the node may enable or lose it. One that the policy wishes for and that was not
there is looked for sooner: a driver that is busy once must not leave containers without a limit for minutes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sharer.core.enforcer import Enforcer
from sharer.core.inventory import Inventory
from sharer.core.limits.limits import Terms, make_terms, with_driver_limits
from sharer.core.policy.enforcers import WATCHING, Availability, Reasons
from sharer.core.slices.cut import Target, all_targets
from sharer.flows.state import NodeState, NodeView

RECHECK_S = 600.0
RETRY_S = 10.0  # while something that is wished for is not there; twice as long each time


class AvailabilityCheck:
    """Remembers what was checked when. For one thread."""

    def __init__(self, enforcers: Sequence[Enforcer]) -> None:
        self._enforcers = enforcers
        self._checked: object = None
        self._checked_s, self._wait_s = 0.0, 0.0

    def __call__(self, state: NodeState, now_s: float) -> str | None:
        """Bring `NodeView.enforcers`, and what follows from it for Allocate, up to date. Returns what changed.

        Does nothing while neither GPUs nor policy have changed, for some minutes. Never raises: what does not answer
        cannot hold anything, with the reason.
        """
        before = state.view
        if before.inventory is None:
            return None
        enforcers = before.enforcers
        what = (_what_matters(before.inventory), _answering(before))
        is_new = what != self._checked
        is_due = is_new or now_s - self._checked_s >= self._wait_s
        if is_due:
            enforcers = {target.uuid: self._ask(target) for target in all_targets(before.inventory)}
            self._checked, self._checked_s = what, now_s
            if enforcers == before.enforcers:
                enforcers = before.enforcers
        terms = make_terms(before.inventory, before.policy.policy, enforcers)
        if is_due:
            soon_s = RETRY_S if is_new or enforcers is not before.enforcers else 2 * self._wait_s
            self._wait_s = min(soon_s, RECHECK_S) if _is_lacking(enforcers, terms) else RECHECK_S
        facts = before.facts if before.facts is None else with_driver_limits(before.facts, terms)
        if enforcers is not before.enforcers or facts is not before.facts:
            state.change(enforcers=enforcers, facts=facts)
        return "; ".join(_news(before.enforcers, enforcers, terms)) or None

    def _ask(self, target: Target) -> Reasons:
        return {enforcer.name: enforcer.available(target) for enforcer in self._enforcers}


def terms_of(view: NodeView) -> dict[str, Terms]:
    """How promises on each device are to be kept now, by UUID."""
    if view.inventory is None:
        return {}
    return make_terms(view.inventory, view.policy.policy, view.enforcers)


def _what_matters(inventory: Inventory) -> object:
    """Everything of the inventory that an enforcer's answer may follow from."""
    return (
        inventory.driver_version,
        [(one.uuid, one.gpu.mig_enabled, one.gpu.lost, one.mig) for one in all_targets(inventory)],
    )


def _answering(view: NodeView) -> object:
    """Which MPS control daemons have ever answered, and how: they come later than the GPUs."""
    return [(name, daemon.interface, list(daemon.gpus)) for name, daemon in view.mps.daemons.items()]


def _is_lacking(found: Availability, terms: dict[str, Terms]) -> bool:
    """Whether something that the policy names cannot hold some device; also for slices that an earlier one promised."""
    return any(
        reasons[name] is not None
        for uuid, reasons in found.items()
        for name in (terms[uuid].wished | {*terms[uuid].memory.enforce}) & reasons.keys() - WATCHING
    )


def _news(before: Availability, after: Availability, terms: dict[str, Terms]) -> Iterator[str]:
    """What is new of those means that the policy wishes for; devices of which the same is true together."""
    said: dict[tuple[str, str | None], list[str]] = {}
    wishing: dict[str, int] = {}
    for uuid, reasons in after.items():
        for name in terms[uuid].wished & reasons.keys() - WATCHING:
            wishing[name] = wishing.get(name, 0) + 1
            known = before.get(uuid, {})
            if name not in known or known[name] != reasons[name]:
                said.setdefault((name, reasons[name]), []).append(uuid)
    for (name, why), uuids in said.items():
        which = ", ".join(uuids) if len(uuids) < wishing[name] else "every GPU" if why is None else "any GPU"
        yield f"{name} can hold limits on {which}" if why is None else f"{name} cannot hold limits on {which}: {why}"
