"""How GPUs that do not exist are made to change, and to fail while somebody looks at them.

`GpuSteering` is the one vocabulary for it. Two libraries speak it: the Python one in `simulation/gpus` (no compiler,
same process) and the C one in `tests/fakes/nvml` (a real `libnvidia-ml.so.1`, other processes too), so a test or a
scenario written against it runs on both.

As in a real driver a session keeps the order of the GPUs that it found at `nvmlInit`: a GPU that is taken away answers
"GPU is lost" until the next `nvmlInit`, and a GPU that is added is seen from then on.
"""

from __future__ import annotations

import itertools
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sharer.simulation.hardware import SimulatedGpu
from sharer.simulation.memory_limits import LIMIT_MAX, LimitBackend, LimitEntry, fits

GPU_IS_LOST = 15  # NVML_ERROR_GPU_IS_LOST
EVERY_FUNCTION = "*"
PATIENCE_S = 30.0  # of who waits, beside whatever else the machine does


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What befalls calls of a function. The first fault that matches and is not used up applies."""

    number: int
    function: str  # a C name such as "nvmlDeviceGetMemoryInfo", or "*"
    uuid: str | None  # only calls on this GPU (its MIG devices included) or MIG device; None: every call
    code: int | None  # what the call returns; None: its own answer
    after: int  # so many matching calls are spared first
    times: int | None  # then so many are hit; None: all
    delay_s: float
    hang: bool  # until the fault is cleared

    def concerns(self, function: str, uuids: Sequence[str]) -> bool:
        """Whether a call of `function` on the thing with these UUIDs (its own, its GPU's) is meant."""
        return self.function in (EVERY_FUNCTION, function) and (self.uuid is None or self.uuid in uuids)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedXid:
    """A fault that the driver reports as an event."""

    uuid: str | None  # None: the event carries a handle that NVML cannot resolve
    xid: int
    gpu_instance_id: int | None
    compute_instance_id: int | None


class GpuSteering(ABC):
    """Everything that can be done to a node's simulated GPUs. Safe to use from any thread, at any time."""

    def __init__(
        self,
        gpus: Sequence[SimulatedGpu] = (),
        *,
        driver_version: str | None = "580.95.05",
        limit_backend: LimitBackend = LimitBackend.NONE,
    ) -> None:
        self._lock = threading.RLock()
        self._limit_backend = limit_backend
        self._numbers = itertools.count(1)
        self._gpus = tuple(gpus)
        self._driver_version = driver_version
        self._faults: tuple[Fault, ...] = ()

    @property
    def gpus(self) -> tuple[SimulatedGpu, ...]:
        """The GPUs that a new NVML session finds, in its order."""
        return self._gpus

    def gpu(self, uuid: str) -> SimulatedGpu:
        """The GPU with this UUID. Raises KeyError."""
        return {gpu.uuid: gpu for gpu in self._gpus}[uuid]

    def set_gpus(self, gpus: Sequence[SimulatedGpu]) -> None:
        """Replace all GPUs."""
        if len({gpu.uuid for gpu in gpus}) != len(gpus):
            raise ValueError("two simulated GPUs have the same UUID")
        with self._lock:
            self._gpus = tuple(gpus)
            self._publish()

    def put(self, gpu: SimulatedGpu) -> None:
        """Replace the GPU with the same UUID, or add it as the last."""
        others = {other.uuid: other for other in self._gpus}
        self.set_gpus(tuple((others | {gpu.uuid: gpu}).values()))

    def remove(self, uuid: str) -> None:
        """Take a GPU off the bus."""
        self.set_gpus([gpu for gpu in self._gpus if gpu.uuid != uuid])

    def set_driver_version(self, version: str | None) -> None:
        """What nvmlSystemGetDriverVersion answers; None: not supported."""
        with self._lock:
            self._driver_version = version
            self._publish()

    def fail(
        self, function: str, code: int, *, uuid: str | None = None, after: int = 0, times: int | None = None
    ) -> Fault:
        """Let calls of a function return an NVML error."""
        return self._add(function, uuid=uuid, code=code, after=after, times=times)

    def delay(self, function: str, delay_s: float, *, uuid: str | None = None) -> Fault:
        """Let each call of a function take that long."""
        return self._add(function, uuid=uuid, delay_s=delay_s)

    def hang(self, function: str, *, uuid: str | None = None, after: int = 0, times: int | None = None) -> Fault:
        """Let calls of a function not return until the fault is cleared; then they answer."""
        return self._add(function, uuid=uuid, hang=True, after=after, times=times)

    def lose(self, uuid: str) -> Fault:
        """Let every call on a GPU answer that it has fallen off the bus."""
        return self.fail(EVERY_FUNCTION, GPU_IS_LOST, uuid=uuid)

    def init_results(self, *codes: int) -> None:
        """Let the next nvmlInit return the first code, the one after it the second; then it succeeds."""
        for code in codes:
            self.fail("nvmlInitWithFlags", code, times=1)

    def clear(self, fault: Fault | None = None) -> None:
        """End one fault, or all."""
        with self._lock:
            self._faults = tuple(other for other in self._faults if fault is not None and other.number != fault.number)
            self._publish()

    def xid(
        self,
        uuid: str | None,
        xid: int,
        *,
        gpu_instance_id: int | None = None,
        compute_instance_id: int | None = None,
    ) -> None:
        """Report a fault of a GPU to everybody who registered for its events."""
        event = SimulatedXid(
            uuid=uuid, xid=xid, gpu_instance_id=gpu_instance_id, compute_instance_id=compute_instance_id
        )
        with self._lock:
            self._emit(event)

    def memory_limit(self, uuid: str, cgroup: Path) -> tuple[int, int | None]:
        """The soft and the hard limit of a cgroup on a GPU; None: no hard limit."""
        with self._lock:
            entry = self._limit_entries(uuid).get(str(cgroup))
        if entry is None:
            return 0, None
        return entry.soft_bytes, None if entry.hard_bytes == LIMIT_MAX else entry.hard_bytes

    def limited(self, uuid: str) -> dict[str, tuple[int, int | None]]:
        """Every cgroup with a limit on a GPU, by path."""
        with self._lock:
            return {
                path: self.memory_limit(uuid, Path(path))
                for path, entry in self._limit_entries(uuid).items()
                if entry.is_limited
            }

    def set_memory_limit(self, uuid: str, cgroup: Path, *, soft_bytes: int = 0, hard_bytes: int | None = None) -> None:
        """Set a limit as somebody else on the node would; None: lift the hard one. Raises OSError if it is refused."""
        hard = LIMIT_MAX if hard_bytes is None else hard_bytes
        with self._lock:
            code = self._set_limit(uuid, str(cgroup), soft_bytes, hard, self.gpu(uuid).memory_bytes or LIMIT_MAX)
        if code != 0:
            raise OSError(f"the limit of {cgroup} is refused: NVML error {code}")

    def allocate(self, uuid: str, cgroup: Path, amount_bytes: int) -> bool:
        """Let a process in a cgroup allocate memory of a GPU. False: the driver does not let it."""
        with self._lock:
            entries = self._limit_entries(uuid)
            if not fits(self._limit_backend, entries, str(cgroup), amount_bytes):
                return False
            entry = entries.get(str(cgroup))
            self._set_used(uuid, str(cgroup), amount_bytes + (0 if entry is None else entry.used_bytes))
            return True

    def free(self, uuid: str, cgroup: Path) -> None:
        """Let the processes in a cgroup free all their memory of a GPU."""
        with self._lock:
            self._set_used(uuid, str(cgroup), 0)

    @abstractmethod
    def compute_mode(self, uuid: str) -> int:
        """Who may have a context on a GPU: 0 everybody, 3 one process (nvmlComputeMode_t)."""

    @abstractmethod
    def set_compute_mode(self, uuid: str, mode: int) -> None:
        """Change that, as somebody else on the node would."""

    @abstractmethod
    def library(self) -> object:
        """The driver library that shows these GPUs: pass this method to `NvmlDriver`."""

    @abstractmethod
    def calls(self, function: str, *, uuid: str | None = None) -> int:
        """How often a function was called so far, by anybody; with a UUID, on that GPU or MIG device."""

    @abstractmethod
    def wait_for_calls(self, function: str, count: int, *, timeout_s: float = PATIENCE_S) -> None:
        """Wait until a function was called that often. Raises TimeoutError."""

    @abstractmethod
    def _limit_entries(self, uuid: str) -> Mapping[str, LimitEntry]:
        """What is known of each cgroup that exists, by path."""

    @abstractmethod
    def _set_limit(self, uuid: str, path: str, soft_bytes: int, hard_bytes: int, total_bytes: int) -> int:
        """Set a limit. Returns NVML's code."""

    @abstractmethod
    def _set_used(self, uuid: str, path: str, used_bytes: int) -> None:
        """Let the processes of a cgroup use so much."""

    @abstractmethod
    def _publish(self) -> None:
        """GPUs, driver version or faults changed."""

    @abstractmethod
    def _emit(self, event: SimulatedXid) -> None:
        """Give an event to the listeners."""

    def _add(
        self,
        function: str,
        *,
        uuid: str | None,
        code: int | None = None,
        after: int = 0,
        times: int | None = None,
        delay_s: float = 0.0,
        hang: bool = False,
    ) -> Fault:
        fault = Fault(
            number=next(self._numbers),
            function=function,
            uuid=uuid,
            code=code,
            after=after,
            times=times,
            delay_s=delay_s,
            hang=hang,
        )
        with self._lock:
            self._faults = (*self._faults, fault)
            self._publish()
        return fault
