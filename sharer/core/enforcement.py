"""Which promise is held by what, since when, and which is not, and why: what reports, Events and metrics are made from.

Nothing is written here that was only asked for. An entry says what was seen, and when; what is not looked at any more
because its container is gone is dropped.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import field

from sharer.core.enforcer import Verdict
from sharer.core.limits.limits import PromiseKey, Tenant
from sharer.core.policy.enforcers import Choice, Promise
from sharer.core.values import dataclass, replace

SETTLED_AFTER_S = 2.0  # the toolkit's hook runs in a container's first moments and may overwrite what we have set
MAX_LIFTS = 32  # of the last ones that are remembered in words


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """How one promise to one container stands."""

    by: str | None  # the enforcer that was seen to hold it; None: nothing was
    reason: str | None  # why nothing holds it; with `by`, why nothing stronger does; None: nothing stronger was asked
    escapes: tuple[str, ...] = ()  # the ways out that are known
    since_s: float | None = None  # from when on it was seen held at each look; None: it is not held
    verified_s: float | None = None  # when it was last seen held; None: never


@dataclass(frozen=True, slots=True, kw_only=True)
class Lift:
    """A limit that had been in force was found changed by somebody else, and was set again."""

    key: PromiseKey
    found: str  # "no limit is in force, and 20 GiB should be"
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Enforcement:
    """How every promise on the node stands. Pods as a whole are in it too, where an enforcer holds those."""

    holds: Mapping[PromiseKey, Hold] = field(default_factory=dict)
    lifts: tuple[Lift, ...] = ()  # the last ones
    lift_count: int = 0  # all of them, since the start
    problem: str | None = None  # why that fails now; None: it does not

    def by_container(self, promise: Promise = Promise.MEMORY) -> dict[tuple[str, str, str], Hold]:
        """How each container stands on each device, by its pod's UID in cgroup names, its name, and the device's UUID.

        A container that the checkpoint still names and that does not run (an init container that is done) is in it
        too, as not held; so look up those that the ledger calls owners.
        """
        found: dict[tuple[str, str, str], Hold] = {}
        for ((uid, container, _), kind, uuid), hold in self.holds.items():
            if container is None or kind is not promise:
                continue
            key = (uid, container, uuid)
            if key not in found or hold.by is None:  # of two starts of a container, the one that is not held counts
                found[key] = hold
        return found

    def counts(self) -> dict[tuple[Promise, str | None], int]:
        """How many promises to containers each enforcer was seen to hold, by kind; None: those that nothing holds."""
        found: dict[tuple[Promise, str | None], int] = {}
        for ((_, container, _), kind, _), hold in self.holds.items():
            if container is not None:
                found[kind, hold.by] = found.get((kind, hold.by), 0) + 1
        return found


def after_verdicts(
    before: Enforcement,
    tenants: Iterable[Tenant],
    verdicts: Mapping[PromiseKey, Verdict],
    repaired: Mapping[PromiseKey, str],
    escapes: Mapping[str, tuple[str, ...]],
    now_s: float,
    *,
    pods: Collection[str] | None = None,
) -> Enforcement:
    """How everything stands after a look at these tenants.

    `repaired`: what was found before it was set again. `escapes` by enforcer. `pods` are the UIDs that the look was
    about; None: all of them. What had been known about those and is not among the tenants is gone.
    """
    others = {key: hold for key, hold in before.holds.items() if pods is not None and key[0][0] not in pods}
    holds: dict[PromiseKey, Hold] = {}
    for tenant in tenants:
        for key, choice in tenant.promises():
            verdict = verdicts.get(key)
            if verdict is not None or tenant.container is not None:
                holds[key] = _hold(before.holds.get(key), choice, verdict, key in repaired, escapes, now_s)
    lifts = [
        Lift(key=key, found=found, at_s=now_s)
        for key, found in repaired.items()
        if key in holds and _was_settled(before.holds.get(key), now_s)
    ]
    return replace(
        before,
        holds=others | holds,
        lifts=(*before.lifts, *lifts)[-MAX_LIFTS:],
        lift_count=before.lift_count + len(lifts),
        problem=None if pods is None else before.problem,
    )


def _hold(
    before: Hold | None,
    choice: Choice,
    verdict: Verdict | None,
    was_lifted: bool,
    escapes: Mapping[str, tuple[str, ...]],
    now_s: float,
) -> Hold:
    last_s = None if before is None else before.verified_s
    if choice.by is None:
        return Hold(by=None, reason=choice.reason or "the policy names nothing that could hold it", verified_s=last_s)
    if verdict is None or verdict.problem is not None:
        problem = "it was not looked at" if verdict is None else verdict.problem
        reasons = (choice.reason, f"{choice.by}: {problem}")
        return Hold(by=None, reason="; ".join(why for why in reasons if why is not None), verified_s=last_s)
    unbroken = before is not None and before.by == choice.by and not was_lifted
    return Hold(
        by=choice.by,
        reason=choice.reason,
        escapes=escapes.get(choice.by, ()),
        since_s=before.since_s if before is not None and unbroken else now_s,
        verified_s=now_s,
    )


def _was_settled(before: Hold | None, now_s: float) -> bool:
    """Whether a limit had been in force for long enough that only somebody else can have changed it."""
    return before is not None and before.since_s is not None and now_s - before.since_s >= SETTLED_AFTER_S
