"""How the simulated NVML writes an answer where the caller wants it: numbers, texts, NVML's structs, through ctypes."""

from __future__ import annotations

import ctypes
import os
from typing import Any

from sharer.simulation.hardware import SimulatedGpu, SimulatedMig
from sharer.simulation.nvml.driver import SimulatedDriver
from sharer.simulation.steering import SimulatedXid

SUCCESS, UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NOT_FOUND, INSUFFICIENT_SIZE = 0, 1, 2, 3, 6, 7
TIMEOUT, GPU_IS_LOST, VERSION_MISMATCH, GPU_NOT_FOUND = 10, 15, 25, 28
INIT_FLAG_NO_GPUS = 1
XID_EVENT = 8  # nvmlEventTypeXidCriticalError
EXCLUSIVE_PROCESS = 3  # the last of nvmlComputeMode_t
REMOTE_IS_GPU, REMOTE_IS_SWITCH = 0, 2  # nvmlIntNvLinkDeviceType_t
SWITCH = "switch"  # a peer in SimulatedGpu.nvlinks
_SWITCH_BUS_ID = "00000000:05:00.0"
_UNKNOWN_U32, _UNKNOWN_U64 = 2**32 - 1, 2**64 - 1  # "not applicable", "not available"
_RECOVERY_ACTION_FIELD = 230  # NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
_UNSIGNED_INT_VALUE = 1  # NVML_VALUE_TYPE_UNSIGNED_INT
_MEMORY_V2 = 0x02000028  # nvmlMemory_v2: the struct's version and size
_PROFILE_INFO_V2 = 0x02000098  # nvmlGpuInstanceProfileInfo_v2
_MIB = 2**20

CArgument = Any  # what ctypes passes: references, pointers, arrays, plain numbers


class Device:
    """What a handle stands for: a GPU of the session, or a MIG device of it."""

    def __init__(self, gpu: SimulatedGpu, mig: SimulatedMig | None, *, gone: bool) -> None:
        self.gpu, self.mig, self.gone = gpu, mig, gone
        self.uuid = gpu.uuid if mig is None else mig.uuid
        self.uuids = (gpu.uuid,) if mig is None else (mig.uuid, gpu.uuid)
        self.stale = mig is not None and mig.stale


def number(argument: CArgument) -> int:
    """A number that was passed plain or as a ctypes value."""
    return int(argument.value if isinstance(argument, ctypes._SimpleCData) else argument)


def address(pointer: CArgument) -> int:
    """The address that a handle is; 0 for a null pointer."""
    return ctypes.cast(pointer, ctypes.c_void_p).value or 0


def give(reference: CArgument, value: int) -> int:
    """Write a number."""
    reference._obj.value = value
    return SUCCESS


def give_pointer(reference: CArgument, value: int) -> int:
    """Write a handle; into a struct, its first field."""
    ctypes.c_void_p.from_buffer(reference._obj).value = value
    return SUCCESS


def give_text(buffer: CArgument, length: CArgument, text: bytes) -> int:
    """Write a text with its final zero, if it fits."""
    if len(text) + 1 > number(length):
        return INSUFFICIENT_SIZE
    buffer.value = text
    return SUCCESS


def give_name(buffer: CArgument, length: CArgument, device: Device) -> int:
    """Write a product's name, for a MIG device with its profile."""
    gpu, mig = device.gpu, device.mig
    if device.stale:
        return INVALID_ARGUMENT
    product = gpu.product.encode() if gpu.name is None else gpu.name
    if mig is None:
        return give_text(buffer, length, product)
    return give_text(buffer, length, product + b" MIG " + mig.profile.encode() if mig.name is None else mig.name)


def give_pci(info: CArgument, bus_id: str | None) -> int:
    """Write where a device is on the PCI bus: "00000000:3B:00.0"."""
    if bus_id is None:
        return NOT_SUPPORTED
    domain, bus, rest = bus_id.split(":")
    info._obj.domain, info._obj.bus, info._obj.device = int(domain, 16), int(bus, 16), int(rest.split(".")[0], 16)
    info._obj.busId = bus_id.encode()
    info._obj.busIdLegacy = bus_id[-12:].encode()
    return SUCCESS


def give_memory(info: CArgument, device: Device, *, version: int) -> int:
    """Write total, used and free memory, for version 2 with the struct's version checked."""
    if version == 2 and info._obj.version != _MEMORY_V2:
        return VERSION_MISMATCH
    if device.stale:
        return INVALID_ARGUMENT
    total = device.gpu.memory_bytes if device.mig is None else device.mig.memory_bytes
    if total is None:
        return NOT_SUPPORTED
    info._obj.total, info._obj.used = total, device.gpu.used_bytes if device.mig is None else 0
    info._obj.free = max(0, total - info._obj.used)
    return SUCCESS


