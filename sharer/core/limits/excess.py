"""Containers that use more GPU memory than they were promised: since when, and whether that is long enough to evict.

One reading of the process lists proves little: memory is freed late, and a process may be between two pods. So only
time between two readings in a row that both say so counts, and a reading that cannot tell is neither: it does not
excuse, and it does not add up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sharer.core.holders.findings import Finding, FindingKind
from sharer.core.holders.observations import PodSeen
from sharer.core.limits.limits import MemoryBound, Tenant, TenantKey
from sharer.core.limits.usage import Usage
from sharer.core.quantities import duration, format_bytes
from sharer.core.values import dataclass, replace

ExcessKey = tuple[TenantKey, str]
"""A container, and the UUID of the GPU or MIG device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Excess:
    """A container above its promise on one device."""

    key: ExcessKey
    used_bytes: int  # at least, at the last reading that could tell
    promise_bytes: int
    since_s: float  # of the first reading of those that all said so
    over_s: float = 0.0  # how long, counted between readings in a row that said so
    readings: int = 1
    last_s: float | None = None  # when the last reading said so; None: the last one could not tell
    evict_after_s: float | None = None  # None: the policy does not evict for it

    @property
    def is_to_end(self) -> bool:
        """Whether the policy's patience is over. Never after one reading."""
        if self.evict_after_s is None or self.last_s is None:
            return False
        return self.readings >= 2 and self.over_s >= self.evict_after_s

    @property
    def message(self) -> str:
        """For people; the same words at every reading, so that Events merge."""
        (_, container, _), uuid = self.key
        return f"container {container} uses more of {uuid} than the {format_bytes(self.promise_bytes)} it was promised"

    @property
    def sentence(self) -> str:
        """The message, with what the policy makes of it."""
        evicted = "" if self.evict_after_s is None else f"; it is evicted after {duration(self.evict_after_s)} of that"
        return f"{self.message}{evicted}"

    def finding(self, pod: PodSeen | None) -> Finding:
        """The same as a finding. `pod` as the API has it; None: it does not say."""
        uid, container, _ = self.key[0]
        return Finding(
            kind=FindingKind.OVER_PROMISE,
            message=self.sentence,
            cure="let it ask for more slices, or configure the program to use less memory",
            gpu_uuid=self.key[1],
            uid=uid,
            namespace=None if pod is None else pod.namespace,
            pod=None if pod is None else pod.name,
            container=container,
            used_bytes=self.used_bytes,
        )


def measure(
    before: Mapping[ExcessKey, Excess], tenants: Iterable[Tenant], usage: Usage, now_s: float
) -> dict[ExcessKey, Excess]:
    """Who is above a promise after a new reading of the process lists. Call it once for each reading."""
    found = {}
    for tenant in tenants:
        for bound in tenant.memory if tenant.container is not None else ():
            key = (tenant.key, bound.uuid)
            use = usage.of(tenant.uid, tenant.container_id, bound.uuid)
            old = before.get(key)
            if use.known_bytes > bound.at_most_bytes:
                found[key] = _seen(old, key, use.known_bytes, bound, now_s)
            elif use.unknown is not None and old is not None:
                found[key] = replace(old, last_s=None, evict_after_s=_patience_s(bound))
    return found


def _seen(old: Excess | None, key: ExcessKey, used_bytes: int, bound: MemoryBound, now_s: float) -> Excess:
    patience_s = _patience_s(bound)
    if old is None:
        return Excess(
            key=key,
            used_bytes=used_bytes,
            promise_bytes=bound.at_most_bytes,
            since_s=now_s,
            last_s=now_s,
            evict_after_s=patience_s,
        )
    in_a_row = old.last_s is not None
    return replace(
        old,
        used_bytes=used_bytes,
        promise_bytes=bound.at_most_bytes,
        over_s=old.over_s + (now_s - old.last_s if old.last_s is not None else 0.0),
        readings=old.readings + 1 if in_a_row else 1,
        last_s=now_s,
        evict_after_s=patience_s,
    )


def _patience_s(bound: MemoryBound) -> float | None:
    """How long a container may stay above its promise; None: for ever, as the policy only wants to know."""
    return bound.policy.evict_after_s if bound.policy.evicts else None
