"""Read the policy again. A good one replaces the one in force; a wrong one is shown and changes nothing."""

from __future__ import annotations

from collections.abc import Callable

from sharer.core.errors import NodeError, PolicyError
from sharer.core.plan import make_plan
from sharer.core.policy import Policy
from sharer.core.ports import PolicyMemory, PolicySource, PolicyText
from sharer.flows.state import NodeState, PolicyInForce

ReadPolicy = Callable[[PolicyText], Policy]
"""Turns text into a policy. Raises PolicyError. The one parser of agent, command line and chart."""


def reload(state: NodeState, source: PolicySource, memory: PolicyMemory, read: ReadPolicy) -> str | None:
    """Take the policy that is wanted now, if it can be accepted. Returns what changed, or None.

    Raises PolicyError for a text seen for the first time that is refused, NodeError if there is no text.
    """
    try:
        wanted = source.wanted()
    except NodeError as error:
        if state.view.policy.policy is None:
            _remember(state, memory, read, refused=str(error))
        raise
    if wanted.digest == state.view.policy.wanted_digest:
        return None
    try:
        policy = read(wanted)
        if state.view.inventory is not None:
            make_plan(state.view.inventory, policy)  # a list that the kubelet could not receive refuses the policy
    except PolicyError as error:
        _remember(state, memory, read, refused=str(error), wanted_digest=wanted.digest)
        raise
    state.change(policy=PolicyInForce(policy=policy, digest=wanted.digest, wanted_digest=wanted.digest))
    memory.keep(wanted)
    return f"policy in force: {wanted.source}, {wanted.digest[:12]}"


def _remember(
    state: NodeState, memory: PolicyMemory, read: ReadPolicy, *, refused: str, wanted_digest: str | None = None
) -> None:
    """Note a refusal. Without any policy in force yet, the last good one of an earlier run stands in."""
    policy, digest = state.view.policy.policy, state.view.policy.digest
    if policy is None and (kept := memory.last_good()) is not None:
        try:
            policy, digest = read(kept), kept.digest
        except PolicyError:
            policy = None  # damaged, or written by another version: as good as none
    state.change(policy=PolicyInForce(policy=policy, digest=digest, wanted_digest=wanted_digest, refused=refused))
