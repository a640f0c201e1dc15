"""Which GPUs and MIG devices are at fault, from which evidence, and what ends a fault.

A fault is *transient* or *fatal* by the policy's lists of XIDs. A transient one ends after a quiet time. A fatal one
ends only on evidence of a repair: the driver's recovery action was something and is none now, or the GPU was gone and
is back, or the operator says so. That a query succeeds is no evidence: a broken GPU answers queries (bug case P14).
A GPU that cannot report XIDs is unmonitored, not unhealthy (P16).

Everything is keyed by UUID, of a physical GPU or of a MIG device. A fault of a GPU is one of all its MIG devices.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field

from sharer.core.inventory import GONE, Inventory
from sharer.core.policy.model import HealthPolicy
from sharer.core.ports.driver import GpuSigns, XidEvent
from sharer.core.values import dataclass, replace

NO_ACTION = "none"

_XIDS = {  # what NVIDIA's catalogue calls the ones that operators meet most
    31: "memory page fault", 43: "GPU stopped processing", 45: "preemptive cleanup", 48: "double-bit ECC error",
    61: "internal micro-controller breakpoint", 62: "internal micro-controller halt", 63: "row remapping event",
    64: "row remapping failure", 74: "NVLink error", 79: "GPU has fallen off the bus", 92: "high single-bit ECC rate",
    94: "contained ECC error", 95: "uncontained ECC error", 119: "GSP timeout", 120: "GSP error",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Why nothing may start on a GPU or MIG device."""

    reason: str
    since_s: float
    last_s: float  # of the last event that says so
    transient: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceHealth:
    """What is known of one GPU or MIG device."""

    fault: Fault | None = None
    monitored: bool | None = None  # its XIDs reach us; None: not known, or asking fails
    monitoring_problem: str | None = None  # why asking fails
    recovery_action: str | None = None  # None: the driver does not say
    lost: str | None = None  # why it did not answer when last looked at; None: it did


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """The health of a node's devices, by UUID; a device without an entry has nothing against it."""

    devices: Mapping[str, DeviceHealth] = field(default_factory=dict)
    unattributed: tuple[str, ...] = ()  # events that fit no known device, in the order they came; the last 16

    def of(self, uuid: str) -> DeviceHealth:
        """What is known of this device."""
        return self.devices.get(uuid, DeviceHealth())

    def faults(self) -> dict[str, str]:
        """Every device at fault, with the reason."""
        reasons = {
            uuid: device.fault.reason if device.fault else device.lost or device.monitoring_problem
            for uuid, device in self.devices.items()
        }
        return {uuid: reason for uuid, reason in reasons.items() if reason is not None}


def after_xid(health: Health, event: XidEvent, inventory: Inventory, policy: HealthPolicy, now_s: float) -> Health:
    """The health after an XID. Nothing is dropped: what fits no device is kept as unattributed."""
    if event.xid in policy.ignore:
        return health
    name = _XIDS.get(event.xid)
    reason = f"XID {event.xid} ({name})" if name else f"XID {event.xid}"
    uuids = _affected(event, inventory)
    if not uuids:
        where = event.gpu_uuid or "a GPU that the driver does not name"
        return replace(health, unattributed=(*health.unattributed, f"{reason} on {where}")[-16:])
    transient = event.xid in policy.transient
    return _with(health, {uuid: _struck(health.of(uuid), reason, transient, now_s) for uuid in uuids})


def after_look(
    health: Health, signs: Iterable[GpuSigns], inventory: Inventory, policy: HealthPolicy, now_s: float
) -> Health:
    """The health after a look at the GPUs. A GPU that is not among the signs is gone."""
    seen = {sign.uuid: sign for sign in signs}
    changed: dict[str, DeviceHealth] = {}
    for gpu in inventory.gpus:
        before, sign = health.of(gpu.uuid), seen.get(gpu.uuid)
        if sign is None:
            changed[gpu.uuid] = replace(before, lost=gpu.lost or before.lost or GONE)
            continue
        changed[gpu.uuid] = _looked(before, sign, now_s)
        if _is_repaired(before, sign):
            changed |= {mig.uuid: DeviceHealth() for mig in gpu.mig_devices}
    known = inventory.uuids
    devices = {uuid: device for uuid, device in {**health.devices, **changed}.items() if uuid in known}
    rested = {uuid: _rested(device, policy, now_s) for uuid, device in devices.items()}
    return health if rested == health.devices else replace(health, devices=rested)


def after_operator(health: Health, uuid: str, at_s: float) -> Health:
    """The health after an operator said that a device was repaired at a time; an older fault ends."""
    fault = health.of(uuid).fault
    if fault is None or fault.last_s >= at_s:
        return health
    return _with(health, {uuid: replace(health.of(uuid), fault=None)})


def _affected(event: XidEvent, inventory: Inventory) -> list[str]:
    """The devices that an event is about: a MIG device if it names one that exists, else the whole GPU."""
    gpu = inventory.gpu(event.gpu_uuid) if event.gpu_uuid is not None else None
    if gpu is None:
        return []
    if event.gpu_instance_id is None:
        return [gpu.uuid]
    named = [
        mig.uuid
        for mig in gpu.mig_devices
        if mig.gpu_instance_id == event.gpu_instance_id
        and (event.compute_instance_id is None or mig.compute_instance_id == event.compute_instance_id)
    ]
    return named or [gpu.uuid]  # an instance that we do not know: no part of this GPU can be trusted


def _struck(device: DeviceHealth, reason: str, transient: bool, now_s: float) -> DeviceHealth:
    old = device.fault
    if old is None:
        return replace(device, fault=Fault(reason=reason, since_s=now_s, last_s=now_s, transient=transient))
    if old.transient or not transient:
        return replace(device, fault=Fault(reason=reason, since_s=old.since_s, last_s=now_s, transient=transient))
    return replace(device, fault=replace(old, last_s=now_s))  # a fatal fault stays what it is


def _is_repaired(before: DeviceHealth, sign: GpuSigns) -> bool:
    """Whether a look shows that a GPU was reset: it was gone and is back, or its recovery action went to none."""
    back = before.lost is not None and sign.lost is None
    return back or (before.recovery_action not in (None, NO_ACTION) and sign.recovery_action == NO_ACTION)


def _looked(before: DeviceHealth, sign: GpuSigns, now_s: float) -> DeviceHealth:
    fault = before.fault
    if fault is not None and not fault.transient and _is_repaired(before, sign):
        fault = None
    if sign.recovery_action not in (None, NO_ACTION) and (fault is None or fault.transient):
        reason = f"the driver asks for: {sign.recovery_action}"
        fault = Fault(reason=reason, since_s=now_s, last_s=now_s, transient=False)
    return DeviceHealth(
        fault=fault,
        monitored=sign.monitored,
        monitoring_problem=sign.monitored_problem,
        recovery_action=before.recovery_action if sign.recovery_action is None else sign.recovery_action,
        lost=sign.lost,
    )


def _rested(device: DeviceHealth, policy: HealthPolicy, now_s: float) -> DeviceHealth:
    """The device without its transient fault, if that was long enough ago."""
    fault = device.fault
    over = fault is not None and fault.transient and now_s - fault.last_s >= policy.recover_after_s
    return replace(device, fault=None) if over else device


def _with(health: Health, changed: Mapping[str, DeviceHealth]) -> Health:
    return replace(health, devices={**health.devices, **changed})
