"""NVML opened: the GPUs that this session found, and whether it should be opened anew.

NVML looks for GPUs when it is opened and never again: a GPU that comes (back) later is seen by the next session only,
and a MIG device that was deleted can haunt the old one. So a session in doubt, or older than a GPU that the kernel's
module has taken, is closed and opened again; but not at every look, because each opening costs the driver work and ends
the watch for faults.
"""

from __future__ import annotations

from sharer.adapters.nvml.calls import Calls, Handle
from sharer.adapters.nvml.errors import (
    DRIVER_NOT_LOADED,
    LIBRARY_NOT_FOUND,
    NO_PERMISSION,
    NOT_FOUND,
    VERSION_MISMATCH,
    NvmlCallError,
)
from sharer.core.errors import NodeError
from sharer.core.values import dataclass

_CURES = {
    DRIVER_NOT_LOADED: "The kernel module is not loaded: load it (modprobe nvidia) or wait for the driver's "
    "installation to finish; dmesg says why it does not load",
    VERSION_MISMATCH: "The driver was upgraded while its old kernel module is still loaded: reload the module (end "
    "every process on the GPUs first) or reboot the node",
    NO_PERMISSION: "Run the agent as root, and with the device nodes /dev/nvidiactl and /dev/nvidia* in its container",
    LIBRARY_NOT_FOUND: "The driver's installation is incomplete: reinstall it",
}


@dataclass(frozen=True, slots=True)
class FoundGpu:
    """A GPU of this session. Without a handle it cannot be asked."""

    index: int
    uuid: str | None  # None: it never told
    handle: Handle | None
    error: NvmlCallError | None  # why there is no handle


class Session:
    """An open NVML. Used in the worker's thread only."""

    def __init__(self, calls: Calls, *, deadline_s: float, now_s: float, at_driver: frozenset[str]) -> None:
        """Open NVML. `at_driver`: the GPUs' PCI addresses, by the kernel, before that.

        Raises NodeError that says why it cannot be opened and what to do.
        """
        try:
            calls.take_over()
            calls.init(deadline_s)
        except NvmlCallError as error:
            raise NodeError(explain("NVML cannot be opened", error)) from error
        self.calls = calls
        self.opened_s, self.at_driver = now_s, at_driver
        self.doubtful = False  # something is amiss that a new session may see better
        self.empty = False  # no GPUs: a new session is the only way to see one come
        self._uuids: dict[int, str] = {}
        self._handles: dict[str, Handle] = {}
        self._found: list[FoundGpu] = []  # when they were last counted

    def gpus(self) -> list[FoundGpu]:
        """Every GPU of the session, with or without a handle. Raises NvmlCallError if not even their number is told."""
        count = self.calls.device_count()
        self.empty = count == 0
        found = [self._gpu(index) for index in range(count)]
        if any(gpu.handle is None for gpu in found):
            self.doubtful = True
        self._found = found
        return found

    def known(self) -> list[FoundGpu]:
        """The GPUs as last found, if each had a handle then; whether one still answers is for the caller to ask.

        Else as `gpus`. Raises NvmlCallError as it does.
        """
        if self._found and all(gpu.handle is not None for gpu in self._found):
            return self._found
        return self.gpus()

    def forget(self) -> None:
        """Have `known` find the GPUs again."""
        self._found = []

    def handle(self, uuid: str) -> Handle:
        """A GPU of this session by its UUID. Raises NvmlCallError if it is not there, or lost."""
        if uuid not in self._handles:
            self.gpus()
        if uuid not in self._handles:
            raise NvmlCallError("nvmlDeviceGetHandleByIndex_v2", NOT_FOUND, f"{uuid} does not answer")
        return self._handles[uuid]

    def _gpu(self, index: int) -> FoundGpu:
        try:
            handle = self.calls.device(index)
            uuid = self._uuids[index] = self.calls.uuid(handle)
        except NvmlCallError as error:
            return FoundGpu(index, self._uuids.get(index), None, error)
        self._handles[uuid] = handle
        return FoundGpu(index, uuid, handle, None)


def explain(what: str, error: NvmlCallError) -> str:
    """What does not work, why, and what to do about it."""
    cure = _CURES.get(error.code or 0, "nvidia-smi on the node shows the same error; dmesg may say more")
    return f"{what}: {error}. {cure}"
