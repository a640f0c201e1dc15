"""How the devices of a node are cut now, as far as its GpuNode tells, and what a policy would make of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from sharer.core.cluster.report import OWNING, ClusterGpu
from sharer.core.device_id import DeviceId, Strategy, recognise, slice_part
from sharer.core.errors import PolicyError
from sharer.core.inventory import Inventory, MigDevice, PhysicalGpu
from sharer.core.policy.model import Policy
from sharer.core.quantities import MIB
from sharer.core.report.node import HolderReport
from sharer.core.report.plan import Offered, offered
from sharer.core.slices.plan import Plan, Slice, make_plan
from sharer.core.values import dataclass

_OLDEST_FOR_MPS = (7, 0)
_CAPABILITY = re.compile(r"([0-9]{1,3})\.([0-9]{1,3})")
_STRATEGIES = {one.policy_name: one for one in Strategy}


@dataclass(frozen=True, slots=True, kw_only=True)
class CutNow:
    """How a device is cut, as far as its agent's figures tell."""

    resource: str | None
    strategy: str
    slices: int
    promise: tuple[int | None] | None  # of each slice, in bytes; None: cannot be told just now
    percent: tuple[int | None] | None  # likewise

    def as_id(self, uuid: str) -> DeviceId | None:
        """One of its IDs, for the planner to adopt its limit; None: none can be told that has a limit."""
        if self.promise is None or self.promise[0] is None:
            return None
        percent = None if self.percent is None else self.percent[0]
        limit_mib = self.promise[0] // MIB
        return DeviceId(
            uuid=uuid, strategy=_STRATEGIES[self.strategy], replica=0, limit_mib=limit_mib or None, percent=percent
        )

    def offered(self, after: Offered | None) -> Offered:
        """This cut; what cannot be told of it is taken from the one to come."""
        promise = self.promise or (None if after is None else after.promise_bytes,)
        percent = self.percent or (None if after is None else after.compute_percent,)
        return Offered(strategy=self.strategy, slices=self.slices, promise_bytes=promise[0], compute_percent=percent[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePlan:
    """What becomes of a device, on whichever node it is."""

    resource_before: str | None
    before: Offered | None
    before_is_sure: bool
    resource_after: str | None
    after: Offered | None
    ids: frozenset[str]  # of the new slices, without the UUID: "ts-0-10240"
    refusal: tuple[str, str] | None  # the device for people, and why it offers nothing

    @property
    def is_change(self) -> bool:
        """Whether its slices would be others."""
        return (self.resource_before, self.before) != (self.resource_after, self.after)

    def keeps(self, holder: HolderReport) -> bool:
        """Whether what it holds is a slice of the new cut too."""
        return holder.resource == self.resource_after and slice_part(holder.id) in self.ids


def plan_devices(
    gpus: tuple[ClusterGpu, ...], cuts: list[CutNow | None], policy: Policy
) -> tuple[tuple[DevicePlan, ...], str | None]:
    """What becomes of each device of a node, and why the node would not take the policy; None: it would."""
    adopt = [found for gpu, now in zip(gpus, cuts, strict=True) if now is not None and (found := now.as_id(gpu.uuid))]
    refused = None
    try:
        plan = make_plan(_inventory(gpus), policy, adopt=adopt)
    except PolicyError as error:
        plan, refused = Plan(), str(error)
    coming: dict[str, tuple[str, list[Slice]]] = {}
    for resource in plan.resources:
        for one in resource.slices:
            coming.setdefault(one.id.uuid, (resource.name, []))[1].append(one)
    refusals = {one.uuid: (one.device, one.reason) for one in plan.refusals}
    return tuple(_plan_device(gpu.uuid, now, coming, refusals) for gpu, now in zip(gpus, cuts, strict=True)), refused


def _plan_device(
    uuid: str,
    now: CutNow | None,
    coming: Mapping[str, tuple[str, list[Slice]]],
    refusals: Mapping[str, tuple[str, str]],
) -> DevicePlan:
    resource, slices = coming.get(uuid, (None, []))
    after = offered(slices)
    return DevicePlan(
        resource_before=None if now is None else now.resource,
        before=None if now is None else now.offered(after),
        before_is_sure=now is None or (now.promise is not None and now.percent is not None),
        resource_after=resource,
        after=after,
        ids=frozenset(slice_part(str(one.id)) for one in slices),
        refusal=refusals.get(uuid),
    )


def _inventory(gpus: Iterable[ClusterGpu]) -> Inventory:
    """The node's devices as a driver would report them, as far as its agent tells."""
    by_gpu: dict[str, list[ClusterGpu]] = {}
    for gpu in gpus:
        if gpu.index is not None:  # else the driver does not report it: an ID is all that is left
            by_gpu.setdefault(gpu.gpu_uuid, []).append(gpu)
    return Inventory(gpus=tuple(_physical(uuid, rows) for uuid, rows in by_gpu.items()))


def _physical(uuid: str, rows: list[ClusterGpu]) -> PhysicalGpu:
    first = rows[0]
    whole = next((row for row in rows if row.mig_index is None), None)
    migs = tuple(
        MigDevice(
            uuid=row.uuid,
            index=row.mig_index,
            gpu_instance_id=None,
            compute_instance_id=None,
            profile=row.mig_profile,
            memory_bytes=row.memory_bytes,
        )
        for row in rows
        if row.mig_index is not None
    )
    return PhysicalGpu(
        uuid=uuid,
        index=first.index or 0,
        minor_number=None,
        product=first.product,
        memory_bytes=None if whole is None else whole.memory_bytes,
        compute_capability=capability(first) or _OLDEST_FOR_MPS,
        pci_bus_id=None,
        numa_node=None,
        mig_enabled=bool(migs) or first.mig_enabled,
        mig_devices=migs,
        lost=None,
    )


def capability(gpu: ClusterGpu) -> tuple[int, int] | None:
    """Its compute capability; None: its agent does not tell, or not in a way that is understood."""
    found = _CAPABILITY.fullmatch(gpu.compute_capability or "")
    return None if found is None else (int(found[1]), int(found[2]))


def cut_now(gpu: ClusterGpu) -> CutNow | None:
    """How a device is cut; None: it offers nothing."""
    if not gpu.slices or gpu.strategy not in _STRATEGIES:
        return None
    owner = next((one for one in gpu.holders if one.state in OWNING and one.resource == gpu.resource), None)
    held = None if owner is None or gpu.draining else owner  # while old ones drain, which cut is a holder's?
    promise: tuple[int | None] | None = None
    if held is not None:
        promise = (held.promise_bytes,)
    elif not gpu.draining and gpu.held + gpu.free + gpu.out_of_reach + (gpu.quarantined or 0) == gpu.slices:
        # only so does each of its slices count among what is promised
        promise = (None if gpu.promised_bytes is None else gpu.promised_bytes // gpu.slices,)
    percent: tuple[int | None] | None = (None,)
    if _STRATEGIES[gpu.strategy] is Strategy.MPS:
        parsed = None if held is None else recognise(held.id)
        percent = None if parsed is None else (parsed.percent,)
    return CutNow(resource=gpu.resource, strategy=gpu.strategy, slices=gpu.slices, promise=promise, percent=percent)
