"""How one GPU or MIG device is cut into slices, and what each slice promises. Everything here is per device.

A limit that cannot be promised truthfully (memory unknown, 0 after rounding, more than the GPU has) is refused for
this device, in words; nothing is ever rounded up, and no limit of 0 exists: enforcers read 0 as "unlimited".
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import assert_never

from sharer.core.device_id import DeviceId, Strategy
from sharer.core.inventory import Inventory, MigDevice, PhysicalGpu
from sharer.core.policy.enforcers import Reasons, why_not_held, why_without_effect
from sharer.core.policy.model import Auto, Exclusive, MemoryPolicy, Mig, Mps, Rule, TimeSlicing, made_by
from sharer.core.quantities import GIB, MIB, format_bytes, round_down
from sharer.core.values import dataclass, replace

SMALL_LIMIT_BYTES = 600 * MIB  # a CUDA context alone takes 200 to 600 MiB (gpu-limits §2)
MPS_MIN_COMPUTE_CAPABILITY = (7, 0)
MPS_MAX_CLIENTS = 48  # per GPU, before Blackwell (gpu-limits §3)
MPS_MAX_CLIENTS_BLACKWELL = 60  # from compute capability 10.0 on


class Refused(Exception):  # noqa: N818 - an answer, not a failure
    """This device offers no slice; the text says why and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a rule cuts: a whole physical GPU, or one of its MIG devices."""

    gpu: PhysicalGpu
    mig: MigDevice | None

    @property
    def uuid(self) -> str:
        """The key of whatever is cut."""
        return self.gpu.uuid if self.mig is None else self.mig.uuid

    @property
    def memory_bytes(self) -> int | None:
        """The memory of whatever is cut; None: the driver reports none."""
        return self.gpu.memory_bytes if self.mig is None else self.mig.memory_bytes

    @property
    def title(self) -> str:
        """For people."""
        gpu = f"GPU {self.gpu.index} ({self.gpu.product or 'product unknown'})"
        return (
            gpu
            if self.mig is None
            else f"MIG device {self.mig.index} ({self.mig.profile or 'profile unknown'}) of {gpu}"
        )


def all_targets(inventory: Inventory) -> Iterator[Target]:
    """Every GPU, each before its MIG devices, whether or not anything could be cut of it."""
    for gpu in inventory.gpus:
        yield Target(gpu=gpu, mig=None)
        for mig in gpu.mig_devices:
            yield Target(gpu=gpu, mig=mig)


def targets(inventory: Inventory) -> Iterator[Target]:
    """Everything that could be cut, and GPUs in MIG mode without a MIG device, which no rule is meant for."""
    for gpu in inventory.gpus:
        for mig in gpu.mig_devices:
            yield Target(gpu=gpu, mig=mig)
        if not gpu.mig_enabled or all(mig.lost for mig in gpu.mig_devices):
            yield Target(gpu=gpu, mig=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """How one device is cut."""

    strategy: Strategy
    count: int  # slices, at least 1
    limit_bytes: int | None = None  # of each slice, whole MiB; None: no limit is promised
    percent: int | None = None  # of the SMs; None: no share is promised
    unrounded_bytes: int | None = None  # an automatic limit before rounding; None: it was not automatic
    promisable_bytes: int | None = None  # of all slices together, by the policy; None: no limit is promised
    room_bytes: int | None = None  # what adopted limits may add up to
    warnings: tuple[str, ...] = ()


def cut(target: Target, rule: Rule, adopt: Collection[DeviceId] = (), enforcers: Reasons | None = None) -> Cut:
    """Cut a device as its rule says. Raises Refused.

    `enforcers`: what can hold this device; None: nothing was checked. `adopt` are IDs of this device offered before.
    Where an automatic limit moved by less than its rounding step (totals move with driver versions), the old limit
    stays, so that an update does not re-cut the node.
    """
    sharing = rule.sharing
    if rule.memory.required and rule.memory.limit is not None and enforcers is not None:
        _check_means(rule, enforcers)
    match sharing:
        case Exclusive():
            return Cut(strategy=Strategy.EXCLUSIVE, count=1)
        case Mig(replicas=1):
            return Cut(strategy=Strategy.MIG, count=1)  # the instance itself is the limit
        case Mig(replicas=replicas):
            return _adopted(_with_memory(target, rule, Strategy.MIG, replicas, None), adopt)
        case TimeSlicing(slices=slices, slice_memory_bytes=each_bytes):
            sliced = _with_memory(target, rule, Strategy.TIME_SLICING, slices, each_bytes)
            return _adopted(replace(sliced, warnings=(*_check_mode(target), *sliced.warnings)), adopt)
        case Mps(slices=slices, slice_memory_bytes=each_bytes):
            return _adopted(
                _with_compute(target, rule, _with_memory(target, rule, Strategy.MPS, slices, each_bytes)), adopt
            )
        case _:
            assert_never(sharing)


def _check_means(rule: Rule, enforcers: Reasons) -> None:
    """Refuse a device on which nothing could hold what its slices promise. A whole device is held by being whole."""
    strategy, whole = made_by(rule.sharing)
    if whole:
        return
    useful = [name for name in rule.memory.enforce if why_without_effect(name, strategy, whole=whole) is None]
    why = why_not_held(useful, enforcers)
    if why is not None:
        raise Refused(
            f"memory.required is true, and nothing on this node can hold a container to its memory ({why}); cure that,"
            " or set memory.required: false"
        )


def _with_memory(target: Target, rule: Rule, strategy: Strategy, slices: int | None, each_bytes: int | None) -> Cut:
    """The count and the memory limit. Exactly one of `slices` and `each_bytes` (sliceMemory) is set."""
    memory = rule.memory
    total_bytes = target.memory_bytes if target.memory_bytes is not None else memory.total_bytes
    if total_bytes is None:
        return _without_total(rule, strategy, slices)
    own_bytes = total_bytes - memory.reserve_bytes  # the most that one slice can have
    if own_bytes <= 0:
        raise Refused(
            f"memory.reserve is {format_bytes(memory.reserve_bytes)}, and the GPU has {format_bytes(total_bytes)}"
        )
    shared_bytes = int(own_bytes * memory.oversubscribe)  # the most that all slices have together
    count = shared_bytes // each_bytes if each_bytes is not None else slices
    if not count:
        raise Refused(f"no slice of {format_bytes(each_bytes)} fits into {format_bytes(own_bytes)}")
    unrounded_bytes = None
    if memory.limit is not Auto.AUTO:
        limit_bytes = None if memory.limit is None else round_down(memory.limit, MIB)
    elif each_bytes is not None:
        limit_bytes = round_down(each_bytes, MIB)
    else:
        unrounded_bytes = min(shared_bytes // count, own_bytes)
        limit_bytes = round_down(unrounded_bytes, _step_bytes(unrounded_bytes))
    return Cut(
        strategy=strategy,
        count=count,
        limit_bytes=limit_bytes,
        unrounded_bytes=unrounded_bytes,
        promisable_bytes=None if limit_bytes is None else shared_bytes,
        room_bytes=int(total_bytes * memory.oversubscribe),
        warnings=(*_check_total(target, memory), *_check_limit(limit_bytes, count, own_bytes, shared_bytes)),
    )


def _without_total(rule: Rule, strategy: Strategy, slices: int | None) -> Cut:
    """A device whose memory nobody knows: sliced without a limit, but only where no limit was asked for."""
    unknown, cure = "which the driver does not report", "set memory.total in the rule"
    if slices is None:
        raise Refused(f"sliceMemory needs the GPU's memory, {unknown}; {cure}, or use slices")
    if rule.memory.limit is None:
        return Cut(strategy=strategy, count=slices)
    if strategy is Strategy.TIME_SLICING and rule.memory.limit is Auto.AUTO and not rule.memory.required:
        warning = f"its slices have no limit: that needs the GPU's memory, {unknown}; {cure}"
        return Cut(strategy=strategy, count=slices, warnings=(warning,))
    raise Refused(f"a limit needs the GPU's memory, {unknown}; {cure}, or memory.limit: none")


def _check_mode(target: Target) -> tuple[str, ...]:
    """A warning where the second container would be told that the GPU is busy (bug case P24)."""
    mode = target.gpu.restricted
    if mode is None:
        return ()
    return (
        f"its compute mode is {mode}, so containers cannot share it by time: nvidia-smi -i {target.uuid} -c DEFAULT",
    )


def _check_total(target: Target, memory: MemoryPolicy) -> tuple[str, ...]:
    """A warning where the policy's figure is not used, and would have made a difference (bug case P01)."""
    if memory.total_bytes is None or target.memory_bytes in (None, memory.total_bytes):
        return ()
    found, written = format_bytes(target.memory_bytes), format_bytes(memory.total_bytes)
    return (f"memory.total {written} is not used: the driver reports {found}; to keep some back, set memory.reserve",)


