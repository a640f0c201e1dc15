"""Watching: what a container uses, as the driver's process lists show it, beside what it was promised.

Nothing is prevented. A container that takes more is seen some seconds later, reported, and evicted where the policy
says so. Where there are no process lists, or not everybody on them can be told, nothing is said to be fine.
"""

from __future__ import annotations

from collections.abc import Sequence

from sharer.core.edits import ContainerEdits, NodeFacts
from sharer.core.enforcer import Reach, Verdict, Verdicts
from sharer.core.grant import Grant
from sharer.core.limits.limits import MemoryBound, Tenant
from sharer.core.limits.usage import Usage
from sharer.core.policy.enforcers import WATCH, Promise
from sharer.core.quantities import format_bytes
from sharer.core.slices.cut import Target


class WatchEnforcer:
    """Detects, on any driver that lists processes with their memory."""

    name = WATCH
    escapes = ("it detects and does not prevent",)

    def __init__(self, reach: Reach) -> None:
        """It needs nothing from outside: it is handed what the process lists say."""

    @staticmethod
    def edits(grant: Grant, facts: NodeFacts) -> ContainerEdits:  # noqa: ARG004 - as the interface has it
        """Nothing: a container does not notice that it is watched."""
        return ContainerEdits()

    def available(self, target: Target) -> str | None:
        """Always, in principle; whether the lists really tell shows at each container."""
        return None

    def apply(self, tenants: Sequence[Tenant], *, within_s: float | None = None) -> Verdicts:
        """Nothing to do, and nothing is in force."""
        return {}

    def verify(self, tenants: Sequence[Tenant], usage: Usage) -> Verdicts:
        """A container keeps its promise if all that it uses is known, and is no more."""
        return {
            (tenant.key, Promise.MEMORY, bound.uuid): Verdict(problem=_problem(tenant, bound, usage))
            for tenant in tenants
            if tenant.container is not None
            for bound in tenant.memory
        }

    def release(self, tenants: Sequence[Tenant]) -> str | None:
        """Nothing to give back."""
        return None


def _problem(tenant: Tenant, bound: MemoryBound, usage: Usage) -> str | None:
    use = usage.of(tenant.uid, tenant.container_id, bound.uuid)
    if use.known_bytes > bound.at_most_bytes:
        # The same words at every reading: this is published, and told as an Event.
        return f"it uses more than the {format_bytes(bound.at_most_bytes)} it was promised"
    if use.unknown is not None:
        return f"what it uses is not known: {use.unknown}"
    return usage.why_not_confined(tenant)
