"""Simulated GPUs in this process, for the real pynvml and `adapters/nvml`, without a compiler.

>>> from sharer.adapters.nvml import NvmlDriver
>>> gpus = SimulatedGpus([SimulatedGpu(uuid="GPU-a"), SimulatedGpu(uuid="GPU-b")])
>>> driver = NvmlDriver(gpus.library)
>>> [gpu.uuid for gpu in driver.discover().gpus if not gpu.lost]
['GPU-a', 'GPU-b']
>>> fault = gpus.lose("GPU-b")
>>> [gpu.uuid for gpu in driver.discover().gpus if not gpu.lost]
['GPU-a']
>>> driver.close()
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from sharer.simulation.hardware import SimulatedGpu
from sharer.simulation.memory_limits import LIMIT_MAX, CgroupLimits, LimitBackend, LimitEntry
from sharer.simulation.nvml import SimulatedLibrary
from sharer.simulation.steering import PATIENCE_S, Fault, GpuSteering, SimulatedXid


class SimulatedGpus(GpuSteering):
    """Simulated GPUs in this process. Each `library()` is a driver library of its own, as in a process of its own."""

    def __init__(
        self,
        gpus: Sequence[SimulatedGpu] = (),
        *,
        driver_version: str | None = "580.95.05",
        missing: Collection[str] = (),
        limit_backend: LimitBackend = LimitBackend.NONE,
    ) -> None:
        """With these GPUs, and without the functions that `missing` names, as in an older driver."""
        super().__init__(gpus, driver_version=driver_version, limit_backend=limit_backend)
        self._limits = CgroupLimits(limit_backend)
        self._missing = frozenset(missing)
        self._changed = threading.Condition(self._lock)
        self._events: list[SimulatedXid] = []
        self._calls: Counter[tuple[str, str | None]] = Counter()
        self._hits: Counter[int] = Counter()
        self._modes: dict[str, int] = {}

    def library(self) -> object:
        """A new driver library, with NVML's C function names: pass this method to `NvmlDriver`."""
        return SimulatedLibrary(self, self._missing)

    def calls(self, function: str, *, uuid: str | None = None) -> int:
        """How often a function was called so far; with a UUID, on that GPU or MIG device."""
        with self._lock:
            return self._calls[function, uuid]

    def wait_for_calls(self, function: str, count: int, *, timeout_s: float = PATIENCE_S) -> None:
        """Wait until a function was called that often. Raises TimeoutError."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._calls[function, None] >= count, timeout_s):
                raise TimeoutError(f"{function} was called {self._calls[function, None]} times, not {count}")

    def compute_mode(self, uuid: str) -> int:
        """Who may have a context on a GPU: 0 everybody, 3 one process (nvmlComputeMode_t)."""
        with self._lock:
            return self._modes.get(uuid, 0)

    def set_compute_mode(self, uuid: str, mode: int) -> None:
        """Change that."""
        with self._changed:
            self._modes[uuid] = mode
            self._changed.notify_all()

    # What the library asks.

    @property
    def driver_version(self) -> str | None:
        """What the driver says it is; None: it does not say."""
        return self._driver_version

    def enter(self, function: str, uuids: Sequence[str]) -> int:
        """Count a call and let the faults work on it. Returns 0, or the error that it has to answer."""
        with self._changed:
            for uuid in (None, *uuids):
                self._calls[function, uuid] += 1
            self._changed.notify_all()
            fault = self._next_fault(function, uuids)
            if fault is None:
                return 0
            if fault.hang or fault.delay_s:
                self._changed.wait_for(lambda: fault not in self._faults, None if fault.hang else fault.delay_s)
            return fault.code or 0

    def set_limit(self, gpu: SimulatedGpu, path: str, soft_bytes: int, hard_bytes: int) -> int:
        """Set a cgroup's limit. Returns NVML's code."""
        with self._lock:
            return self._limits.set(gpu.uuid, path, soft_bytes, hard_bytes, gpu.memory_bytes or LIMIT_MAX)

    def get_limit(self, gpu: SimulatedGpu, path: str) -> tuple[int, int, int, int]:
        """NVML's code; a cgroup's soft limit, hard limit and use."""
        with self._lock:
            return self._limits.get(gpu.uuid, path)

    def event_count(self) -> int:
        """How many events there were so far: what a new listener has missed."""
        with self._lock:
            return len(self._events)

    def next_event(self, seen: int, since: Mapping[str, int], timeout_s: float) -> tuple[int, SimulatedXid] | None:
        """The first event after the `seen` first ones, and its number from 1; None after the timeout.

        Only events of the GPUs in `since` count, for each only those after so many.
        """

        def after_seen() -> tuple[int, SimulatedXid] | None:
            for number, event in enumerate(self._events[seen:], start=seen + 1):
                if event.uuid is None or number > since.get(event.uuid, number):
                    return number, event
            return None

        with self._changed:
            return self._changed.wait_for(after_seen, timeout_s)

    def _next_fault(self, function: str, uuids: Sequence[str]) -> Fault | None:
        for fault in self._faults:
            last = None if fault.times is None else fault.after + fault.times
            if fault.concerns(function, uuids) and (last is None or self._hits[fault.number] < last):
                self._hits[fault.number] += 1
                if self._hits[fault.number] > fault.after:
                    return fault
        return None

    def _limit_entries(self, uuid: str) -> Mapping[str, LimitEntry]:
        return self._limits.living(uuid)

    def _set_limit(self, uuid: str, path: str, soft_bytes: int, hard_bytes: int, total_bytes: int) -> int:
        return self._limits.set(uuid, path, soft_bytes, hard_bytes, total_bytes)

    def _set_used(self, uuid: str, path: str, used_bytes: int) -> None:
        self._limits.entry(uuid, path).used_bytes = used_bytes

    def _publish(self) -> None:
        self._changed.notify_all()

    def _emit(self, event: SimulatedXid) -> None:
        self._events.append(event)
        self._changed.notify_all()
