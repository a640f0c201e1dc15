"""An NVML library made of Python, under NVML's C function names.

pynvml takes any object as its library, asks it for attributes with NVML's names and calls them with ctypes arguments.
So the methods of `_Functions` carry those names and write through the references they are given. Around each stands
the same entry as around the functions of the C library in `tests/fakes/nvml`: count the call, apply the steering's
faults, refuse what a real library refuses (not initialised: 1; a null pointer, or a handle of another session: 2).
"""
# ruff: noqa: N802 - the functions have NVML's own names

from __future__ import annotations

from collections.abc import Callable

from sharer.simulation import nvml_answers as to
from sharer.simulation.hardware import SimulatedGpu, SimulatedMig, SimulatedNode, common_ancestor
from sharer.simulation.nvml_answers import CArgument, Device

_Function = Callable[..., int]
FUNCTIONS: dict[str, _Function] = {}


class SimulatedLibrary:
    """What pynvml sees: an attribute for each function that this driver has."""

    def __init__(self, node: SimulatedNode, missing: frozenset[str]) -> None:
        self._process = _Functions(node)
        self._missing = missing

    def __getattr__(self, name: str) -> _Function:
        if name not in FUNCTIONS or name in self._missing:
            raise AttributeError(f"undefined symbol: {name}")

        def call(*arguments: CArgument) -> int:  # a plain function, because pynvml sets `restype` on some
            return FUNCTIONS[name](self._process, *arguments)

        return call


class _EventSet:
    def __init__(self, seen: int) -> None:
        self.seen = seen  # so many of all events are over for it
        self.since: dict[str, int] = {}  # how many events there were when a GPU was registered, by UUID


def _exported(function: _Function) -> _Function:
    """A function of the library that is about no device."""
    name = function.__name__

    def enter(self: _Functions, *arguments: CArgument) -> int:
        code = self.node.enter(name, ())
        if code == to.SUCCESS and not self.users and name != "nvmlInitWithFlags":
            code = to.UNINITIALIZED
        if code == to.SUCCESS and None in arguments:
            code = to.INVALID_ARGUMENT
        return code or function(self, *arguments)

    FUNCTIONS[name] = enter
    return function


def _of_device(function: _Function) -> _Function:
    """A function of the library whose first argument is a device's handle."""
    name = function.__name__

    def enter(self: _Functions, handle: CArgument, *arguments: CArgument) -> int:
        device = self.resolve(handle)
        code = self.node.enter(name, () if device is None else device.uuids)
        if code == to.SUCCESS and not self.users:
            code = to.UNINITIALIZED
        if code == to.SUCCESS and (device is None or (None in arguments and "Processes" not in name)):
            code = to.INVALID_ARGUMENT
        if code == to.SUCCESS and device is not None and device.gone:
            code = to.GPU_IS_LOST
        return code or function(self, device, *arguments)

    FUNCTIONS[name] = enter
    return function


def _of_index(function: _Function) -> _Function:
    """A function of the library whose first argument is a GPU's index."""
    name = function.__name__

    def enter(self: _Functions, index: CArgument, *arguments: CArgument) -> int:
        uuid = dict(enumerate(self.known)).get(to.number(index))
        code = self.node.enter(name, () if uuid is None else (uuid,))
        if code == to.SUCCESS and not self.users:
            code = to.UNINITIALIZED
        if code == to.SUCCESS and (uuid is None or None in arguments):
            code = to.INVALID_ARGUMENT
        if code == to.SUCCESS and all(gpu.uuid != uuid for gpu in self.node.gpus):
            code = to.GPU_IS_LOST
        return code or function(self, uuid, *arguments)

    FUNCTIONS[name] = enter
    return function


