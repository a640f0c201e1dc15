"""What the operator wants: the policy as frozen values (DESIGN §4). `core/policy/reader` makes them from text."""

from __future__ import annotations

import operator
from dataclasses import field
from enum import Enum, StrEnum
from fnmatch import fnmatchcase
from typing import assert_never

from sharer.core.device_id import Strategy
from sharer.core.inventory import MigDevice, PhysicalGpu
from sharer.core.policy.enforcers import DRIVER, MPS, WATCH
from sharer.core.values import dataclass


class Auto(Enum):
    """The value is worked out per GPU."""

    AUTO = "auto"


class Placement(StrEnum):
    """Which GPU the next slice comes from."""

    PACKED = "packed"  # keep whole GPUs idle as long as possible
    SPREAD = "spread"  # balance the GPUs


class OnExceed(StrEnum):
    """What `watch` does about a container above its promise."""

    REPORT = "report"
    EVICT = "evict"


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSlicing:
    """N slices of a GPU; the driver's scheduler switches between their processes."""

    slices: int | None  # exactly one of the two is set
    slice_memory_bytes: int | None  # the count follows from the GPU's memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Mps:
    """N slices of a GPU, clients of one MPS control daemon."""

    slices: int | None
    slice_memory_bytes: int | None
    user_id: int | None = None  # whose processes alone the daemon serves; None: everybody's


@dataclass(frozen=True, slots=True, kw_only=True)
class Mig:
    """The MIG devices that exist, each offered `replicas` times."""

    replicas: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Exclusive:
    """The whole GPU, once."""


Sharing = TimeSlicing | Mps | Mig | Exclusive


class Rivals(StrEnum):
    """What is done about a GPU that another device plugin offers too."""

    WITHHOLD = "withhold"  # its free slices are Unhealthy
    IGNORE = "ignore"  # only said


class Comparison(StrEnum):
    """How `match.memory` compares."""

    AT_LEAST = ">="
    AT_MOST = "<="
    ABOVE = ">"
    BELOW = "<"
    EQUAL = "=="

    def holds(self, left: int, right: int) -> bool:
        """Whether `left` stands in this relation to `right`."""
        compare = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt, "==": operator.eq}
        return bool(compare[self.value](left, right))


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """Which GPUs or MIG devices a rule is for. What is None is not asked; all that is asked must hold."""

    product: str | None = None  # glob, letter case matters not
    memory: tuple[Comparison, int] | None = None  # bytes
    uuids: tuple[str, ...] | None = None  # of physical GPUs or MIG devices
    mig_profile: str | None = None  # glob, "1g.*"

    def holds(self, gpu: PhysicalGpu, mig: MigDevice | None) -> bool:
        """Whether this GPU (or, if given, this MIG device on it) is meant. What is unknown matches nothing."""
        memory_bytes = gpu.memory_bytes if mig is None else mig.memory_bytes
        uuids = {gpu.uuid} if mig is None else {gpu.uuid, mig.uuid}
        profile = None if mig is None else mig.profile
        return (
            (self.product is None or _glob(gpu.product, self.product))
            and (self.memory is None or _compares(memory_bytes, *self.memory))
            and (self.uuids is None or not uuids.isdisjoint(self.uuids))
            and (self.mig_profile is None or _glob(profile, self.mig_profile))
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPolicy:
    """How much GPU memory a slice promises and what holds a container to it."""

    limit: Auto | int | None = Auto.AUTO  # bytes; None: no limit is promised
    total_bytes: int | None = None  # only where the driver reports none
    reserve_bytes: int = 0
    oversubscribe: float = 1.0
    enforce: tuple[str, ...] = (DRIVER, WATCH)  # strongest available first
    required: bool = False
    guarantee: bool = False
    on_exceed: OnExceed = OnExceed.REPORT
    evict_after_s: float = 60.0

    @property
    def evicts(self) -> bool:
        """Whether containers that stay above their promise are ended: only `watch` sees who does."""
        return self.on_exceed is OnExceed.EVICT and WATCH in self.enforce


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputePolicy:
    """Which share of a GPU's SMs a slice promises. Only MPS can hold one."""

    percent: Auto | int | None = None
    enforce: tuple[str, ...] = (MPS,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule: for which GPUs, under which resource name, cut how."""

    match: Match = field(default_factory=Match)
    resource: str | None = None  # None: `default_resource`, also where the text names just that
    sharing: Sharing
    memory: MemoryPolicy = field(default_factory=MemoryPolicy)
    compute: ComputePolicy = field(default_factory=ComputePolicy)
    placement: Placement = Placement.PACKED
    request_max: int | None = 1  # slices per container; None: as many as there are
    where: str = field(default="", compare=False)  # "rules[0]", for messages


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthPolicy:
    """Which XIDs mean nothing, which pass, and after how long. Every other one is fatal."""

    ignore: frozenset[int] = frozenset({13, 31, 43, 45, 68, 109})
    transient: frozenset[int] = frozenset({94})
    recover_after_s: float = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A whole policy. Rules in order: the first that matches a GPU or MIG device decides."""

    rules: tuple[Rule, ...]
    health: HealthPolicy = field(default_factory=HealthPolicy)
    quarantine_timeout_s: float = 600.0
    drain_patience_s: float = 600.0
    rollout_window_s: float = 0.0
    rivals: Rivals = Rivals.WITHHOLD
    warnings: tuple[str, ...] = field(default=(), compare=False)  # accepted, but the operator should know
    source: str = field(default="policy", compare=False)  # the file or ConfigMap key it was read from, for messages

    @property
    def evicts(self) -> bool:
        """Whether some rule ends pods that stay above their promise."""
        return any(rule.memory.evicts for rule in self.rules)


def default_resource(sharing: Sharing) -> str:
    """The name that a strategy offers its slices under when the rule gives none; for MIG with `{profile}` in it."""
    match sharing:
        case Exclusive():
            return "nvidia.com/gpu"
        case Mig():
            return "nvidia.com/mig-{profile}"
        case TimeSlicing() | Mps():
            return "nvidia.com/gpu.shared"
        case _:
            assert_never(sharing)


def made_by(sharing: Sharing) -> tuple[Strategy, bool]:
    """The strategy of a rule's slices, and whether each has its GPU or MIG device for itself."""
    match sharing:
        case TimeSlicing():
            return Strategy.TIME_SLICING, False
        case Mps():
            return Strategy.MPS, False
        case Mig(replicas=replicas):
            return Strategy.MIG, replicas == 1
        case Exclusive():
            return Strategy.EXCLUSIVE, True
        case _:
            assert_never(sharing)


def usual_request_max(sharing: Sharing | None) -> int | None:
    """Slices per container where the rule gives no bound: 1, but as many whole GPUs as a container wants."""
    return None if isinstance(sharing, Exclusive) else 1


def resource_for(rule: Rule, mig_profile: str | None) -> str:
    """The resource name that a rule offers slices under; for a MIG device, with its profile filled in.

    `+` is not legal in a resource name, so the profile 1g.10gb+me is offered as nvidia.com/mig-1g.10gb.me.
    """
    template = rule.resource or default_resource(rule.sharing)
    return template.replace("{profile}", (mig_profile or "").replace("+", "."))


def _compares(memory_bytes: int | None, comparison: Comparison, bound_bytes: int) -> bool:
    return memory_bytes is not None and comparison.holds(memory_bytes, bound_bytes)


def _glob(text: str | None, pattern: str) -> bool:
    return text is not None and fnmatchcase(text.lower(), pattern.lower())
