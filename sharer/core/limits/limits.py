"""What each pod and container is to be held to, and in which cgroup (DESIGN §5).

A container may use what its slices add up to, no more and no less. Its pod as a whole may use what its containers may
use at one time, so that there is no unlimited moment before a container's own cgroup exists. That is worked out from
everything that the kubelet's checkpoint names, since the limit of a pod is raised and never lowered while it lives:

* All app containers and sidecars run at the same time; an init container runs alone, with the sidecars before it.
* The kubelet gives the slices of an init container on to later containers, so each slice counts once.
* Who is an init container is known from the API only. Without it every slice that the pod was ever given counts.

The limit of a pod may lie anywhere between those two sums. So nothing needs to be remembered: what an earlier look, or
an earlier run, has set with less knowledge is as good, and what lies above is somebody else's doing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field

from sharer.core.device_id import DeviceId, Strategy, recognise
from sharer.core.edits import NodeFacts
from sharer.core.grant import Share, make_grant
from sharer.core.holders.evidence import CheckpointEntry
from sharer.core.holders.observations import ContainerKind, PodSeen
from sharer.core.inventory import Inventory
from sharer.core.policy.enforcers import (
    COMPUTE_ENFORCERS,
    DRIVER,
    MIG,
    WATCH,
    Availability,
    Choice,
    Promise,
    Reasons,
    choose,
    why_without_effect,
)
from sharer.core.policy.model import ComputePolicy, MemoryPolicy, Policy
from sharer.core.slices.cut import all_targets
from sharer.core.slices.plan import Slice, rules_by_device
from sharer.core.unchanged import while_unchanged
from sharer.core.values import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerCgroup:
    """A container's own cgroup."""

    container_id: str  # the runtime's: 64 hexadecimal digits
    path: str  # of its directory, in full, as this process sees it
    inner: str | None = None  # one below it that holds all its processes (crun makes one); None: none does
    name: str | None = None  # of the container, by its own record; None: not known, or not yet


