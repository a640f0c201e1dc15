"""What exists on the node: every GPU and MIG device, field by field.

A query that fails costs its field, with the reason; a GPU that is lost costs itself; nothing costs the node. NVML's
answers are not believed where they cannot be true: it has been seen to report 0 bytes, more used than total, and MIG
devices that were deleted.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from sharer.adapters.nvml.calls import Calls, Handle, Memory, MigAttributes
from sharer.adapters.nvml.errors import INVALID_ARGUMENT, NOT_FOUND, NvmlCallError
from sharer.adapters.nvml.session import Session
from sharer.core.inventory import Inventory, MigDevice, PhysicalGpu
from sharer.core.mps.compute_modes import mode_name
from sharer.core.quantities import TIB

T = TypeVar("T")

MAX_PLAUSIBLE_MEMORY_BYTES = 16 * TIB  # the largest GPU of 2026 has 0.28 TiB
MAX_PLAUSIBLE_MIG_DEVICES = 64  # real GPUs: 8 at most; bounds the walk if the driver answers nonsense
FACTS = ("minor_number", "product", "memory_bytes", "compute_capability", "pci_bus_id", "numa_node", "mig_enabled")
_MIG_MARK = " MIG "  # "NVIDIA A100-SXM4-80GB MIG 1g.10gb"
_NOT_JOINED = {1: "not begun", 2: "in progress"}  # nvmlGpuFabricState_t; 0: there is none, 3: it has joined
_GONE = (INVALID_ARGUMENT, NOT_FOUND)  # what a MIG device that no longer exists answers


def look(session: Session, sys_root: Path) -> Inventory:
    """Everything this session shows now. Marks the session doubtful where a new one may see better.

    Raises NvmlCallError if the GPUs cannot even be counted.
    """
    warnings: list[str] = []
    try:
        driver_version = session.calls.driver_version()
    except NvmlCallError as error:
        driver_version = None
        warnings.append(f"the driver does not tell its version: {error}")
    gpus: dict[str, PhysicalGpu] = {}
    not_joined: dict[str, list[str]] = {}  # how far they are with their NVLink fabric -> UUIDs
    for found in session.gpus():
        if found.uuid is None:
            warnings.append(f"GPU {found.index} cannot be asked, not even for its UUID: {found.error}")
        elif found.uuid in gpus:
            twin = gpus[found.uuid].index
            warnings.append(f"GPU {found.index} has the UUID of GPU {twin}, and is left out: {found.uuid}")
        elif found.handle is None:
            gpus[found.uuid] = _lost_gpu(found.index, found.uuid, str(found.error))
        else:
            device = _Device(session.calls, found.handle)
            gpus[found.uuid] = _gpu(device, found.index, found.uuid, sys_root)
            session.doubtful |= device.lost is not None or bool(device.ghosts)
            warnings += (f"{found.uuid}: {ghost}" for ghost in device.ghosts)
            if (state := _fabric(device)) is not None:
                not_joined.setdefault(state, []).append(found.uuid)
    warnings += (
        f"joining the NVLink fabric is {state} for {', '.join(uuids)}: until then CUDA cannot start there (error 802);"
        " nvidia-fabricmanager has to run on this node"
        for state, uuids in not_joined.items()
    )
    return Inventory(driver_version=driver_version, gpus=tuple(gpus.values()), warnings=tuple(warnings))


def at_driver(sys_root: Path) -> frozenset[str]:
    """PCI addresses of the GPUs that the kernel's module has taken, whether or not an open NVML knows them.

    Empty where that cannot be seen.
    """
    try:
        return frozenset(name for name in os.listdir(sys_root / "bus/pci/drivers/nvidia") if ":" in name)
    except OSError:
        return frozenset()


class _Device:
    """A GPU or MIG device that is being asked, and what it would not say."""

    def __init__(self, calls: Calls, handle: Handle) -> None:
        self.calls, self.handle = calls, handle
        self.unknown: list[tuple[str, str]] = []
        self.lost: str | None = None
        self.ghosts: list[str] = []  # MIG devices that answered and do not exist

    def read(self, field: str, ask: Callable[[], T]) -> T | None:
        """The field's value; None with the reason noted. A GPU that says that it is lost is not asked again."""
        if self.lost is not None:
            self.unknown.append((field, self.lost))
            return None
        try:
            return ask()
        except NvmlCallError as error:
            self.unknown.append((field, str(error)))
            if error.gpu_lost:
                self.lost = str(error)
            return None


