"""When a changed policy takes effect on this node: the nodes of a fleet take their turns over `rollout.window`.

A node's turn comes after a share of the window that follows from its name and the text, so that the order is the same
for every reader, another one for every change, and needs nobody to hand it out. The window is the new policy's own: a
correction can be made to take effect at once.

Nothing of this is stored. The last good text, kept in RUN_DIR, is in force after a restart; a text that differs from it
is new again, and its turn is counted from then. So a restart can delay a change by a window, and never hastens it.

A node without any policy takes the first good one at once, held or not: there is nothing to stay with.
"""

from __future__ import annotations

import hashlib

from sharer.core.change.choice import HOLD_LABEL, KnownLabels, NodeLabels, UnknownLabels
from sharer.core.inventory import Inventory
from sharer.core.policy.model import Policy
from sharer.core.ports.policy import PolicyText
from sharer.core.quantities import duration
from sharer.core.values import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """A good policy that is not in force yet."""

    policy: Policy
    text: PolicyText
    seen_s: float  # first
    turn_s: float  # of this node


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyInForce:
    """The policy that the plan follows, and what stands between it and the one that is wanted."""

    policy: Policy | None = None  # None: no good policy was ever seen, nothing new is offered
    digest: str | None = None  # of the text in force
    asked_s: float | None = None  # when a policy was first looked for; None: not yet
    wanted_name: str | None = None  # the key that the node's label asks for; None: not known, or there is no choice
    wanted_digest: str | None = None  # of the last text seen, good or not; None: there is none
    refused: str | None = None  # why what is wanted cannot be taken: every problem of its text, or why there is none
    refused_on: Inventory | None = None  # the GPUs of which the refused text asks too much; None: no GPUs would do
    unread: str | None = None  # why it cannot be told now what is wanted; the rest is as it was last
    staged: Staged | None = None  # what is wanted, if it can be taken and its turn has not come
    waits_for: str | None = None  # what else the staged policy waits for, in words
    warnings: tuple[str, ...] = ()


def turn_s(node_name: str, digest: str, seen_s: float, window_s: float) -> float:
    """When a node's turn comes for a text that it first saw then.

    >>> turn_s("node-7", "abc", 100.0, 0.0)
    100.0
    >>> 100.0 <= turn_s("node-7", "abc", 100.0, 600.0) < 700.0
    True
    """
    seed = hashlib.sha256(f"{node_name}\0{digest}".encode()).digest()
    return seen_s + window_s * (int.from_bytes(seed[:8]) / 2**64)


def is_new(standing: PolicyInForce, text: PolicyText, inventory: Inventory | None = None) -> bool:
    """Whether this text was not judged before: it is not in force, not staged, and was not just refused.

    One that asked too much of this node's GPUs is judged anew when they are others.
    """
    if text.digest == standing.wanted_digest and standing.refused_on is not None:
        return standing.refused_on != inventory
    return text.digest not in (standing.digest, standing.wanted_digest)


def refuse(
    standing: PolicyInForce, reason: str, digest: str | None = None, *, on: Inventory | None = None
) -> PolicyInForce:
    """What stands after what is wanted was refused. `digest` None: there is no text at all. `on`: see `refused_on`."""
    return replace(standing, wanted_digest=digest, refused=reason, refused_on=on, staged=None, waits_for=None)


def withdraw(standing: PolicyInForce, policy: Policy | None = None, digest: str | None = None) -> PolicyInForce:
    """What stands without the policy in force: this one instead, or none. Whatever is wanted is to be judged anew."""
    return replace(standing, policy=policy, digest=digest, wanted_digest=None, staged=None, waits_for=None)


def stage(standing: PolicyInForce, policy: Policy, text: PolicyText, node_name: str, now_s: float) -> PolicyInForce:
    """What stands after a good text was seen for the first time: its turn is set."""
    window_s = 0.0 if standing.policy is None else policy.rollout_window_s
    turn = turn_s(node_name, text.digest, now_s, window_s)
    staged = Staged(policy=policy, text=text, seen_s=now_s, turn_s=turn)
    return replace(standing, wanted_digest=text.digest, refused=None, refused_on=None, staged=staged, waits_for=None)


def wanted_as_it_is(standing: PolicyInForce, text: PolicyText) -> PolicyInForce:
    """What stands if the text in force is what is wanted; unchanged if another one is."""
    if text.digest != standing.digest or standing.policy is None:
        return standing
    policy = standing.policy
    if policy.source != text.source:  # it comes from the last run, or from another key
        policy = replace(policy, source=text.source)
    return replace(
        standing,
        policy=policy,
        wanted_digest=text.digest,
        refused=None,
        refused_on=None,
        staged=None,
        waits_for=None,
    )


def take_turn(standing: PolicyInForce, labels: NodeLabels, now_s: float) -> PolicyInForce:
    """What stands now: the staged policy is in force if its turn has come and nothing holds it."""
    staged = standing.staged
    if staged is None:
        return standing
    held = None if standing.policy is None else _held(labels)
    if held is not None or now_s < staged.turn_s:
        return replace(standing, waits_for=held)
    return replace(standing, policy=staged.policy, digest=staged.text.digest, staged=None, waits_for=None)


def why_staged(standing: PolicyInForce) -> str | None:
    """What the staged policy waits for, in the same words for as long as it does; None: none is staged."""
    staged = standing.staged
    if staged is None:
        return None
    after_s = staged.turn_s - staged.seen_s
    turn = f"it takes effect {duration(after_s)} after it was first seen, within a window of"
    what = standing.waits_for or f"{turn} {duration(staged.policy.rollout_window_s)}"
    return f"policy {staged.text.source}, {staged.text.digest[:12]}, is staged: {what}"


def _held(labels: NodeLabels) -> str | None:
    match labels:
        case UnknownLabels(reason=reason):
            return f"whether the label {HOLD_LABEL} holds this node is not known: {reason}"
        case KnownLabels(held=True):
            return f"the label {HOLD_LABEL} holds this node; remove it to let the policy take effect"
        case KnownLabels():
            return None