class _Functions:
    """One process's view: its session, its handles, its event sets."""

    def __init__(self, node: SimulatedNode) -> None:
        self.node = node
        self.users = 0  # nvmlInit is counted
        self.known: dict[str, SimulatedGpu] = {}  # the GPUs of this session, in its order
        self._hidden: frozenset[tuple[str, int]] = frozenset()  # MIG devices that were stale before it
        self._handles: dict[int, tuple[str, int | None]] = {}  # a GPU's UUID, the index of a MIG device below it
        self._event_sets: dict[int, _EventSet] = {}
        self._last_address = 0x1000

    def resolve(self, handle: CArgument) -> Device | None:
        """The device that a handle stands for; None: not a handle of this session."""
        uuid, index = self._handles.get(to.address(handle), (None, None))
        if uuid is None:
            return None
        present = next((gpu for gpu in self.node.gpus if gpu.uuid == uuid), None)
        gpu = present or self.known[uuid]
        mig = None if index is None else self._mig(gpu, index)
        return None if index is not None and mig is None else Device(gpu, mig, gone=present is None)

    def _mig(self, gpu: SimulatedGpu, index: int) -> SimulatedMig | None:
        migs = (mig for mig in gpu.mig_devices if mig.index == index and (mig.uuid, index) not in self._hidden)
        return next(migs, None)

    def _handle(self, uuid: str, mig_index: int | None = None) -> int:
        for address, meaning in list(self._handles.items()):  # another thread may add one
            if meaning == (uuid, mig_index):
                return address
        address = self._new_address()
        self._handles[address] = (uuid, mig_index)
        return address

    def _new_address(self) -> int:
        self._last_address += 16
        return self._last_address

    # The library and the driver.

    @_exported
    def nvmlInitWithFlags(self, flags: int) -> int:
        if not self.node.gpus and not flags & to.INIT_FLAG_NO_GPUS:
            return to.GPU_NOT_FOUND
        if self.users == 0:
            self._handles.clear()
            self.known = {gpu.uuid: gpu for gpu in self.node.gpus}
            self._hidden = frozenset(
                (mig.uuid, mig.index) for gpu in self.node.gpus for mig in gpu.mig_devices if mig.stale
            )
        self.users += 1
        return to.SUCCESS

    @_exported
    def nvmlShutdown(self) -> int:
        self.users -= 1
        if self.users == 0:
            self._event_sets.clear()
        return to.SUCCESS

    @_exported
    def nvmlSystemGetDriverVersion(self, buffer: CArgument, length: CArgument) -> int:
        version = self.node.driver_version
        return to.NOT_SUPPORTED if version is None else to.give_text(buffer, length, version.encode())

    # Devices.

    @_exported
    def nvmlDeviceGetCount_v2(self, count: CArgument) -> int:
        return to.give(count, len(self.known))

    @_of_index
    def nvmlDeviceGetHandleByIndex_v2(self, uuid: str, handle: CArgument) -> int:
        return to.give_pointer(handle, self._handle(uuid))

    @_of_device
    def nvmlDeviceGetUUID(self, device: Device, buffer: CArgument, length: CArgument) -> int:
        return to.give_text(buffer, length, device.uuid.encode())

    @_of_device
    def nvmlDeviceGetName(self, device: Device, buffer: CArgument, length: CArgument) -> int:
        return to.give_name(buffer, length, device)

    @_of_device
    def nvmlDeviceGetMinorNumber(self, device: Device, minor: CArgument) -> int:
        known = device.gpu.minor_number
        return to.NOT_SUPPORTED if known is None or device.mig else to.give(minor, known)

    @_of_device
    def nvmlDeviceGetPciInfo_v3(self, device: Device, info: CArgument) -> int:
        return to.give_pci(info, device.gpu.pci_bus_id)

    @_of_device
    def nvmlDeviceGetMemoryInfo(self, device: Device, info: CArgument) -> int:
        return to.give_memory(info, device, version=1)

    @_of_device
    def nvmlDeviceGetMemoryInfo_v2(self, device: Device, info: CArgument) -> int:
        return to.give_memory(info, device, version=2)

    @_of_device
    def nvmlDeviceGetCudaComputeCapability(self, device: Device, major: CArgument, minor: CArgument) -> int:
        if device.gpu.compute_capability is None:
            return to.NOT_SUPPORTED
        to.give(major, device.gpu.compute_capability[0])
        return to.give(minor, device.gpu.compute_capability[1])

    @_of_device
    def nvmlDeviceGetComputeMode(self, device: Device, mode: CArgument) -> int:
        return to.NOT_SUPPORTED if device.mig else to.give(mode, self.node.compute_mode(device.gpu.uuid))

    @_of_device
    def nvmlDeviceSetComputeMode(self, device: Device, mode: CArgument) -> int:
        if device.mig is not None:
            return to.NOT_SUPPORTED
        if not 0 <= to.number(mode) <= to.EXCLUSIVE_PROCESS:
            return to.INVALID_ARGUMENT
        self.node.set_compute_mode(device.gpu.uuid, to.number(mode))
        return to.SUCCESS

    @_of_device
    def nvmlDeviceGetFieldValues(self, device: Device, count: CArgument, values: CArgument) -> int:
        return to.give_fields(count, values, device)

    @_of_device
    def nvmlDeviceSetMemoryLimits_v1(self, device: Device, limits: CArgument) -> int:
        return to.take_limits(limits, device, self.node)

    @_of_device
    def nvmlDeviceGetMemoryLimits_v1(self, device: Device, limits: CArgument) -> int:
        return to.give_limits(limits, device, self.node)

    # MIG.

    @_of_device
    def nvmlDeviceGetMigMode(self, device: Device, current: CArgument, pending: CArgument) -> int:
        if device.gpu.mig_enabled is None or device.mig:
            return to.NOT_SUPPORTED
        to.give(pending, device.gpu.mig_enabled)
        return to.give(current, device.gpu.mig_enabled)

    @_of_device
    def nvmlDeviceGetMaxMigDeviceCount(self, device: Device, count: CArgument) -> int:
        return to.give(count, device.gpu.max_mig_devices if device.gpu.mig_enabled else 0)

    @_of_device
    def nvmlDeviceGetMigDeviceHandleByIndex(self, device: Device, index: CArgument, handle: CArgument) -> int:
        if not device.gpu.mig_enabled:
            return to.NOT_SUPPORTED
        if to.number(index) >= device.gpu.max_mig_devices:
            return to.INVALID_ARGUMENT
        mig = self._mig(device.gpu, to.number(index))
        return to.NOT_FOUND if mig is None else to.give_pointer(handle, self._handle(device.gpu.uuid, mig.index))

    @_of_device
    def nvmlDeviceGetGpuInstanceId(self, device: Device, number: CArgument) -> int:
        return to.give(number, device.mig.gpu_instance_id) if device.mig else to.NOT_SUPPORTED

    @_of_device
    def nvmlDeviceGetComputeInstanceId(self, device: Device, number: CArgument) -> int:
        return to.give(number, device.mig.compute_instance_id) if device.mig else to.NOT_SUPPORTED

    @_of_device
    def nvmlDeviceGetAttributes_v2(self, device: Device, attributes: CArgument) -> int:
        return to.give_attributes(attributes, device)

    @_of_device
    def nvmlDeviceGetGpuInstanceById(self, device: Device, instance_id: CArgument, instance: CArgument) -> int:
        for mig in device.gpu.mig_devices:
            if mig.gpu_instance_id == to.number(instance_id) and not mig.stale:
                return to.give_pointer(instance, self._handle(device.gpu.uuid, mig.index))
        return to.NOT_FOUND

    @_of_device
    def nvmlGpuInstanceGetInfo(self, instance: Device, info: CArgument) -> int:
        return to.give_instance(info, instance)

    @_of_device
    def nvmlDeviceGetGpuInstanceProfileInfoV(self, device: Device, profile: CArgument, info: CArgument) -> int:
        return to.give_profile(info, device, to.number(profile))

    # Events.

    @_exported
    def nvmlEventSetCreate(self, event_set: CArgument) -> int:
        address = self._new_address()
        self._event_sets[address] = _EventSet(self.node.event_count())
        return to.give_pointer(event_set, address)

    @_exported
    def nvmlEventSetFree(self, event_set: CArgument) -> int:
        return to.INVALID_ARGUMENT if self._event_sets.pop(to.address(event_set), None) is None else to.SUCCESS

    @_of_device
    def nvmlDeviceGetSupportedEventTypes(self, device: Device, types: CArgument) -> int:
        return to.give(types, to.XID_EVENT if device.gpu.reports_events else 0)

    @_of_device
    def nvmlDeviceRegisterEvents(self, device: Device, types: CArgument, event_set: CArgument) -> int:
        found = self._event_sets.get(to.address(event_set))
        if found is None or device.mig:
            return to.INVALID_ARGUMENT
        if not device.gpu.reports_events or to.number(types) & ~to.XID_EVENT:
            return to.NOT_SUPPORTED
        found.since.setdefault(device.gpu.uuid, self.node.event_count())
        return to.SUCCESS

    @_exported
    def nvmlEventSetWait_v2(self, event_set: CArgument, data: CArgument, timeout_ms: CArgument) -> int:
        found = self._event_sets.get(to.address(event_set))
        if found is None:
            return to.INVALID_ARGUMENT
        news = self.node.next_event(found.seen, found.since, to.number(timeout_ms) / 1000)
        if news is None:
            return to.TIMEOUT
        found.seen, event = news
        return to.give_event(data, event, self._new_address() if event.uuid is None else self._handle(event.uuid))

    # Links between GPUs.

    @_of_device
    def nvmlDeviceGetTopologyCommonAncestor(self, device: Device, other: CArgument, level: CArgument) -> int:
        found = self.resolve(other)
        return to.INVALID_ARGUMENT if found is None else to.give(level, common_ancestor(device.gpu, found.gpu))

    @_of_device
    def nvmlDeviceGetNvLinkState(self, device: Device, link: CArgument, active: CArgument) -> int:
        if to.number(link) >= len(device.gpu.nvlinks):
            return to.INVALID_ARGUMENT if device.gpu.nvlinks else to.NOT_SUPPORTED
        return to.give(active, device.gpu.nvlinks[to.number(link)] != "")

    @_of_device
    def nvmlDeviceGetNvLinkRemoteDeviceType(self, device: Device, link: CArgument, kind: CArgument) -> int:
        peer = _peer(device, link)
        return (
            to.give(kind, to.REMOTE_IS_SWITCH if peer == to.SWITCH else to.REMOTE_IS_GPU) if peer else to.NOT_SUPPORTED
        )

    @_of_device
    def nvmlDeviceGetNvLinkRemotePciInfo_v2(self, device: Device, link: CArgument, info: CArgument) -> int:
        peer = _peer(device, link)
        return to.give_peer(info, peer, self.node.gpus) if peer else to.NOT_SUPPORTED


def _process_list(name: str, kind: str, *, instances: bool) -> None:
    """Add a function that lists processes of a kind; `instances`: its entries name MIG instances."""

    def answer(_: _Functions, device: Device, count: CArgument, entries: CArgument) -> int:
        return to.give_processes(count, entries, device, kind, instances=instances)

    answer.__name__ = name
    _of_device(answer)


for _kind in ("Compute", "Graphics", "MPSCompute"):
    for _version in ("", "_v2", "_v3"):
        _name = f"nvmlDeviceGet{_kind}RunningProcesses{_version}"
        _process_list(_name, _kind.removesuffix("Compute").lower() or "compute", instances=_version != "")


def _peer(device: Device, link: CArgument) -> str | None:
    """The other end of an NVLink: a UUID or "switch"; None: it is down or does not exist."""
    return dict(enumerate(device.gpu.nvlinks)).get(to.number(link)) or None