def _gpu(device: _Device, index: int, uuid: str, sys_root: Path) -> PhysicalGpu:
    calls, handle = device.calls, device.handle
    minor_number = device.read("minor_number", lambda: calls.minor_number(handle))
    product = device.read("product", lambda: calls.name(handle))
    memory_bytes = device.read("memory_bytes", lambda: _plausible(calls.memory(handle)))
    compute_capability = device.read("compute_capability", lambda: calls.compute_capability(handle))
    pci_bus_id = device.read("pci_bus_id", lambda: calls.pci_bus_id(handle))
    numa_node = None if pci_bus_id is None else device.read("numa_node", lambda: _numa_node(sys_root, pci_bus_id))
    mig_enabled = device.read("mig_enabled", lambda: _mig_enabled(calls, handle))
    mig_devices = _mig_devices(device) if mig_enabled else ()
    restricted = None if mig_enabled else _restricted(device)
    return PhysicalGpu(
        uuid=uuid,
        index=index,
        minor_number=minor_number,
        product=product,
        memory_bytes=memory_bytes,
        compute_capability=compute_capability,
        pci_bus_id=pci_bus_id,
        numa_node=numa_node,
        mig_enabled=mig_enabled,
        mig_devices=mig_devices,
        restricted=restricted,
        lost=device.lost,
        unknown=tuple(device.unknown),
    )


def _lost_gpu(index: int, uuid: str, reason: str) -> PhysicalGpu:
    """A GPU of which this session knew the UUID, and can say no more."""
    return PhysicalGpu(
        uuid=uuid,
        index=index,
        minor_number=None,
        product=None,
        memory_bytes=None,
        compute_capability=None,
        pci_bus_id=None,
        numa_node=None,
        mig_enabled=None,
        lost=reason,
        unknown=tuple((field, reason) for field in FACTS),
    )


def _plausible(memory: Memory) -> int:
    if not 0 < memory.total_bytes <= MAX_PLAUSIBLE_MEMORY_BYTES:
        raise NvmlCallError("nvmlDeviceGetMemoryInfo", None, f"a total of {memory.total_bytes} bytes cannot be true")
    if memory.used_bytes > memory.total_bytes:
        meaning = f"{memory.used_bytes} bytes used of {memory.total_bytes} cannot be true"
        raise NvmlCallError("nvmlDeviceGetMemoryInfo", None, meaning)
    return memory.total_bytes


def _numa_node(sys_root: Path, pci_bus_id: str) -> int | None:
    """The kernel's answer: nvmlDeviceGetNumaNodeId means the GPU's own memory, where that is a node."""
    domain, _, place = pci_bus_id.lower().partition(":")
    try:
        file = sys_root / "bus/pci/devices" / f"{int(domain, 16):04x}:{place}" / "numa_node"
        node = int(file.read_text())
    except (OSError, ValueError) as error:
        raise NvmlCallError("sysfs", None, f"the NUMA node cannot be read: {error}") from None
    return node if node >= 0 else None


def _restricted(device: _Device) -> str | None:
    """The compute mode if it keeps some processes off; what the driver does not tell does not."""
    if device.lost is not None:
        return None
    try:
        mode = device.calls.compute_mode(device.handle)
    except NvmlCallError as error:
        device.lost = str(error) if error.gpu_lost else None
        return None
    return mode_name(mode) if mode else None


def _fabric(device: _Device) -> str | None:
    """How far a GPU is with its NVLink fabric; None: it has joined, or there is none, or it is not told."""
    if device.lost is not None:
        return None
    try:
        return _NOT_JOINED.get(device.calls.fabric_state(device.handle))
    except NvmlCallError:
        return None


def _mig_enabled(calls: Calls, handle: Handle) -> bool | None:
    try:
        mode = calls.mig_mode(handle)
    except NvmlCallError as error:
        if error.optional:
            return None
        raise
    if mode not in (0, 1):
        raise NvmlCallError("nvmlDeviceGetMigMode", None, f"the mode {mode} is neither on nor off")
    return mode == 1


