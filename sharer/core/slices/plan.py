"""What a node offers: the policy laid over the inventory. The same input gives the same plan.

Each physical GPU without MIG mode and each MIG device goes to the first rule that is meant for it: a `mig` rule looks
at MIG devices, every other rule at GPUs without MIG mode. A GPU in MIG mode is never offered whole.

What concerns one device (too old for MPS, memory unknown, a limit of 0) is a refusal: that device offers no slice and
the reason is shown. Only a list that the kubelet could not receive refuses the policy as a whole.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import field

from sharer.core.device_id import DeviceId, Strategy
from sharer.core.errors import PolicyError, Problem
from sharer.core.inventory import Inventory
from sharer.core.policy.enforcers import Availability
from sharer.core.policy.list_size import MAX_LIST_BYTES, worst_case_numbered_list_bytes
from sharer.core.policy.model import Mig, Mps, Placement, Policy, Rule, resource_for
from sharer.core.quantities import MIB
from sharer.core.slices.cut import Cut, Refused, Target, cut, targets
from sharer.core.unchanged import while_unchanged
from sharer.core.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """What one unit of a resource gives a container."""

    id: DeviceId
    gpu_uuid: str  # of the physical GPU, also for a slice of a MIG device
    promise_bytes: int | None  # None: no memory is promised


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourcePlan:
    """Everything offered under one resource name, in the order of GPU and replica."""

    name: str
    strategy: Strategy
    placement: Placement
    request_max: int | None  # slices per container; None: no bound
    slices: tuple[Slice, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """How much of one GPU or MIG device its slices may take, old and new ones together."""

    strategy: Strategy
    slices: int
    promisable_bytes: int | None  # None: its slices promise no memory
    is_uniform: bool = False  # all its slices promise the same, old ones too: what holds them knows one limit for a GPU


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A GPU or MIG device that offers nothing, and why."""

    uuid: str
    device: str  # for people: "GPU 3 (NVIDIA A100-SXM4-80GB)"
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is offered, what is not and why, and what the operator should know. Resources in order of name."""

    resources: tuple[ResourcePlan, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    warnings: tuple[str, ...] = ()
    rooms: Mapping[str, Room] = field(default_factory=dict)  # by UUID of the GPU or MIG device

    def slices(self) -> Iterator[Slice]:
        """Every slice of every resource."""
        for resource in self.resources:
            yield from resource.slices


def make_plan(
    inventory: Inventory,
    policy: Policy,
    *,
    adopt: Collection[DeviceId] = (),
    enforcers: Availability | None = None,
    namespaced: Collection[str] = (),
) -> Plan:
    """Decide which slices this node offers. `adopt`: IDs offered before, see `core/slices/cut`.

    `enforcers`: what can hold which device. None: only its node can tell, so `memory.required` refuses none, and a
    warning says what it will depend on. What was not asked of a device that is in it, cannot be.
    `namespaced`: MPS resources whose daemon was seen to give each slice limits of its own; the others' has one share of
    SMs for all its clients. Raises PolicyError if the list of a resource could exceed what the kubelet receives.
    """
    layout = _lay_out(inventory, policy, adopt, enforcers, namespaced)
    layout.check_list_sizes(policy.source)
    known = {str(old): old for old in adopt}
    return Plan(
        resources=tuple(
            ResourcePlan(
                name=name,
                strategy=devices[0].how.strategy,
                placement=devices[0].rule.placement,
                request_max=devices[0].rule.request_max,
                slices=tuple(one for device in devices for one in _slices(device.target, device.how, known)),
            )
            for name, devices in sorted(layout.resources.items())
        ),
        refusals=tuple(layout.refusals),
        warnings=tuple(dict.fromkeys(layout.warnings)),
        rooms=layout.rooms,
    )


def check_lists(inventory: Inventory, policy: Policy) -> None:
    """Raises PolicyError if the list of a resource could exceed what the kubelet receives, without any slice made."""
    _lay_out(inventory, policy).check_list_sizes(policy.source)


@dataclass(frozen=True, slots=True)
class _Shared:
    """A GPU or MIG device that is offered, by which rule, and how it is cut."""

    target: Target
    rule: Rule
    how: Cut


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """A plan before its slices are made: a small sliceMemory could make millions of them."""

    resources: dict[str, list[_Shared]] = field(default_factory=dict)  # by name
    sizes: dict[str, tuple[int, int]] = field(default_factory=dict)  # by name: slices, and bytes of the list at most
    refusals: list[Refusal] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    rooms: dict[str, Room] = field(default_factory=dict)

    def check_list_sizes(self, source: str) -> None:
        """Raises PolicyError if a list could be larger than what the kubelet receives."""
        problems = []
        for name, devices in sorted(self.resources.items()):
            count, size_bytes = self.sizes[name]
            if size_bytes > MAX_LIST_BYTES:
                message = (
                    f"{name} would have {count} slices on this node, a list of up to {size_bytes} bytes;"
                    f" the kubelet receives at most {MAX_LIST_BYTES}. Lower slices"
                )
                where = devices[0].rule.where
                problems.append(Problem(source=source, line=None, column=None, path=where, message=message))
        if problems:
            raise PolicyError(tuple(problems))


def _lay_out(
    inventory: Inventory,
    policy: Policy,
    adopt: Collection[DeviceId] = (),
    enforcers: Availability | None = None,
    namespaced: Collection[str] = (),
) -> _Layout:
    """Which devices are offered under which names, and how they are cut. See `make_plan`."""
    layout = _Layout(warnings=list(policy.warnings))
    profiles: dict[str, str] = {}  # resource name -> the MIG profile it was made from
    shares: dict[str, tuple[int | None, str]] = {}  # MPS resource -> the share of its slices, and the first GPU's title
    rules = rules_by_device(inventory, policy)
    for target in targets(inventory):
        rule = rules.get(target.uuid)
        if rule is None:
            if (reason := _why_not_whole(target) or _why_not_by_mps(target, policy)) is not None:
                layout.refusals.append(Refusal(uuid=target.uuid, device=target.title, reason=reason))
            else:
                layout.warnings.append(
                    f"{target.title}, {target.uuid}, matches no rule of the policy and is not offered"
                )
            continue
        try:
            reasons = None if enforcers is None else enforcers.get(target.uuid, {})
            how = cut(target, rule, [old for old in adopt if old.uuid == target.uuid], reasons)
            name = _resource_name(target, rule, profiles)
            _check_ids(target, how)
            if how.strategy is Strategy.MPS and name not in namespaced:
                _check_share(name, how, shares.setdefault(name, (how.percent, target.title)))
        except Refused as refused:
            layout.refusals.append(Refusal(uuid=target.uuid, device=target.title, reason=str(refused)))
            continue
        layout.warnings.extend(f"{target.title}, {target.uuid}: {warning}" for warning in how.warnings)
        if reasons is None and rule.memory.required:
            layout.warnings.append(f"{rule.where or 'a rule'}: {_WAITS_FOR_MEANS}")
        layout.resources.setdefault(name, []).append(_Shared(target, rule, how))
        layout.sizes[name] = _with_more(layout.sizes.get(name, (0, 0)), target, how)
        layout.rooms[target.uuid] = _room(how, is_uniform=how.strategy is Strategy.MPS and name not in namespaced)
    return layout


_WAITS_FOR_MEANS = (
    "memory.required is true, so a node offers these slices only where its agent has seen that something can hold them;"
    " this plan takes for granted that it can"
)
_EMPTY_MIG = "MIG mode is on and there is no MIG device; create one, or switch MIG mode off to share the GPU whole"


@while_unchanged
def rules_by_device(inventory: Inventory, policy: Policy) -> dict[str, Rule]:
    """The rule that decides about each GPU and MIG device, by UUID, also where it offers nothing."""
    return {
        target.uuid: rule
        for target in targets(inventory)
        if (rule := next((rule for rule in policy.rules if _is_meant(rule, target)), None)) is not None
    }


def _is_meant(rule: Rule, target: Target) -> bool:
    """Whether a rule is for this kind of device and matches it."""
    if isinstance(rule.sharing, Mig) != (target.mig is not None):
        return False
    return _why_not_whole(target) is None and rule.match.holds(target.gpu, target.mig)


def _why_not_whole(target: Target) -> str | None:
    """Why a whole GPU must not be offered, whatever the policy says; None: it may, or this is a MIG device."""
    unreadable = dict(target.gpu.unknown).get("mig_enabled")
    if target.mig is not None:
        return None
    if target.gpu.mig_enabled:
        return _EMPTY_MIG
    return None if unreadable is None else f"whether MIG mode is on cannot be read: {unreadable}"


def _why_not_by_mps(target: Target, policy: Policy) -> str | None:
    """Why a MIG device is not offered that an MPS rule would offer as a part of its whole GPU; None: no rule would."""
    if target.mig is None or target.mig.lost or target.gpu.lost:
        return None
    if any(isinstance(rule.sharing, Mps) and rule.match.holds(target.gpu, None) for rule in policy.rules):
        return "MPS does not share MIG devices; give them a rule with strategy mig, or switch MIG mode off"
    return None


def _check_share(name: str, how: Cut, first: tuple[int | None, str]) -> None:
    """Raises Refused where the daemon of a resource would have to give its clients two different shares."""
    percent, title = first
    if how.percent != percent:
        raise Refused(
            f"its slices have {_share(how.percent)} of the SMs and those of {title} {_share(percent)}, both as {name}:"
            " one MPS control daemon has one share for all its clients, unless it has namespaces (driver r615 or newer,"
            " seen as soon as it runs); set resource or compute.percent in a rule"
        )


def _share(percent: int | None) -> str:
    return "no share" if percent is None else f"{percent} %"


def _resource_name(target: Target, rule: Rule, profiles: dict[str, str]) -> str:
    """The name that a slice of this device is asked for by. Raises Refused where it would say something untrue."""
    profile = None if target.mig is None else target.mig.profile
    if target.mig is None or (rule.resource is not None and "{profile}" not in rule.resource):
        return resource_for(rule, profile)
    if profile is None:
        raise Refused("the driver does not name its MIG profile, so the resource has no name; set resource in the rule")
    name = resource_for(rule, profile)
    if profiles.setdefault(name, profile) != profile:
        raise Refused(
            f"its profile and the profile {profiles[name]} would both be called {name}; set resource in a rule"
        )
    return name


def _slices(target: Target, how: Cut, known: Mapping[str, DeviceId]) -> list[Slice]:
    promise_bytes = how.limit_bytes
    if target.mig is not None and how.count == 1 and promise_bytes is None:
        promise_bytes = target.memory_bytes  # the instance itself is the limit
    return [
        Slice(id=known.get(str(device_id), device_id), gpu_uuid=target.gpu.uuid, promise_bytes=promise_bytes)
        for device_id in (_device_id(target, how, replica) for replica in range(how.count))
    ]


def _device_id(target: Target, how: Cut, replica: int) -> DeviceId:
    return DeviceId(
        uuid=target.uuid,
        strategy=how.strategy,
        replica=replica,
        limit_mib=None if how.limit_bytes is None else how.limit_bytes // MIB,
        percent=how.percent,
    )


def _check_ids(target: Target, how: Cut) -> None:
    """Raises Refused if the longest of its IDs, the last, is none that a kubelet takes."""
    last = _device_id(target, how, how.count - 1)
    if not last.is_valid:
        raise Refused(
            f"{str(last)!r} cannot be a device ID: at most 63 characters of letters, digits, '-', '.' and '_'."
            " Drivers before branch 470 give MIG devices such UUIDs; update the driver"
        )


def _with_more(size: tuple[int, int], target: Target, how: Cut) -> tuple[int, int]:
    """The number of slices and the bytes of their list, with those of one more device; without making them."""
    rest_bytes = len(str(_device_id(target, how, 0)).encode()) - 1
    return size[0] + how.count, size[1] + worst_case_numbered_list_bytes(rest_bytes, how.count)


def _room(how: Cut, *, is_uniform: bool) -> Room:
    adopted_bytes = how.count * how.limit_bytes if how.limit_bytes is not None else 0
    promisable_bytes = None if how.promisable_bytes is None else max(how.promisable_bytes, adopted_bytes)
    return Room(strategy=how.strategy, slices=how.count, promisable_bytes=promisable_bytes, is_uniform=is_uniform)
