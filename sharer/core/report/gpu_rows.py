"""What a NodeReport says of each GPU without MIG devices and of each MIG device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sharer.core.device_id import Strategy
from sharer.core.inventory import Inventory, MigDevice, PhysicalGpu
from sharer.core.known import Known
from sharer.core.report.gpu_use import GpuUse, total_bytes
from sharer.core.report.inventory import capability_text
from sharer.core.report.node import GpuStatus
from sharer.core.report.slice_counts import SliceNow, count
from sharer.core.slices.cut import targets
from sharer.core.slices.plan import ResourcePlan
from sharer.core.values import dataclass


@dataclass(frozen=True, slots=True)
class _Device:
    """A GPU without MIG devices, a MIG device, or one that only an ID still names."""

    uuid: str
    gpu: PhysicalGpu | None
    mig: MigDevice | None

    @property
    def memory_bytes(self) -> int | None:
        if self.mig is not None:
            return self.mig.memory_bytes
        return None if self.gpu is None else self.gpu.memory_bytes


def _devices(inventory: Inventory | None, slices: Iterable[SliceNow]) -> Iterator[_Device]:
    inventory = inventory or Inventory()
    yield from (_Device(target.uuid, target.gpu, target.mig) for target in targets(inventory))
    known = inventory.uuids
    for uuid in dict.fromkeys(one.uuid for one in slices):
        if uuid not in known:
            yield _Device(uuid, None, None)


def report_gpus(known: Known, slices: tuple[SliceNow, ...], use: GpuUse) -> Iterator[GpuStatus]:
    """A row for each device, in the driver's order, then for devices that only held IDs still name."""
    offering = {one.id.uuid: resource for resource in known.plan.resources for one in resource.slices}
    refusals = {refusal.uuid: refusal.reason for refusal in known.plan.refusals}
    by_uuid: dict[str, list[SliceNow]] = {}
    for one in slices:
        by_uuid.setdefault(one.uuid, []).append(one)
    for device in _devices(known.inventory, slices):
        mine = by_uuid.get(device.uuid, [])
        counts, resource = count(mine), offering.get(device.uuid)
        health, reason = _health(known, device)
        verified, not_verified = _verified(known, device.uuid, mine)
        yield GpuStatus(
            uuid=device.uuid,
            gpu_uuid=device.uuid if device.gpu is None else device.gpu.uuid,
            index=None if device.gpu is None else device.gpu.index,
            product=None if device.gpu is None else device.gpu.product,
            mig_index=None if device.mig is None else device.mig.index,
            mig_profile=None if device.mig is None else device.mig.profile,
            memory_bytes=device.memory_bytes,
            compute_capability=None if device.gpu is None else capability_text(device.gpu),
            mig_enabled=None if device.gpu is None else device.gpu.mig_enabled,
            health=health,
            reason=reason,
            strategy=None if resource is None else resource.strategy.policy_name,
            resource=None if resource is None else resource.name,
            slices=counts.slices,
            held=counts.held,
            free=counts.free,
            quarantined=counts.quarantined,
            draining=counts.draining,
            promised_bytes=total_bytes(one.promise_bytes for one in mine if one.is_promised),
            largest_free_bytes=_largest_free_bytes(device, resource, mine),
            used_bytes=use.of_device(device.uuid),
            verified=verified,
            not_verified=not_verified,
            offers_nothing=refusals.get(device.uuid),
            waiting=known.listing.waiting.get(device.uuid),
        )


def _verified(known: Known, uuid: str, slices: Iterable[SliceNow]) -> tuple[int | None, int | None]:
    """How many containers on a device were seen held to their promise, and how many were not."""
    if known.holds is None:
        return None, None
    owners = {(one.uid, one.container) for slice_now in slices if (one := slice_now.entry.owner) is not None}
    holds = [known.holds.get((uid, container, uuid)) for uid, container in owners if uid is not None]
    verified = sum(hold is not None and hold.by is not None for hold in holds)
    return verified, len(owners) - verified


def _health(known: Known, device: _Device) -> tuple[str, str | None]:
    gpu_uuid = device.uuid if device.gpu is None else device.gpu.uuid
    if fault := known.faults.get(device.uuid) or known.faults.get(gpu_uuid):
        return "unhealthy", fault
    if device.gpu is None:
        return "unknown", "the driver does not report it"
    if known.driver_problem is not None:
        return "unknown", known.driver_problem
    if known.health.of(gpu_uuid).monitored is False:
        return "unmonitored", "it cannot report XIDs, so a fault shows only when it is looked at"
    return "healthy", None


def _largest_free_bytes(device: _Device, resource: ResourcePlan | None, slices: Iterable[SliceNow]) -> int | None:
    """Slices of one GPU add up in a container, as many as the policy allows; a whole GPU is all of its memory."""
    free = [one for one in slices if one.is_free]
    if resource is None or not free:
        return 0
    if resource.strategy is Strategy.EXCLUSIVE:
        return device.memory_bytes
    return total_bytes(one.promise_bytes for one in free[: resource.request_max])
