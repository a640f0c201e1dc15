"""pynvml with types: every NVML function that sharer calls, in its own words.

pynvml has no types and keeps its library in a module global, so one `Calls` at a time owns it: the last one made. A
late thread of an earlier one is refused instead of asking the new library with old handles.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import NewType, TypeVar, cast

import pynvml

from sharer.adapters.nvml.errors import FUNCTION_NOT_FOUND, TIMEOUT, NvmlCallError, error_of
from sharer.core.errors import NodeError
from sharer.core.values import dataclass

T = TypeVar("T")

Handle = NewType("Handle", object)
"""A device, GPU instance or event set, as NVML names it. Valid in the session that gave it."""


@dataclass(frozen=True, slots=True)
class Memory:
    """What a device says about its memory."""

    total_bytes: int
    used_bytes: int


@dataclass(frozen=True, slots=True)
class MigAttributes:
    """What a MIG device consists of."""

    memory_bytes: int
    gpu_slices: int
    compute_slices: int


@dataclass(frozen=True, slots=True)
class RawEvent:
    """An XID event as NVML gives it."""

    device: Handle
    xid: int
    gpu_instance_id: int | None
    compute_instance_id: int | None


_NO_INSTANCE = 0xFFFFFFFF
_XID_EVENTS = 8  # nvmlEventTypeXidCriticalError
_NO_GPUS_IS_FINE = 1  # NVML_INIT_FLAG_NO_GPUS: a node without GPUs is an answer, not an error


class Calls:
    """The library's functions. Each raises NvmlCallError when it gives no usable answer."""

    def __init__(
        self,
        library: object,
        *,
        before: Callable[[str, float | None], None] = lambda _function, _deadline_s: None,
        after: Callable[[], None] = lambda: None,
    ) -> None:
        """`before` hears the name of each function and its deadline (None: as usual), `after` that it returned."""
        self._library, self._before, self._after = library, before, after

    def take_over(self) -> None:
        """Make pynvml use this library from now on."""
        pynvml.nvmlLib = self._library
        pynvml._nvmlGetFunctionPointer_cache.clear()

    def unhurried(self) -> Calls:
        """The same library for another thread, whose calls may take as long as they do."""
        return Calls(self._library)

    def init(self, deadline_s: float) -> None:
        """Open NVML. It finds its GPUs now: later ones are seen by the next init."""
        self.ask("nvmlInitWithFlags", lambda: pynvml.nvmlInitWithFlags(_NO_GPUS_IS_FINE), deadline_s)

    def shutdown(self) -> None:
        """Close NVML: every handle ends, and the driver can be unloaded."""
        self.ask("nvmlShutdown", pynvml.nvmlShutdown)

    def driver_version(self) -> str:
        """The driver's version: "580.95.05"."""
        return self._text("nvmlSystemGetDriverVersion", pynvml.nvmlSystemGetDriverVersion)

    def device_count(self) -> int:
        """How many GPUs this session has, those that cannot be opened included."""
        return self._number("nvmlDeviceGetCount_v2", pynvml.nvmlDeviceGetCount)

    def device(self, index: int) -> Handle:
        """A GPU by its index."""
        return self._handle("nvmlDeviceGetHandleByIndex_v2", lambda: pynvml.nvmlDeviceGetHandleByIndex(index))

    def uuid(self, device: Handle) -> str:
        """The UUID of a GPU or MIG device."""
        return self._text("nvmlDeviceGetUUID", lambda: pynvml.nvmlDeviceGetUUID(device))

    def name(self, device: Handle) -> str:
        """The product's name; of a MIG device with " MIG <profile>" after it."""
        return self._text("nvmlDeviceGetName", lambda: pynvml.nvmlDeviceGetName(device))

    def minor_number(self, device: Handle) -> int:
        """N of /dev/nvidiaN."""
        return self._number("nvmlDeviceGetMinorNumber", lambda: pynvml.nvmlDeviceGetMinorNumber(device))

    def memory(self, device: Handle) -> Memory:
        """Total and used memory: from version 2 of the query, where the driver has it."""
        try:
            found = self.ask(
                "nvmlDeviceGetMemoryInfo_v2", lambda: pynvml.nvmlDeviceGetMemoryInfo(device, pynvml.nvmlMemory_v2)
            )
        except NvmlCallError as error:
            if error.gpu_lost:
                raise
            found = self.ask("nvmlDeviceGetMemoryInfo", lambda: pynvml.nvmlDeviceGetMemoryInfo(device))
        return Memory(total_bytes=found.total, used_bytes=found.used)

    def compute_capability(self, device: Handle) -> tuple[int, int]:
        """Major and minor number."""
        function = "nvmlDeviceGetCudaComputeCapability"
        major, minor = self.ask(function, lambda: pynvml.nvmlDeviceGetCudaComputeCapability(device))
        if major < 1:
            raise NvmlCallError(function, None, f"{major}.{minor} is no compute capability")
        return major, minor

    def compute_mode(self, device: Handle) -> int:
        """Who may have a context on it (nvmlComputeMode_t)."""
        return self._number("nvmlDeviceGetComputeMode", lambda: pynvml.nvmlDeviceGetComputeMode(device))

    def set_compute_mode(self, device: Handle, mode: int) -> None:
        """Let others than now have a context on it. For root; lost at a reboot."""
        self.ask("nvmlDeviceSetComputeMode", lambda: pynvml.nvmlDeviceSetComputeMode(device, mode))

    def pci_bus_id(self, device: Handle) -> str:
        """Where it is on the PCI bus: "00000000:3B:00.0"."""
        return self._text("nvmlDeviceGetPciInfo_v3", lambda: pynvml.nvmlDeviceGetPciInfo_v3(device).busId)

    def mig_mode(self, device: Handle) -> int:
        """The MIG mode in force: 1 is on, 0 off."""
        return self._number("nvmlDeviceGetMigMode", lambda: pynvml.nvmlDeviceGetMigMode(device)[0])

    def max_mig_devices(self, device: Handle) -> int:
        """How many MIG devices there can be. Not how many there are."""
        return self._number("nvmlDeviceGetMaxMigDeviceCount", lambda: pynvml.nvmlDeviceGetMaxMigDeviceCount(device))

    def mig_device(self, device: Handle, index: int) -> Handle:
        """A MIG device by its index below the GPU; NOT_FOUND for a gap."""
        return self._handle(
            "nvmlDeviceGetMigDeviceHandleByIndex", lambda: pynvml.nvmlDeviceGetMigDeviceHandleByIndex(device, index)
        )

    def gpu_instance_id(self, mig: Handle) -> int:
        """The number of the GPU instance that a MIG device is in."""
        return self._number("nvmlDeviceGetGpuInstanceId", lambda: pynvml.nvmlDeviceGetGpuInstanceId(mig))

    def compute_instance_id(self, mig: Handle) -> int:
        """The number of the compute instance that a MIG device is."""
        return self._number("nvmlDeviceGetComputeInstanceId", lambda: pynvml.nvmlDeviceGetComputeInstanceId(mig))

    def mig_attributes(self, mig: Handle) -> MigAttributes:
        """What a MIG device consists of."""
        found = self.ask("nvmlDeviceGetAttributes_v2", lambda: pynvml.nvmlDeviceGetAttributes_v2(mig))
        return MigAttributes(
            memory_bytes=found.memorySizeMB * 2**20,
            gpu_slices=found.gpuInstanceSliceCount,
            compute_slices=found.computeInstanceSliceCount,
        )

    def gpu_instance_profile(self, device: Handle, gpu_instance_id: int) -> str:
        """The name of the profile that a GPU instance was made from: "MIG 1g.10gb+me"."""
        instance = self.ask(
            "nvmlDeviceGetGpuInstanceById", lambda: pynvml.nvmlDeviceGetGpuInstanceById(device, gpu_instance_id)
        )
        wanted = self.ask("nvmlGpuInstanceGetInfo", lambda: pynvml.nvmlGpuInstanceGetInfo(instance)).profileId
        for number in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
            try:
                profile_id, name = self._profile(device, number)
            except NvmlCallError as error:
                if error.gpu_lost or error.code == FUNCTION_NOT_FOUND:
                    raise
                continue  # this GPU has no such profile
            if profile_id == wanted and name:
                return name
        raise NvmlCallError("nvmlGpuInstanceGetInfo", None, f"no profile has the number {wanted}")

    def _profile(self, device: Handle, number: int) -> tuple[int, str]:
        def ask() -> tuple[int, str]:
            info = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(device, number)
            return info.id, info.name

        return self.ask("nvmlDeviceGetGpuInstanceProfileInfoV", ask)

    def recovery_action(self, device: Handle) -> int:
        """What would bring the GPU back (nvmlDeviceGpuRecoveryAction_t)."""
        function = "nvmlDeviceGetFieldValues"
        field = pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
        value = self.ask(function, lambda: pynvml.nvmlDeviceGetFieldValues(device, [field])[0])
        if value.nvmlReturn != 0:
            raise error_of(function, value.nvmlReturn)
        if value.valueType != pynvml.NVML_VALUE_TYPE_UNSIGNED_INT:
            raise NvmlCallError(function, None, f"the answer has the type {value.valueType}, not an unsigned int")
        return cast(int, value.value.uiVal)

    def fabric_state(self, device: Handle) -> int:
        """Whether it has joined the fabric of its NVLink switches (nvmlGpuFabricState_t, which is one byte)."""
        info = pynvml.c_nvmlGpuFabricInfo_t()
        name = "nvmlDeviceGetGpuFabricInfo"
        self.ask(name, lambda: pynvml.nvmlDeviceGetGpuFabricInfo(device, ctypes.byref(info)))
        return int(info.state) & 0xFF

    def create_event_set(self) -> Handle:
        """A new set that collects events."""
        return self._handle("nvmlEventSetCreate", pynvml.nvmlEventSetCreate)

    def free_event_set(self, event_set: Handle) -> None:
        """Drop a set, and with it its registrations."""
        self.ask("nvmlEventSetFree", lambda: pynvml.nvmlEventSetFree(event_set))

    def reports_xids(self, device: Handle) -> bool:
        """Whether the GPU says that it can report XIDs."""
        types = self.ask("nvmlDeviceGetSupportedEventTypes", lambda: pynvml.nvmlDeviceGetSupportedEventTypes(device))
        return bool(types & _XID_EVENTS)

    def register_xids(self, device: Handle, event_set: Handle) -> None:
        """Collect the XIDs of a GPU in a set."""
        self.ask("nvmlDeviceRegisterEvents", lambda: pynvml.nvmlDeviceRegisterEvents(device, _XID_EVENTS, event_set))

    def next_event(self, event_set: Handle, timeout_ms: int) -> RawEvent | None:
        """Wait for an event; None after the timeout."""
        try:
            found = self.ask("nvmlEventSetWait_v2", lambda: pynvml.nvmlEventSetWait_v2(event_set, timeout_ms))
        except NvmlCallError as error:
            if error.code == TIMEOUT:
                return None
            raise
        gpu_instance, compute_instance = found.gpuInstanceId, found.computeInstanceId
        return RawEvent(
            device=found.device,
            xid=found.eventData,
            gpu_instance_id=None if gpu_instance == _NO_INSTANCE else gpu_instance,
            compute_instance_id=None if compute_instance == _NO_INSTANCE else compute_instance,
        )

    def common_ancestor(self, device: Handle, other: Handle) -> int:
        """How far two GPUs are apart on PCIe (nvmlGpuTopologyLevel_t)."""
        return self._number(
            "nvmlDeviceGetTopologyCommonAncestor", lambda: pynvml.nvmlDeviceGetTopologyCommonAncestor(device, other)
        )

    def nvlink_is_up(self, device: Handle, link: int) -> bool:
        """Whether an NVLink is active; INVALID_ARGUMENT or NOT_SUPPORTED where there is none of that number."""
        return bool(self.ask("nvmlDeviceGetNvLinkState", lambda: pynvml.nvmlDeviceGetNvLinkState(device, link)))

    def nvlink_leads_to_switch(self, device: Handle, link: int) -> bool:
        """Whether an active NVLink ends in an NVSwitch."""
        kind = self.ask(
            "nvmlDeviceGetNvLinkRemoteDeviceType", lambda: pynvml.nvmlDeviceGetNvLinkRemoteDeviceType(device, link)
        )
        return bool(kind == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH)

    def nvlink_peer(self, device: Handle, link: int) -> str:
        """The PCI bus ID of the other end of an active NVLink."""
        return self._text(
            "nvmlDeviceGetNvLinkRemotePciInfo_v2",
            lambda: pynvml.nvmlDeviceGetNvLinkRemotePciInfo(device, link).busId,
        )

    def _number(self, function: str, call: Callable[[], int]) -> int:
        return int(self.ask(function, call))

    def _handle(self, function: str, call: Callable[[], object]) -> Handle:
        return Handle(self.ask(function, call))

    def _text(self, function: str, call: Callable[[], str]) -> str:
        text: str = self.ask(function, call)
        if not text:
            raise NvmlCallError(function, None, "the answer is an empty text")
        return text

    def ask(self, function: str, call: Callable[[], T], deadline_s: float | None = None) -> T:
        """Call into pynvml as the function of that name: within its deadline, its errors as NvmlCallError."""
        if pynvml.nvmlLib is not self._library:
            raise NodeError("this NvmlDriver has been replaced by a newer one in the same process")
        self._before(function, deadline_s)
        try:
            return call()
        except pynvml.NVMLError as error:
            raise error_of(function, error.value) from None
        except UnicodeDecodeError as error:
            raise NvmlCallError(function, None, f"the answer is not UTF-8: {error.object!r}") from None
        finally:
            self._after()


def address_of(handle: Handle) -> int:
    """What tells two handles apart."""
    return ctypes.cast(cast(ctypes.c_void_p, handle), ctypes.c_void_p).value or 0