def _check_limit(limit_bytes: int | None, count: int, own_bytes: int, shared_bytes: int) -> tuple[str, ...]:
    if limit_bytes is None:
        return ()
    if limit_bytes == 0:
        raise Refused(
            f"{count} slices of {format_bytes(own_bytes)} have less than 64 MiB each, which rounds to 0; lower slices"
        )
    if limit_bytes > own_bytes:
        raise Refused(
            f"a slice of {format_bytes(limit_bytes)} is more than the {format_bytes(own_bytes)} that the GPU can give"
        )
    if limit_bytes * count > shared_bytes:
        raise Refused(
            f"{count} slices of {format_bytes(limit_bytes)} promise {format_bytes(limit_bytes * count)}, and the GPU"
            f" has {format_bytes(shared_bytes)}; lower slices or memory.limit, or raise memory.oversubscribe"
        )
    if limit_bytes < SMALL_LIMIT_BYTES:
        return (f"its slices of {format_bytes(limit_bytes)} are small: a CUDA context alone takes 200 to 600 MiB",)
    return ()


def _with_compute(target: Target, rule: Rule, cut: Cut) -> Cut:
    """MPS's own conditions, and the share of SMs."""
    if rule.request_max != 1:
        most = "none" if rule.request_max is None else rule.request_max
        raise Refused(
            f"request.max is {most}, and an MPS client has the limits of one slice, however many its container holds;"
            " leave it out, and make slices as large as a container needs"
        )
    capability = target.gpu.compute_capability
    if capability is None:
        raise Refused(
            "MPS needs compute capability 7.0, and the driver does not report this GPU's; use time-slicing for it"
        )
    if capability < MPS_MIN_COMPUTE_CAPABILITY:
        found = ".".join(map(str, capability))
        raise Refused(f"MPS needs compute capability 7.0, and this GPU has {found}; use time-slicing for it")
    clients = MPS_MAX_CLIENTS_BLACKWELL if capability >= (10, 0) else MPS_MAX_CLIENTS
    if cut.count > clients:
        raise Refused(
            f"MPS serves at most {clients} clients on this GPU, and {cut.count} slices were asked for; lower slices"
        )
    percent = 100 // cut.count if rule.compute.percent is Auto.AUTO else rule.compute.percent
    if percent is not None and percent * cut.count > 100:
        raise Refused(
            f"{cut.count} slices of {percent} % are more than all SMs of the GPU; lower compute.percent or slices"
        )
    return replace(cut, percent=percent)


def _adopted(new: Cut, adopt: Collection[DeviceId]) -> Cut:
    """The cut with an old limit instead of its own, where that is less than a rounding step away.

    Old limits may reach into the reserve, never above what the GPU has (times oversubscribe).
    """
    if new.unrounded_bytes is None or new.room_bytes is None:
        return new
    old_limits = {
        old.limit_mib * MIB
        for old in adopt
        if old.limit_mib is not None and (old.strategy, old.percent) == (new.strategy, new.percent)
    }
    for old_bytes in sorted(old_limits, reverse=True):
        near = abs(old_bytes - new.unrounded_bytes) < _step_bytes(new.unrounded_bytes)
        if near and old_bytes * new.count <= new.room_bytes:
            return replace(new, limit_bytes=old_bytes)
    return new


def _step_bytes(limit_bytes: int) -> int:
    """The rounding step of an automatic limit (DESIGN §2)."""
    return 256 * MIB if limit_bytes > 16 * GIB else 64 * MIB
