"""MIG: the hardware is partitioned. A container that is given the MIG device, and no other, is held by that alone.

Only where a slice has its MIG device for itself: replicas of one device share its instance, and nothing holds one of
them against another.
"""

from __future__ import annotations

from collections.abc import Sequence

from sharer.core.edits import ContainerEdits, NodeFacts
from sharer.core.enforcer import Reach, Verdict, Verdicts
from sharer.core.grant import Grant
from sharer.core.limits.limits import Tenant
from sharer.core.limits.usage import Usage
from sharer.core.policy.enforcers import MIG
from sharer.core.slices.cut import Target


class MigEnforcer:
    """Holds memory and SMs to the instance. No way out is known."""

    name = MIG
    escapes: tuple[str, ...] = ()

    def __init__(self, reach: Reach) -> None:
        """It needs nothing from outside: discovery has seen the instance."""

    @staticmethod
    def edits(grant: Grant, facts: NodeFacts) -> ContainerEdits:  # noqa: ARG004 - as the interface has it
        """Nothing besides the device, which `core/injection` hands over whatever the strategy."""
        return ContainerEdits()

    def available(self, target: Target) -> str | None:
        """Why it cannot hold slices of this device; None: it is an instance, and its size is known."""
        if target.mig is None:
            return "it is no MIG device"
        lost = target.mig.lost or target.gpu.lost
        if lost is not None:
            return f"the MIG device is gone: {lost}"
        return None if target.mig.memory_bytes is not None else "the driver does not say how much memory it has"

    def apply(self, tenants: Sequence[Tenant], *, within_s: float | None = None) -> Verdicts:
        """Nothing to do: the instance was there before the container."""
        return {}

    def verify(self, tenants: Sequence[Tenant], usage: Usage) -> Verdicts:
        """A container is held as long as it uses no other device. That the instance exists, `available` says."""
        return {
            key: Verdict(problem=usage.why_not_confined(tenant))
            for tenant in tenants
            if tenant.container is not None
            for key, _ in tenant.promises()
        }

    def release(self, tenants: Sequence[Tenant]) -> str | None:
        """Nothing to give back."""
        return None
