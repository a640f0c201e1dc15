"""NVML's functions. They carry NVML's names, and write their answers through the references that they are given."""
# ruff: noqa: D102, N802 - the functions have NVML's own names, and NVML's manual says what they do

from __future__ import annotations

from sharer.simulation.hardware import common_ancestor
from sharer.simulation.nvml import answers as to
from sharer.simulation.nvml.answers import CArgument, Device
from sharer.simulation.nvml.entry import exported, of_device, of_index
from sharer.simulation.nvml.session import EventSet, Session


class Functions(Session):
    """What one process can call."""

    # The library and the driver.

    @exported
    def nvmlInitWithFlags(self, flags: int) -> int:
        if not self.driver.gpus and not flags & to.INIT_FLAG_NO_GPUS:
            return to.GPU_NOT_FOUND
        if self.users == 0:
            self.begin()
        self.users += 1
        return to.SUCCESS

    @exported
    def nvmlShutdown(self) -> int:
        self.users -= 1
        if self.users == 0:
            self.event_sets.clear()
        return to.SUCCESS

    @exported
    def nvmlSystemGetDriverVersion(self, buffer: CArgument, length: CArgument) -> int:
        version = self.driver.driver_version
        return to.NOT_SUPPORTED if version is None else to.give_text(buffer, length, version.encode())

    # Devices.

    @exported
    def nvmlDeviceGetCount_v2(self, count: CArgument) -> int:
        return to.give(count, len(self.known))

    @of_index
    def nvmlDeviceGetHandleByIndex_v2(self, uuid: str, handle: CArgument) -> int:
        return to.give_pointer(handle, self.handle(uuid))

    @of_device
    def nvmlDeviceGetUUID(self, device: Device, buffer: CArgument, length: CArgument) -> int:
        return to.give_text(buffer, length, device.uuid.encode())

    @of_device
    def nvmlDeviceGetName(self, device: Device, buffer: CArgument, length: CArgument) -> int:
        return to.give_name(buffer, length, device)

    @of_device
    def nvmlDeviceGetMinorNumber(self, device: Device, minor: CArgument) -> int:
        known = device.gpu.minor_number
        return to.NOT_SUPPORTED if known is None or device.mig else to.give(minor, known)

    @of_device
    def nvmlDeviceGetPciInfo_v3(self, device: Device, info: CArgument) -> int:
        return to.give_pci(info, device.gpu.pci_bus_id)

    @of_device
    def nvmlDeviceGetMemoryInfo(self, device: Device, info: CArgument) -> int:
        return to.give_memory(info, device, version=1)

    @of_device
    def nvmlDeviceGetMemoryInfo_v2(self, device: Device, info: CArgument) -> int:
        return to.give_memory(info, device, version=2)

    @of_device
    def nvmlDeviceGetCudaComputeCapability(self, device: Device, major: CArgument, minor: CArgument) -> int:
        if device.gpu.compute_capability is None:
            return to.NOT_SUPPORTED
        to.give(major, device.gpu.compute_capability[0])
        return to.give(minor, device.gpu.compute_capability[1])

    @of_device
    def nvmlDeviceGetComputeMode(self, device: Device, mode: CArgument) -> int:
        return to.NOT_SUPPORTED if device.mig else to.give(mode, self.driver.compute_mode(device.gpu.uuid))

    @of_device
    def nvmlDeviceSetComputeMode(self, device: Device, mode: CArgument) -> int:
        if device.mig is not None:
            return to.NOT_SUPPORTED
        if not 0 <= to.number(mode) <= to.EXCLUSIVE_PROCESS:
            return to.INVALID_ARGUMENT
        self.driver.set_compute_mode(device.gpu.uuid, to.number(mode))
        return to.SUCCESS

    @of_device
    def nvmlDeviceGetGpuFabricInfo(self, device: Device, info: CArgument) -> int:
        state = None if device.mig else device.gpu.fabric_state
        if state is None:
            return to.NOT_SUPPORTED
        info._obj.state = state
        return to.SUCCESS

    @of_device
    def nvmlDeviceGetFieldValues(self, device: Device, count: CArgument, values: CArgument) -> int:
        return to.give_fields(count, values, device)

    @of_device
    def nvmlDeviceSetMemoryLimits_v1(self, device: Device, limits: CArgument) -> int:
        return to.take_limits(limits, device, self.driver)

    @of_device
    def nvmlDeviceGetMemoryLimits_v1(self, device: Device, limits: CArgument) -> int:
        return to.give_limits(limits, device, self.driver)

    # MIG.

    @of_device
    def nvmlDeviceGetMigMode(self, device: Device, current: CArgument, pending: CArgument) -> int:
        if device.gpu.mig_enabled is None or device.mig:
            return to.NOT_SUPPORTED
        to.give(pending, device.gpu.mig_enabled)
        return to.give(current, device.gpu.mig_enabled)

    @of_device
    def nvmlDeviceGetMaxMigDeviceCount(self, device: Device, count: CArgument) -> int:
        return to.give(count, device.gpu.max_mig_devices if device.gpu.mig_enabled else 0)

    @of_device
    def nvmlDeviceGetMigDeviceHandleByIndex(self, device: Device, index: CArgument, handle: CArgument) -> int:
        if not device.gpu.mig_enabled:
            return to.NOT_SUPPORTED
        if to.number(index) >= device.gpu.max_mig_devices:
            return to.INVALID_ARGUMENT
        mig = self.mig(device.gpu, to.number(index))
        return to.NOT_FOUND if mig is None else to.give_pointer(handle, self.handle(device.gpu.uuid, mig.index))

    @of_device
    def nvmlDeviceGetGpuInstanceId(self, device: Device, number: CArgument) -> int:
        return to.give(number, device.mig.gpu_instance_id) if device.mig else to.NOT_SUPPORTED

    @of_device
    def nvmlDeviceGetComputeInstanceId(self, device: Device, number: CArgument) -> int:
        return to.give(number, device.mig.compute_instance_id) if device.mig else to.NOT_SUPPORTED

    @of_device
    def nvmlDeviceGetAttributes_v2(self, device: Device, attributes: CArgument) -> int:
        return to.give_attributes(attributes, device)

    @of_device
    def nvmlDeviceGetGpuInstanceById(self, device: Device, instance_id: CArgument, instance: CArgument) -> int:
        for mig in device.gpu.mig_devices:
            if mig.gpu_instance_id == to.number(instance_id) and not mig.stale:
                return to.give_pointer(instance, self.handle(device.gpu.uuid, mig.index))
        return to.NOT_FOUND

    @of_device
    def nvmlGpuInstanceGetInfo(self, instance: Device, info: CArgument) -> int:
        return to.give_instance(info, instance)

    @of_device
    def nvmlDeviceGetGpuInstanceProfileInfoV(self, device: Device, profile: CArgument, info: CArgument) -> int:
        return to.give_profile(info, device, to.number(profile))

    # Events.

    @exported
    def nvmlEventSetCreate(self, event_set: CArgument) -> int:
        address = self.new_address()
        self.event_sets[address] = EventSet(self.driver.event_count())
        return to.give_pointer(event_set, address)

    @exported
    def nvmlEventSetFree(self, event_set: CArgument) -> int:
        return to.INVALID_ARGUMENT if self.event_sets.pop(to.address(event_set), None) is None else to.SUCCESS

    @of_device
    def nvmlDeviceGetSupportedEventTypes(self, device: Device, types: CArgument) -> int:
        return to.give(types, to.XID_EVENT if device.gpu.reports_events else 0)

    @of_device
    def nvmlDeviceRegisterEvents(self, device: Device, types: CArgument, event_set: CArgument) -> int:
        found = self.event_sets.get(to.address(event_set))
        if found is None or device.mig:
            return to.INVALID_ARGUMENT
        if not device.gpu.reports_events or to.number(types) & ~to.XID_EVENT:
            return to.NOT_SUPPORTED
        found.since.setdefault(device.gpu.uuid, self.driver.event_count())
        return to.SUCCESS

    @exported
    def nvmlEventSetWait_v2(self, event_set: CArgument, data: CArgument, timeout_ms: CArgument) -> int:
        found = self.event_sets.get(to.address(event_set))
        if found is None:
            return to.INVALID_ARGUMENT
        news = self.driver.next_event(found.seen, found.since, to.number(timeout_ms) / 1000)
        if news is None:
            return to.TIMEOUT
        found.seen, event = news
        return to.give_event(data, event, self.new_address() if event.uuid is None else self.handle(event.uuid))

    # Links between GPUs.

    @of_device
    def nvmlDeviceGetTopologyCommonAncestor(self, device: Device, other: CArgument, level: CArgument) -> int:
        found = self.resolve(other)
        return to.INVALID_ARGUMENT if found is None else to.give(level, common_ancestor(device.gpu, found.gpu))

    @of_device
    def nvmlDeviceGetNvLinkState(self, device: Device, link: CArgument, active: CArgument) -> int:
        if to.number(link) >= len(device.gpu.nvlinks):
            return to.INVALID_ARGUMENT if device.gpu.nvlinks else to.NOT_SUPPORTED
        return to.give(active, device.gpu.nvlinks[to.number(link)] != "")

    @of_device
    def nvmlDeviceGetNvLinkRemoteDeviceType(self, device: Device, link: CArgument, kind: CArgument) -> int:
        peer = _peer(device, link)
        return (
            to.give(kind, to.REMOTE_IS_SWITCH if peer == to.SWITCH else to.REMOTE_IS_GPU) if peer else to.NOT_SUPPORTED
        )

    @of_device
    def nvmlDeviceGetNvLinkRemotePciInfo_v2(self, device: Device, link: CArgument, info: CArgument) -> int:
        peer = _peer(device, link)
        return to.give_peer(info, peer, self.driver.gpus) if peer else to.NOT_SUPPORTED


def _process_list(name: str, kind: str, *, instances: bool) -> None:
    """Add a function that lists processes of a kind; `instances`: its entries name MIG instances."""

    def answer(_: Functions, device: Device, count: CArgument, entries: CArgument) -> int:
        return to.give_processes(count, entries, device, kind, instances=instances)

    answer.__name__ = name
    of_device(answer)


for _kind in ("Compute", "Graphics", "MPSCompute"):
    for _version in ("", "_v2", "_v3"):
        _name = f"nvmlDeviceGet{_kind}RunningProcesses{_version}"
        _process_list(_name, _kind.removesuffix("Compute").lower() or "compute", instances=_version != "")


def _peer(device: Device, link: CArgument) -> str | None:
    """The other end of an NVLink: a UUID or "switch"; None: it is down or does not exist."""
    return dict(enumerate(device.gpu.nvlinks)).get(to.number(link)) or None
