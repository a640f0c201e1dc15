"""Steering of the C library: what `GpuSteering` is told is written where every process with the library reads it."""

from __future__ import annotations

import ctypes
import shutil
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from sharer.adapters.nvml import InstalledLibrary
from sharer.simulation.hardware import SimulatedGpu, SimulatedMig, common_ancestor
from sharer.simulation.memory_limits import LimitBackend, LimitEntry, is_alive
from sharer.simulation.steering import PATIENCE_S, GpuSteering, SimulatedXid
from tests.fakes.nvml.build import NAME, build
from tests.fakes.nvml.layout import LINK_DOWN, LINK_TO_SWITCH, MAX_EVENTS, MAX_GPUS, CFault, CGpu, CMig, CNode, CProcess

_NO_INSTANCE = 2**32 - 1
_NOT_AVAILABLE = 2**64 - 1
_KINDS = ("compute", "graphics", "mps")


class InstalledGpus(GpuSteering):
    """Simulated GPUs behind a real library in a folder, for this process and any other that loads it from there."""

    def __init__(
        self,
        folder: Path,
        gpus: Sequence[SimulatedGpu] = (),
        *,
        driver_version: str | None = "580.95.05",
        missing: Collection[str] = (),
        installed: bool = True,
        limit_backend: LimitBackend = LimitBackend.NONE,
    ) -> None:
        """With these GPUs, and without the functions that `missing` names. `installed=False`: until `install()`."""
        super().__init__(gpus, driver_version=driver_version, limit_backend=limit_backend)
        self.path = folder / NAME  # for --driver-library
        self._missing = missing
        self._c = _helpers()
        self._scratch = folder.with_name(f"{folder.name}.node")
        self._scratch.mkdir(parents=True)
        self._address = self._c.node_attach(bytes(self._scratch / "node"), 1)
        if not self._address:
            raise OSError(f"{self._scratch / 'node'} cannot be made")
        self._node = CNode.from_address(self._address)
        self._node.limit_backend = limit_backend
        self._slots: dict[str, int] = {}
        self._published: dict[str, SimulatedGpu] = {}
        self._publish()
        if installed:
            self.install()

    def install(self) -> None:
        """Put the library into its folder, in one step, as an installer of drivers would."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        node = self.path.parent / "node"
        if not node.exists():
            node.hardlink_to(self._scratch / "node")
        copy = self.path.with_suffix(".new")
        shutil.copy(build(self._missing), copy)
        copy.replace(self.path)

    def library(self) -> object:
        """The library, loaded into this process: pass this method to `NvmlDriver`."""
        return InstalledLibrary(self.path)()

    def close(self) -> None:
        """Forget the node. Libraries that are loaded keep it."""
        self._c.node_detach(self._address)

    def calls(self, function: str, *, uuid: str | None = None) -> int:
        """How often a function was called so far; with a UUID, on that GPU or MIG device."""
        wanted = (function.encode(), (uuid or "").encode())
        with self._locked():
            counters = self._node.counters[: self._node.counter_count]
            return next((found.calls for found in counters if (found.function, found.uuid) == wanted), 0)

    def compute_mode(self, uuid: str) -> int:
        """Who may have a context on a GPU: 0 everybody, 3 one process (nvmlComputeMode_t)."""
        with self._locked():
            return int(self._node.modes[self._slot(uuid)])

    def set_compute_mode(self, uuid: str, mode: int) -> None:
        """Change that, as somebody else on the node would."""
        with self._locked():
            self._node.modes[self._slot(uuid)] = mode

    def wait_for_calls(self, function: str, count: int, *, timeout_s: float = PATIENCE_S) -> None:
        """Wait until a function was called that often. Raises TimeoutError."""
        end_s = time.monotonic() + timeout_s
        while True:
            seen = self._node.calls
            if self.calls(function) >= count:
                return
            left_ms = int((end_s - time.monotonic()) * 1000)
            if left_ms <= 0:
                raise TimeoutError(f"{function} was called {self.calls(function)} times, not {count}")
            self._c.node_wait(ctypes.byref(self._node, CNode.calls.offset), seen, left_ms)

    def _limit_entries(self, uuid: str) -> Mapping[str, LimitEntry]:
        with self._locked():
            slot = self._slot(uuid)
            found = [
                (one.path.decode(), LimitEntry(one.inode, one.soft, one.hard, one.used))
                for one in self._node.limits[: self._node.limit_count]
                if one.inode and one.slot == slot
            ]
        return {path: entry for path, entry in found if is_alive(path, entry.inode)}

    def _set_limit(self, uuid: str, path: str, soft_bytes: int, hard_bytes: int, total_bytes: int) -> int:
        with self._locked():
            arguments = (self._slot(uuid), path.encode(), soft_bytes, hard_bytes, total_bytes)
            return int(self._c.node_set_limit(self._address, *arguments))

    def _set_used(self, uuid: str, path: str, used_bytes: int) -> None:
        with self._locked():
            self._c.node_use(self._address, self._slot(uuid), path.encode(), used_bytes)

    def _publish(self) -> None:
        with self._locked():
            node = self._node
            node.driver_version = (self._driver_version or "").encode()
            for gpu in self._gpus:
                if self._published.get(gpu.uuid) != gpu:
                    self._write_gpu(node.gpus[self._slot(gpu.uuid)], gpu)
            present = {gpu.uuid for gpu in self._gpus}
            for uuid, slot in self._slots.items():
                node.gpus[slot].present = uuid in present
            self._published = {gpu.uuid: gpu for gpu in self._gpus}
            node.gpu_count = len(self._gpus)
            for place, gpu in enumerate(self._gpus):
                node.order[place] = self._slots[gpu.uuid]
                for other in self._gpus:
                    node.ancestors[self._slots[gpu.uuid]][self._slots[other.uuid]] = common_ancestor(gpu, other)
            hits = {fault.number: fault.hits for fault in node.faults[: node.fault_count]}
            node.fault_count = len(self._faults)
            for place, fault in enumerate(self._faults):
                node.faults[place] = CFault(
                    function=fault.function.encode(),
                    uuid=(fault.uuid or "").encode(),
                    number=fault.number,
                    code=fault.code or 0,
                    after=fault.after,
                    times=-1 if fault.times is None else fault.times,
                    delay_ms=int(fault.delay_s * 1000),
                    hang=fault.hang,
                    hits=hits.get(fault.number, 0),
                )
        self._ring()

    def _emit(self, event: SimulatedXid) -> None:
        with self._locked():
            entry = self._node.events[self._node.event_count % MAX_EVENTS]
            entry.xid = event.xid
            entry.slot = -1 if event.uuid is None else self._slot(event.uuid)
            entry.gpu_instance_id = _instance(event.gpu_instance_id)
            entry.compute_instance_id = _instance(event.compute_instance_id)
            self._node.event_count += 1
        self._ring()

    def _ring(self) -> None:
        self._c.node_ring(ctypes.byref(self._node, CNode.changes.offset))

    def _slot(self, uuid: str) -> int:
        slot = self._slots.setdefault(uuid, len(self._slots))
        if slot >= MAX_GPUS:
            raise ValueError(f"the simulated NVML knows at most {MAX_GPUS} GPUs in its lifetime")
        return slot

    def _write_gpu(self, entry: CGpu, gpu: SimulatedGpu) -> None:
        name = gpu.product.encode() if gpu.name is None else gpu.name
        entry.uuid, entry.name = gpu.uuid.encode(), name
        entry.pci_bus_id = (gpu.pci_bus_id or "").encode()
        entry.has_memory, entry.memory_bytes = gpu.memory_bytes is not None, gpu.memory_bytes or 0
        entry.used_bytes = gpu.used_bytes
        entry.major, entry.minor = gpu.compute_capability or (-1, -1)
        entry.minor_number = _optional(gpu.minor_number)
        entry.mig_enabled = _optional(gpu.mig_enabled)
        entry.reports_events = gpu.reports_events
        entry.recovery_action = _optional(gpu.recovery_action)
        entry.fabric_state = _optional(gpu.fabric_state)
        entry.max_migs = gpu.max_mig_devices
        entry.mig_count, entry.link_count = len(gpu.mig_devices), len(gpu.nvlinks)
        entry.process_count = len(gpu.processes)
        for place, mig in enumerate(gpu.mig_devices):
            entry.migs[place] = _mig(mig, name)
        for place, peer in enumerate(gpu.nvlinks):
            entry.links[place] = {"": LINK_DOWN, "switch": LINK_TO_SWITCH}.get(peer) or self._slot(peer)
        for place, process in enumerate(gpu.processes):
            entry.processes[place] = CProcess(
                pid=process.pid,
                used_bytes=_NOT_AVAILABLE if process.used_bytes is None else process.used_bytes,
                gpu_instance_id=_instance(process.gpu_instance_id),
                compute_instance_id=_instance(process.compute_instance_id),
                kind=_KINDS.index(process.kind),
            )

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with self._lock:
            self._c.node_lock(self._address)
            try:
                yield
            finally:
                self._c.node_unlock(self._address)


def _mig(mig: SimulatedMig, product: bytes) -> CMig:
    return CMig(
        uuid=mig.uuid.encode(),
        name=product + b" MIG " + mig.profile.encode() if mig.name is None else mig.name,
        profile=mig.profile.encode(),
        memory_bytes=mig.memory_bytes,
        index=mig.index,
        gpu_instance_id=mig.gpu_instance_id,
        compute_instance_id=mig.compute_instance_id,
        gpu_slices=mig.gpu_slices,
        compute_slices=mig.compute_slices,
        stale=mig.stale,
    )


def _optional(number: int | None) -> int:
    return -1 if number is None else int(number)


def _instance(number: int | None) -> int:
    return _NO_INSTANCE if number is None else number


def _helpers() -> ctypes.CDLL:
    """The functions of node.c, from a copy of the library that nobody uses as a library."""
    c = ctypes.CDLL(str(build()))
    c.node_attach.restype = ctypes.c_void_p
    c.node_attach.argtypes = [ctypes.c_char_p, ctypes.c_int]
    c.node_detach.argtypes = c.node_lock.argtypes = c.node_unlock.argtypes = [ctypes.c_void_p]
    c.node_ring.argtypes = [ctypes.c_void_p]
    c.node_wait.argtypes = [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int64]
    amount = ctypes.c_uint64
    c.node_set_limit.argtypes = [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_char_p, amount, amount, amount]
    c.node_use.argtypes = [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_char_p, amount]
    c.fake_sizeof.restype = ctypes.c_uint64
    c.fake_sizeof.argtypes = [ctypes.c_char_p]
    return c
