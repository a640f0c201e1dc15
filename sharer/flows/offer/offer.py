"""Lay the policy over the inventory, work out the next step from what is listed, and hand the kubelet its lists."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from sharer.core.brief import some
from sharer.core.change.transition import Listing, step
from sharer.core.device_id import DeviceId, recognise
from sharer.core.errors import PolicyError
from sharer.core.limits.limits import needs_pre_start
from sharer.core.offers import Obstacles, find_faults, make_offers
from sharer.core.policy.model import Policy, Rivals
from sharer.core.ports.injection import SliceSpecs
from sharer.core.ports.kubelet import KubeletLink, ResourceAnswers, ResourceOptions
from sharer.core.slices.plan import Plan, make_plan
from sharer.core.values import replace
from sharer.flows.look.availability import terms_of
from sharer.flows.state import Basis, NodeState, NodeView

AnswersFor = Callable[[str], ResourceAnswers]
"""Makes the answers of a resource, given its name."""

_STAYS = "what was offered before stays as it is"


def offer(
    state: NodeState, kubelet: KubeletLink, specs: SliceSpecs, answers_for: AnswersFor, now_s: float
) -> str | None:
    """Bring plan, faults and lists up to date and hand the lists over. Returns what changed; None: nothing did.

    Cheap while nothing that matters has changed.
    """
    before = state.view
    if before.inventory is None or before.facts is None:
        return None
    policy = before.policy.policy
    plan = _plan(before)
    faults = before.health.faults() | find_faults(before.inventory, before.facts, before.ledger.entries)
    if before.paused is not None:
        faults = {gpu.uuid: before.paused for gpu in before.inventory.gpus} | faults
    basis = Basis(
        inventory=before.inventory,
        policy=policy,
        faults=faults,
        topology=before.topology,
        entries=before.ledger.entries,
        contested=frozenset() if policy is not None and policy.rivals is Rivals.IGNORE else before.findings.contested,
        enforcers=before.enforcers,
        mps=before.mps,
    )
    listing, offers = before.listing, before.offers
    if basis != before.basis or not listing.is_settled:
        patience_s = (policy or Policy(rules=())).drain_patience_s
        listing = step(listing, plan, before.ledger, now_s, patience_s=patience_s)
        obstacles = Obstacles(faults=faults, contested=basis.contested, mps=before.mps)
        offers = make_offers(plan, listing, before.ledger, before.inventory, before.topology, obstacles)
        # What is as it was stays the same object: the kubelet's server and views that others still read have it, too.
        listing = before.listing if listing == before.listing else listing
        offers = {name: old if (old := before.offers.get(name)) == new else new for name, new in offers.items()}
    elif before.facts is before.facts_offered and not (specs.is_behind or specs.has_leftovers):
        return None
    # Before an ID is listed, everything that an answer for it names must exist (kubelet-contract §19, row 38).
    ids = [one.id for new in offers.values() for one in new.slices.values()]
    facts = specs.write(ids, before.facts)
    after = state.change(
        plan=plan, facts=facts, facts_offered=facts, faults=faults, listing=listing, offers=offers, basis=basis
    )
    _hand_over(kubelet, before, after, answers_for)
    # What is not listed any more was seen to be held by nobody; what an earlier run has left, once that can be told.
    is_first_time = listing.is_settled and not before.listing.is_settled
    if is_first_time or before.listing.ids.keys() - listing.ids.keys() or specs.has_leftovers:
        specs.keep_only(ids)
    return "; ".join(_news(before, after)) or None


def _plan(view: NodeView) -> Plan:
    """The plan of the policy in force. What was offered before is adopted where it is near enough.

    A policy that was in force before all these GPUs were there may ask for more of them than the kubelet receives. Then
    the plan before stays, with a warning, and the lists of it go on telling of faults and holders.
    """
    policy, basis = view.policy.policy, view.basis
    if policy is None or view.inventory is None:
        return view.plan
    namespaced = view.mps.namespaced
    wanted = (view.inventory, policy, view.enforcers, namespaced)
    if basis is not None and (basis.inventory, basis.policy, basis.enforcers, basis.mps.namespaced) == wanted:
        return view.plan
    adopt = _adoptable(view)
    try:
        return make_plan(view.inventory, policy, adopt=adopt, enforcers=view.enforcers, namespaced=namespaced)
    except PolicyError as error:
        others = (warning for warning in view.plan.warnings if not warning.startswith(_STAYS))
        return replace(view.plan, warnings=(*others, f"{_STAYS}: {error}"))


def _adoptable(view: NodeView) -> list[DeviceId]:
    """What was offered before; and where nothing was, as after a restart of the agent, what may be held."""
    offered = [one.id for one in view.plan.slices()]
    uuids = {one.uuid for one in offered}
    checkpoint = view.ledger.evidence.checkpoint
    given = () if checkpoint is None else (device_id for one in checkpoint.entries for device_id in one.ids)
    held = (recognise(text) for text in {*given, *(device_id for _, device_id in view.ledger.entries)})
    return offered + [one for one in held if one is not None and one.uuid not in uuids]


def _hand_over(kubelet: KubeletLink, before: NodeView, after: NodeView, answers_for: AnswersFor) -> None:
    same_policy = before.basis is not None and before.basis.policy == after.policy.policy
    terms = terms_of(after)
    # What is listed already comes first: an ID that moves to a new name is Unhealthy under the old one by then.
    for name, new in sorted(after.offers.items(), key=lambda offer: offer[0] not in before.offers):
        old = before.offers.get(name)
        if old is None or new.devices != old.devices or not same_policy:
            options = ResourceOptions(pre_start_required=needs_pre_start(new.slices.values(), terms))
            kubelet.offer(name, options, new.devices, answers_for(name))
    for name in before.offers.keys() - after.offers.keys():
        kubelet.withdraw(name)


def _news(before: NodeView, after: NodeView) -> Iterable[str]:
    if after.plan != before.plan:
        counts = [f"{len(resource.slices)} × {resource.name}" for resource in after.plan.resources]
        yield f"planned {', '.join(counts) or 'nothing'}"
        for refusal in after.plan.refusals:
            yield f"{refusal.device}, {refusal.uuid}, offers nothing: {refusal.reason}"
        yield from (f"warning: {warning}" for warning in after.plan.warnings)
    for uuid in sorted(after.faults.keys() - before.faults.keys()):
        if after.faults[uuid] != after.paused:  # that was told, once for all of them
            yield f"{uuid} is at fault: {after.faults[uuid]}"
    there = frozenset() if after.inventory is None else after.inventory.uuids
    for uuid in sorted(before.faults.keys() - after.faults.keys()):
        yield f"{uuid} is healthy again" if uuid in there else f"{uuid} is not there any more, and nobody holds it"
    yield from _drained(before.listing, after.listing)


def _drained(before: Listing, after: Listing) -> Iterable[str]:
    draining = [device_id for (_, device_id), listed in after.ids.items() if listed.draining_s is not None]
    known = {device_id for (_, device_id), listed in before.ids.items() if listed.draining_s is not None}
    if new := sorted(set(draining) - known):
        yield f"{some(new)} drain: held, and not in the plan any more"
    if gone := sorted({device_id for _, device_id in before.ids} - {device_id for _, device_id in after.ids}):
        yield f"dropped {some(gone)}"
    for uuid, reason in after.waiting.items():
        if before.waiting.get(uuid) != reason:
            yield f"{uuid}: {reason}"
