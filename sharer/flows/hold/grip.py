"""Have the enforcers hold tenants, and give back what was held for those that have ended."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sharer.core.enforcer import ContainerCgroups, Enforcer, Verdict, Verdicts
from sharer.core.errors import NodeError
from sharer.core.limits.limits import PromiseKey, Tenant, TenantKey, only_held_by
from sharer.core.limits.usage import Usage


class Grip:
    """What is held, and for whom. For one thread."""

    def __init__(self, enforcers: Sequence[Enforcer], cgroups: ContainerCgroups) -> None:
        self._enforcers, self._cgroups = enforcers, cgroups
        self.escapes = {enforcer.name: enforcer.escapes for enforcer in enforcers}
        self._held: dict[TenantKey, Tenant] = {}  # as they were last held

    def hold(self, tenants: Sequence[Tenant], usage: Usage) -> tuple[dict[PromiseKey, Verdict], dict[PromiseKey, str]]:
        """What is true of every promise after all was done for it, and what was found to be otherwise before."""
        verdicts: dict[PromiseKey, Verdict] = {}
        repaired: dict[PromiseKey, str] = {}
        for enforcer in self._enforcers:
            own = only_held_by(tenants, enforcer.name)
            if not own:
                continue
            found = _try_to_verify(enforcer, own, usage)
            lacking = {key[0] for key, verdict in found.items() if verdict.curable}
            if lacking:
                unheld = [tenant for tenant in own if tenant.key in lacking]
                after = _try_to_apply(enforcer, unheld, usage)
                repaired |= {
                    key: found[key].problem or "" for key in after if found[key].curable and _is_cured(after[key])
                }
                found |= after
            verdicts |= found
        return verdicts, repaired

    def let_go(self, tenants: Sequence[Tenant], uids: Collection[str] | None) -> list[str]:
        """Give back what was held for tenants that have ended, or that the policy wants held otherwise.

        A container that lives on, and of which the kubelet has lost its record, stays as it is held. `tenants` are all
        of these pods; None: of the node. Returns a sentence for each enforcer that gave something back.
        """
        now = {tenant.key: tenant for tenant in tenants}
        held = {key: one for key, one in self._held.items() if uids is None or key[0] in uids}
        changed = [one for key, old in held.items() if key in now and (one := old.given_up(now[key]))]
        ended = [one for key, one in held.items() if key not in now and self._has_ended(one)]
        returned = []
        for enforcer in self._enforcers:
            gone = only_held_by((*ended, *changed), enforcer.name)
            if gone or uids is None:
                returned.append(enforcer.release(gone))
        for tenant in ended:
            del self._held[tenant.key]
        self._held |= now
        return [sentence for sentence in returned if sentence]

    def _has_ended(self, tenant: Tenant) -> bool:
        return not tenant.cgroups or self._cgroups.below(tenant.cgroups[0]) is None


def _try_to_verify(enforcer: Enforcer, tenants: Sequence[Tenant], usage: Usage) -> dict[PromiseKey, Verdict]:
    try:
        return dict(enforcer.verify(tenants, usage))
    except NodeError as error:
        return _unknown(tenants, error)


def _try_to_apply(enforcer: Enforcer, tenants: Sequence[Tenant], usage: Usage) -> Verdicts:
    """What is true after it was tried."""
    try:
        tried = enforcer.apply(tenants)
        found = enforcer.verify(tenants, usage)
    except NodeError as error:
        return _unknown(tenants, error)
    # The reason why a limit could not be set says more than that it is not in force.
    return {key: tried[key] if verdict.curable and key in tried else verdict for key, verdict in found.items()}


def _unknown(tenants: Sequence[Tenant], error: NodeError) -> dict[PromiseKey, Verdict]:
    verdict = Verdict(problem=str(error))
    return {key: verdict for tenant in tenants for key, _ in tenant.promises()}


def _is_cured(verdict: Verdict) -> bool:
    return not verdict.curable
