"""Look at the policies again. A good one replaces the one in force at this node's turn; a wrong one is only shown."""

from __future__ import annotations

from collections.abc import Callable

from sharer.core.change.choice import KnownLabels, NodeLabels, UnknownLabels, choose_policy
from sharer.core.change.rollout import (
    PolicyInForce,
    is_new,
    refuse,
    stage,
    take_turn,
    wanted_as_it_is,
    why_staged,
    withdraw,
)
from sharer.core.errors import NodeError, PolicyError
from sharer.core.inventory import Inventory
from sharer.core.policy.model import Policy
from sharer.core.ports.policy import PolicyMemory, PolicySource, PolicyText
from sharer.core.slices.plan import check_lists
from sharer.core.unchanged import while_unchanged
from sharer.core.values import replace
from sharer.flows.state import NodeState, NodeView

LABELS_WAIT_S = 30.0  # a node without any policy waits so long for its labels, then takes the declared default

ReadPolicy = Callable[[PolicyText], Policy]
"""Turns text into a policy. Raises PolicyError. The one parser of agent, command line and chart."""


def reload(
    state: NodeState,
    source: PolicySource,
    memory: PolicyMemory,
    read: ReadPolicy,
    *,
    node_name: str,
    labels: NodeLabels,
    now_s: float,
) -> str | None:
    """Take the policy that is wanted now, once it can be accepted and this node's turn has come.

    Returns what came into force, and what a good policy waits for; None: neither. Raises PolicyError for a text seen
    for the first time that is refused, NodeError if there is no text.
    """
    view = state.view
    standing = _of_last_run(memory, read, now_s) if view.policy.asked_s is None else view.policy
    standing = _if_it_can_be_offered(standing, view, memory, read)
    try:
        shelf = source.shelf()
    except NodeError as error:
        state.change(policy=replace(standing, unread=str(error)))
        raise
    choice = choose_policy(shelf, _labels(labels, standing, now_s), is_first=standing.policy is None)
    standing = replace(standing, wanted_name=choice.name, unread=None, warnings=choice.warnings)
    text = choice.text
    if text is None and choice.name is None:
        state.change(policy=replace(standing, unread=choice.problem))
        return _sentence(_news(view.policy, standing), choice.problem)
    if text is None:
        state.change(policy=refuse(standing, str(choice.problem)))
        raise NodeError(choice.problem)
    if is_new(standing, text, view.inventory):
        try:
            policy = read(text)
        except PolicyError as error:
            state.change(policy=refuse(standing, str(error), text.digest))
            raise
        if view.inventory is not None and (too_much := _too_much(view.inventory, policy)) is not None:
            state.change(policy=refuse(standing, str(too_much), text.digest, on=view.inventory))
            raise too_much
        standing = stage(standing, policy, text, node_name, now_s)
    standing = take_turn(wanted_as_it_is(standing, text), labels, now_s)
    if (
        standing.digest == text.digest
        and standing.policy is not None
        and view.inventory is not None
        and _too_much(view.inventory, standing.policy) is None
    ):
        memory.keep(text)  # also one that is in force for long: the disk may have been full until now
    state.change(policy=standing)
    return _sentence(_news(view.policy, standing), why_staged(standing))


@while_unchanged
def _too_much(inventory: Inventory, policy: Policy) -> PolicyError | None:
    """Why the kubelet could not receive the lists of a policy on this node; None: it could."""
    try:
        check_lists(inventory, policy)
    except PolicyError as error:
        return error
    return None


def _if_it_can_be_offered(
    standing: PolicyInForce, view: NodeView, memory: PolicyMemory, read: ReadPolicy
) -> PolicyInForce:
    """What stands, less a policy of which the kubelet could receive nothing, as was not known without the driver.

    The last good one is in force then, if there is another and it fits. Where slices are offered, they stay.
    """
    inventory = view.inventory
    if inventory is None or standing.policy is None or view.plan.resources:
        return standing
    if _too_much(inventory, standing.policy) is None:
        return standing
    kept = _of_last_run(memory, read, standing.asked_s)
    if kept.policy is None or kept.digest == standing.digest or _too_much(inventory, kept.policy) is not None:
        return withdraw(standing)
    return withdraw(standing, kept.policy, kept.digest)


def _labels(labels: NodeLabels, standing: PolicyInForce, now_s: float) -> NodeLabels:
    """The labels, or their absence where a node without any policy has waited for them long enough."""
    asked_s = now_s if standing.asked_s is None else standing.asked_s
    waited = now_s - asked_s >= LABELS_WAIT_S
    if isinstance(labels, UnknownLabels) and standing.policy is None and (waited or labels.for_long):
        return KnownLabels(problem=f"this node's labels count as absent: {labels.reason}")
    return labels


def _of_last_run(memory: PolicyMemory, read: ReadPolicy, asked_s: float | None) -> PolicyInForce:
    """What stands at the start: the policy that was in force when the agent last ended."""
    kept = memory.last_good()
    if kept is not None:
        try:
            return PolicyInForce(policy=read(kept), digest=kept.digest, asked_s=asked_s)
        except PolicyError:
            pass  # written by another version, which accepted what this one does not: as good as none
    return PolicyInForce(asked_s=asked_s)


def _sentence(*parts: str | None) -> str | None:
    return "; ".join(part for part in parts if part is not None) or None


def _news(before: PolicyInForce, after: PolicyInForce) -> str | None:
    if after.policy is None or after.digest is None or after.digest == before.digest:
        return None
    return f"policy in force: {after.policy.source}, {after.digest[:12]}"