@dataclass(frozen=True, slots=True, kw_only=True)
class PodCgroup:
    """A pod's cgroup and those of its containers, the pod's sandbox among them."""

    uid: str
    path: str
    containers: tuple[ContainerCgroup, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """How promises on one GPU or MIG device are to be kept: what the policy says, and what this node has for it."""

    memory: MemoryPolicy = field(default_factory=MemoryPolicy)
    compute: ComputePolicy = field(default_factory=ComputePolicy)
    reasons: Reasons = field(default_factory=dict)
    memory_bytes: int | None = None  # what the device has; None: the driver does not say

    @property
    def wished(self) -> frozenset[str]:
        """The enforcers that the policy names for something that it promises."""
        memory = self.memory.enforce if self.memory.limit is not None else ()
        return frozenset((*memory, *(self.compute.enforce if self.compute.percent is not None else ())))

    @property
    def is_held_by_driver(self) -> bool:
        """Whether it is the driver that holds slices of this device, unless it is a MIG device."""
        return choose(self.memory.enforce, self.reasons).by == DRIVER

    @property
    def waits_for_limit(self) -> bool:
        """Whether no container may start on it before its pod's limit is in force. A MIG device's is always."""
        return self.memory.required and DRIVER in self.memory.enforce


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBound:
    """What a tenant may use of one device's memory. A limit is right if it lies between the two."""

    uuid: str
    at_least_bytes: int
    at_most_bytes: int  # the same, for a container
    policy: MemoryPolicy
    choice: Choice


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeBound:
    """What a tenant may use of one device's SMs."""

    uuid: str
    percent: int
    choice: Choice


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """A container, or a pod as a whole, and what it is to be held to."""

    uid: str  # of the pod, as its cgroup is named
    container: str | None  # None: the pod as a whole
    container_id: str | None = None  # None: a pod, or not known
    cgroups: tuple[str, ...] = ()  # outermost first, each holds all its processes; empty: not known which
    held: frozenset[str] = frozenset()  # UUIDs of all devices that it holds slices of, promised memory or not
    memory: tuple[MemoryBound, ...] = ()
    compute: tuple[ComputeBound, ...] = ()

    @property
    def key(self) -> TenantKey:
        """What tells tenants apart. A container that starts again is another tenant."""
        return (self.uid, self.container, self.container_id)

    def promises(self) -> Iterator[tuple[PromiseKey, Choice]]:
        """Everything that was promised to it, and what is to hold that."""
        for memory in self.memory:
            yield (self.key, Promise.MEMORY, memory.uuid), memory.choice
        for compute in self.compute:
            yield (self.key, Promise.COMPUTE, compute.uuid), compute.choice

    def held_by(self, enforcer: str) -> Tenant | None:
        """The tenant with only those promises that this enforcer is to hold; None: there are none."""
        memory = tuple(bound for bound in self.memory if bound.choice.by == enforcer)
        compute = tuple(bound for bound in self.compute if bound.choice.by == enforcer)
        if not memory and not compute:
            return None
        is_all = len(memory) == len(self.memory) and len(compute) == len(self.compute)
        return self if is_all else replace(self, memory=memory, compute=compute)

    def given_up(self, now: Tenant) -> Tenant | None:
        """The tenant with those promises of memory that something held which is not to hold them any more.

        `now`: the same tenant as the policy wishes it held. None: there are none. An instance holds its container
        whatever the policy says.
        """
        policies = {bound.uuid: bound.policy for bound in now.memory}
        memory = tuple(
            bound
            for bound in self.memory
            if bound.uuid in policies and bound.choice.by not in (None, MIG, *policies[bound.uuid].enforce)
        )
        return replace(self, memory=memory, compute=()) if memory else None


TenantKey = tuple[str, str | None, str | None]
PromiseKey = tuple[TenantKey, Promise, str]
"""A tenant, what was promised to it, and the UUID of the GPU or MIG device."""

_NO_TERMS = Terms()


@while_unchanged
def make_terms(inventory: Inventory, policy: Policy | None, enforcers: Availability) -> dict[str, Terms]:
    """The terms of each GPU and MIG device, by UUID. Where no rule decides, a policy's defaults do."""
    rules = {} if policy is None else rules_by_device(inventory, policy)
    terms = {}
    for target in all_targets(inventory):
        uuid, rule = target.uuid, rules.get(target.uuid)
        terms[uuid] = Terms(
            memory=MemoryPolicy() if rule is None else rule.memory,
            compute=ComputePolicy() if rule is None else rule.compute,
            reasons=enforcers.get(uuid, {}),
            memory_bytes=target.memory_bytes,
        )
    return terms


def only_held_by(tenants: Iterable[Tenant], enforcer: str) -> list[Tenant]:
    """Those tenants of which this enforcer is to hold something, with just that."""
    return [own for tenant in tenants if (own := tenant.held_by(enforcer)) is not None]


@while_unchanged
def with_driver_limits(facts: NodeFacts, terms: Mapping[str, Terms]) -> NodeFacts:
    """The facts with the devices marked that the driver is to hold. The same object if nothing changes."""
    marked = {
        uuid: replace(device, driver_limit=terms.get(uuid, _NO_TERMS).is_held_by_driver)
        for uuid, device in facts.devices.items()
    }
    return facts if marked == facts.devices else replace(facts, devices=marked)


def needs_pre_start(slices: Iterable[Slice], terms: Mapping[str, Terms]) -> bool:
    """Whether containers with these slices wait for their pod's limit. It follows from the policy alone.

    What can hold a limit may come and go, and a resource whose answer changes is registered anew each time.
    """
    return any(
        terms.get(one.id.uuid, _NO_TERMS).waits_for_limit and one.id.limit_mib is not None
        for one in slices
        if why_without_effect(DRIVER, one.id.strategy, whole=False) is None
    )


def find_tenants(
    uid: str,
    entries: Iterable[CheckpointEntry],
    cgroup: PodCgroup | None,
    seen: PodSeen | None,
    terms: Mapping[str, Terms],
) -> list[Tenant]:
    """The pod and its containers, as far as anything was promised to them; the pod comes first.

    `entries` are the pod's own in the checkpoint, `cgroup` None: it has none now, `seen` None: the API does not say.
    A container with several cgroups (its last start is not gone yet) is several tenants.
    """
    ids = _ids_by_container(entries)
    everything = frozenset(device_id for held in ids.values() for device_id in held)
    tenants = []
    if bounds := _pod_bounds(_moments(ids, seen), everything, terms):
        paths = () if cgroup is None else (cgroup.path,)
        tenants.append(Tenant(uid=uid, container=None, cgroups=paths, memory=bounds))
    for container, held in sorted(ids.items()):
        shares = make_grant(held).shares
        memory = tuple(bound for share in shares if (bound := _memory_bound(share, terms)) is not None)
        compute = tuple(held_to for share in shares if (held_to := _compute_bound(share, terms)) is not None)
        if not memory and not compute:
            continue
        uuids = frozenset(share.uuid for share in shares)
        unplaced = Tenant(uid=uid, container=container, held=uuids, memory=memory, compute=compute)
        own = [one for one in cgroup.containers if _name(one, seen) == container] if cgroup is not None else []
        tenants += [_placed(unplaced, one) for one in own] or [unplaced]
    return tenants


def _placed(tenant: Tenant, cgroup: ContainerCgroup) -> Tenant:
    paths = (cgroup.path,) if cgroup.inner is None else (cgroup.path, cgroup.inner)
    return replace(tenant, container_id=cgroup.container_id, cgroups=paths)


def _ids_by_container(entries: Iterable[CheckpointEntry]) -> dict[str, frozenset[DeviceId]]:
    """Our slices of each container, over all resources. Other plugins' IDs promise nothing that we know of."""
    ids: dict[str, set[DeviceId]] = {}
    for entry in entries:
        ids.setdefault(entry.container, set()).update(one for one in map(recognise, entry.ids) if one is not None)
    return {container: frozenset(held) for container, held in ids.items()}


def _moments(ids: Mapping[str, frozenset[DeviceId]], seen: PodSeen | None) -> list[frozenset[DeviceId]]:
    """The slices that are in use at one time, for each time that can be told from the pod's containers."""
    everything = frozenset(device_id for held in ids.values() for device_id in held)
    if seen is None or not ids.keys() <= {one.name for one in seen.containers}:
        return [everything]
    moments, beside = [], frozenset[DeviceId]()
    for one in seen.containers:  # init containers and sidecars come first, in their order
        held = ids.get(one.name, frozenset())
        if one.kind is ContainerKind.INIT:
            moments.append(beside | held)
        else:
            beside |= held
    return [*moments, beside]


def _pod_bounds(
    moments: Sequence[frozenset[DeviceId]], everything: frozenset[DeviceId], terms: Mapping[str, Terms]
) -> tuple[MemoryBound, ...]:
    at_least = [{share.uuid: share.memory_bytes for share in make_grant(moment).shares} for moment in moments]
    bounds = []
    for share in make_grant(everything).shares:
        bound = _memory_bound(share, terms)
        if bound is None:
            continue  # a slice without a limit is among them
        needed = [amount for amounts in at_least if (amount := amounts.get(share.uuid)) is not None]
        least_bytes = max(needed, default=bound.at_most_bytes)  # of a whole MIG device no amount is named
        bounds.append(replace(bound, at_least_bytes=min(least_bytes, bound.at_most_bytes)))
    return tuple(bounds)


def _memory_bound(share: Share, terms: Mapping[str, Terms]) -> MemoryBound | None:
    """What is to be held; None: no memory is promised. A MIG device without a limit of its own promises all of it.

    Oversubscribed slices may add up to more than there is. The driver takes no such limit, and none is needed.
    """
    term = terms.get(share.uuid, _NO_TERMS)
    whole = share.strategy is Strategy.MIG and share.memory_bytes is None
    promise_bytes = term.memory_bytes if whole else share.memory_bytes
    if promise_bytes is None:
        return None
    promise_bytes = min(promise_bytes, term.memory_bytes or promise_bytes)
    return MemoryBound(
        uuid=share.uuid,
        at_least_bytes=promise_bytes,
        at_most_bytes=promise_bytes,
        policy=term.memory,
        choice=choose(_wished(share.strategy, whole, term.memory.enforce), term.reasons),
    )


def _wished(strategy: Strategy, whole: bool, names: Iterable[str]) -> list[str]:
    """Which enforcers may be chosen. An instance holds its one container whatever the policy says."""
    usual = (MIG, WATCH) if whole else names
    return [name for name in usual if why_without_effect(name, strategy, whole=whole) is None]


def _compute_bound(share: Share, terms: Mapping[str, Terms]) -> ComputeBound | None:
    if share.percent is None:
        return None
    term = terms.get(share.uuid, _NO_TERMS)
    choice = choose(term.compute.enforce, term.reasons, COMPUTE_ENFORCERS)
    return ComputeBound(uuid=share.uuid, percent=share.percent, choice=choice)


def _name(cgroup: ContainerCgroup, seen: PodSeen | None) -> str | None:
    """The name of the container that a cgroup belongs to: the API's word, else the container's own record."""
    for name in _names_told(cgroup.container_id, seen):
        return name
    return cgroup.name


def _names_told(container_id: str, seen: PodSeen | None) -> Iterator[str]:
    for one in () if seen is None else seen.containers:
        if one.container_id == container_id:
            yield one.name