def _mig_devices(gpu: _Device) -> tuple[MigDevice, ...]:
    """Walk every possible index: the count is what is possible, and indexes have gaps."""
    possible = gpu.read("mig_devices", lambda: gpu.calls.max_mig_devices(gpu.handle)) or 0
    found: dict[str, MigDevice] = {}
    for index in range(min(possible, MAX_PLAUSIBLE_MIG_DEVICES)):
        try:
            device = _mig_device(gpu, index)
        except NvmlCallError as error:
            if error.gpu_lost:
                gpu.lost = str(error)
                gpu.unknown.append(("mig_devices", gpu.lost))
                break
            if error.code in _GONE:
                gpu.ghosts.append(f"MIG device {index} no longer exists, and is left out: {error}")
            else:
                gpu.unknown.append(("mig_devices", f"MIG device {index} cannot be asked: {error}"))
            continue
        if device is not None and device.uuid in found:
            twin = found[device.uuid].index
            gpu.ghosts.append(f"MIG device {index} has the UUID of MIG device {twin}, and is left out: {device.uuid}")
        elif device is not None:
            found[device.uuid] = device
    return tuple(found.values())


def _mig_device(gpu: _Device, index: int) -> MigDevice | None:
    """The MIG device at an index; None: there is none. Raises NvmlCallError if it is a ghost or says nothing at all."""
    calls = gpu.calls
    try:
        handle = calls.mig_device(gpu.handle, index)
    except NvmlCallError as error:
        if error.code == NOT_FOUND:
            return None
        raise
    mig = _Device(calls, handle)
    uuid = calls.uuid(handle)
    # A ghost still answers its UUID, but not these.
    attributes = _unless_gone(mig, "attributes", lambda: calls.mig_attributes(handle))
    gpu_instance_id = _unless_gone(mig, "gpu_instance_id", lambda: calls.gpu_instance_id(handle))
    compute_instance_id = _unless_gone(mig, "compute_instance_id", lambda: calls.compute_instance_id(handle))
    memory_bytes = mig.read("memory_bytes", lambda: _mig_memory_bytes(calls, handle, attributes))
    profile = mig.read("profile", lambda: _profile(gpu, handle, attributes, gpu_instance_id))
    return MigDevice(
        uuid=uuid,
        index=index,
        gpu_instance_id=gpu_instance_id,
        compute_instance_id=compute_instance_id,
        profile=profile,
        memory_bytes=memory_bytes,
        unknown=tuple((field, reason) for field, reason in mig.unknown if field != "attributes"),
    )


def _unless_gone(mig: _Device, field: str, ask: Callable[[], T]) -> T | None:
    try:
        return ask()
    except NvmlCallError as error:
        if error.code in _GONE or error.gpu_lost:
            raise
        mig.unknown.append((field, str(error)))
        return None


def _mig_memory_bytes(calls: Calls, handle: Handle, attributes: MigAttributes | None) -> int:
    try:
        return _plausible(calls.memory(handle))
    except NvmlCallError:
        if attributes is None:
            raise
        return _plausible(Memory(total_bytes=attributes.memory_bytes, used_bytes=0))


def _profile(gpu: _Device, handle: Handle, attributes: MigAttributes | None, gpu_instance_id: int | None) -> str:
    """The profile's name as the driver gives it. Never made up from sizes: that would drop "+me" and the like."""
    try:
        name = gpu.calls.name(handle)
    except NvmlCallError as error:
        problem = str(error)
    else:
        _, mark, profile = name.rpartition(_MIG_MARK)
        if mark and profile:
            return profile
        problem = f"{name!r} names no profile"
    if gpu_instance_id is None or attributes is None or attributes.compute_slices != attributes.gpu_slices:
        # A compute instance that is a part of its GPU instance has another profile than that.
        raise NvmlCallError("nvmlDeviceGetName", None, problem)
    return gpu.calls.gpu_instance_profile(gpu.handle, gpu_instance_id).removeprefix(_MIG_MARK.lstrip())