def take_limits(limits: CArgument, device: Device, driver: SimulatedDriver) -> int:
    """Set a cgroup's memory limits. Not those of MIG devices, nor of a GPU in MIG mode."""
    if device.mig is not None or device.gpu.mig_enabled:
        return NOT_SUPPORTED
    wanted = limits._obj
    return driver.set_limit(device.gpu, os.fsdecode(wanted.nameSpace), wanted.softLimit, wanted.hardLimit)


def give_limits(limits: CArgument, device: Device, driver: SimulatedDriver) -> int:
    """Write a cgroup's memory limits, and what it uses."""
    if device.mig is not None or device.gpu.mig_enabled:
        return NOT_SUPPORTED
    code, soft, hard, used = driver.get_limit(device.gpu, os.fsdecode(limits._obj.nameSpace))
    if code == SUCCESS:
        limits._obj.softLimit, limits._obj.hardLimit, limits._obj.currentUsed = soft, hard, used
    return code


def give_fields(count: CArgument, values: CArgument, device: Device) -> int:
    """Write field values: of all fields there are, the recovery action."""
    for value in values._obj[: number(count)]:
        action = device.gpu.recovery_action if value.fieldId == _RECOVERY_ACTION_FIELD else None
        value.nvmlReturn = NOT_SUPPORTED if action is None else SUCCESS
        value.valueType = _UNSIGNED_INT_VALUE
        value.value.uiVal = action or 0
    return SUCCESS


def give_attributes(attributes: CArgument, device: Device) -> int:
    """Write what a MIG device consists of."""
    if device.mig is None or device.stale:
        return INVALID_ARGUMENT
    attributes._obj.gpuInstanceSliceCount = device.mig.gpu_slices
    attributes._obj.computeInstanceSliceCount = device.mig.compute_slices
    attributes._obj.memorySizeMB = (device.mig.memory_bytes or 0) // _MIB
    return SUCCESS


def give_instance(info: CArgument, device: Device) -> int:
    """Write which profile a GPU instance was made from."""
    if device.mig is None:
        return INVALID_ARGUMENT
    info._obj.id = device.mig.gpu_instance_id
    info._obj.profileId = 100 + profiles(device.gpu).index(device.mig.profile)
    return SUCCESS


def give_profile(info: CArgument, device: Device, profile: int) -> int:
    """Write one of the profiles that the GPU knows, with its name. Its ID is not its number, as in real life."""
    if info._obj.version != _PROFILE_INFO_V2:
        return VERSION_MISMATCH
    if profile >= len(profiles(device.gpu)):
        return NOT_SUPPORTED
    info._obj.id = 100 + profile
    info._obj.name = b"MIG " + profiles(device.gpu)[profile].encode()
    return SUCCESS


def profiles(gpu: SimulatedGpu) -> list[str]:
    """The profiles that a GPU's instances are made from."""
    return sorted({mig.profile for mig in gpu.mig_devices})


def give_event(data: CArgument, event: SimulatedXid, handle: int) -> int:
    """Write an XID event."""
    give_pointer(data, handle)
    data._obj.eventType, data._obj.eventData = XID_EVENT, event.xid
    data._obj.gpuInstanceId = _UNKNOWN_U32 if event.gpu_instance_id is None else event.gpu_instance_id
    data._obj.computeInstanceId = _UNKNOWN_U32 if event.compute_instance_id is None else event.compute_instance_id
    return SUCCESS


def give_peer(info: CArgument, peer: str, gpus: tuple[SimulatedGpu, ...]) -> int:
    """Write where the other end of an NVLink is on the PCI bus."""
    buses = {gpu.uuid: gpu.pci_bus_id for gpu in gpus}
    return give_pci(info, _SWITCH_BUS_ID if peer == SWITCH else buses.get(peer))


def give_processes(count: CArgument, entries: CArgument, device: Device, kind: str, *, instances: bool) -> int:
    """Write a list of processes, or how long it would be."""
    found = [process for process in device.gpu.processes if process.kind == kind]
    if device.mig is not None:
        found = [process for process in found if process.gpu_instance_id == device.mig.gpu_instance_id]
    room = number(count._obj) if entries is not None else 0
    give(count, len(found))
    if len(found) > room:
        return INSUFFICIENT_SIZE
    for entry, process in zip(entries or (), found, strict=False):
        entry.pid = process.pid
        entry.usedGpuMemory = _UNKNOWN_U64 if process.used_bytes is None else process.used_bytes
        if instances:
            entry.gpuInstanceId = _UNKNOWN_U32 if process.gpu_instance_id is None else process.gpu_instance_id
            compute_instance_id = process.compute_instance_id
            entry.computeInstanceId = _UNKNOWN_U32 if compute_instance_id is None else compute_instance_id
    return SUCCESS
