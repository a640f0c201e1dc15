"""GPUs that do not exist: what they are like, and how they are made to fail while somebody looks at them.

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
from typing import Protocol

from sharer.simulation.memory_limits import LIMIT_MAX, LimitBackend, LimitEntry, fits

GPU_IS_LOST = 15  # NVML_ERROR_GPU_IS_LOST
EVERY_FUNCTION = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedProcess:
    """A process on a GPU, as the driver's process lists show it."""

    pid: int
    used_bytes: int | None  # None: the driver does not know
    kind: str = "compute"  # compute | graphics | mps
    gpu_instance_id: int | None = None
    compute_instance_id: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedMig:
    """One MIG device of a simulated GPU."""

    uuid: str
    index: int
    gpu_instance_id: int
    profile: str  # "1g.10gb": what the driver appends to the product's name
    memory_bytes: int
    compute_instance_id: int = 0
    name: bytes | None = None  # the bytes nvmlDeviceGetName answers; None: "<product> MIG <profile>"
    gpu_slices: int = 1
    compute_slices: int = 1
    stale: bool = False  # deleted, but sessions that were open then still answer its handle and its UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedGpu:
    """One simulated GPU. What is None, the driver answers with "not supported"."""

    uuid: str
    product: str = "NVIDIA A100-SXM4-80GB"
    name: bytes | None = None  # the bytes nvmlDeviceGetName answers; None: the product
    memory_bytes: int | None = 80 * 2**30
    used_bytes: int = 0
    compute_capability: tuple[int, int] | None = (8, 0)
    minor_number: int | None = 0
    pci_bus_id: str | None = "00000000:3B:00.0"
    numa_node: int | None = None  # for the sysfs tree and the distance to other GPUs; None: no affinity
    mig_enabled: bool | None = None
    mig_devices: tuple[SimulatedMig, ...] = ()
    max_mig_devices: int = 7
    reports_events: bool = True
    recovery_action: int | None = 0  # nvmlDeviceGpuRecoveryAction_t
    nvlinks: tuple[str, ...] = ()  # per link, in order: the peer's UUID, "switch", or "" for one that is down
    pcie_switch: int | None = None  # GPUs with the same number sit below one PCIe switch
    processes: tuple[SimulatedProcess, ...] = ()


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
    def wait_for_calls(self, function: str, count: int, *, timeout_s: float = 10.0) -> None:
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


class SimulatedNode(Protocol):
    """What the Python library asks of the node that it shows: `SimulatedGpus` answers."""

    @property
    def gpus(self) -> tuple[SimulatedGpu, ...]:
        """The GPUs that exist."""
        ...

    @property
    def driver_version(self) -> str | None:
        """What the driver says it is; None: it does not say."""
        ...

    def enter(self, function: str, uuids: Sequence[str]) -> int:
        """Count a call and let faults work on it. Returns 0, or the error that it has to answer."""
        ...

    def set_limit(self, gpu: SimulatedGpu, path: str, soft_bytes: int, hard_bytes: int) -> int:
        """Set a cgroup's limit. Returns NVML's code."""
        ...

    def get_limit(self, gpu: SimulatedGpu, path: str) -> tuple[int, int, int, int]:
        """NVML's code; a cgroup's soft limit, hard limit and use."""
        ...

    def compute_mode(self, uuid: str) -> int:
        """Who may have a context on a GPU (nvmlComputeMode_t)."""
        ...

    def set_compute_mode(self, uuid: str, mode: int) -> None:
        """Change that."""
        ...

    def event_count(self) -> int:
        """How many events there were so far."""
        ...

    def next_event(self, seen: int, since: Mapping[str, int], timeout_s: float) -> tuple[int, SimulatedXid] | None:
        """The first event after the `seen` first ones, and its number from 1; None after the timeout.

        Only events of the GPUs in `since` count, for each only those after so many.
        """
        ...


def common_ancestor(one: SimulatedGpu, other: SimulatedGpu) -> int:
    """NVML's nvmlGpuTopologyLevel_t for two GPUs: 10 below one PCIe switch, 40 on one NUMA node, else 50."""
    if one.pcie_switch is not None and one.pcie_switch == other.pcie_switch:
        return 10
    return 40 if one.numa_node is not None and one.numa_node == other.numa_node else 50


def write_sys_root(root: Path, gpus: Sequence[SimulatedGpu]) -> None:
    """Write the part of sysfs below `root` that tells the GPUs' NUMA nodes (-1: no affinity), as a kernel would."""
    for gpu in gpus:
        if gpu.pci_bus_id is not None:
            domain, _, rest = gpu.pci_bus_id.lower().partition(":")
            folder = root / "bus/pci/devices" / f"{int(domain, 16):04x}:{rest}"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "numa_node").write_text(f"{-1 if gpu.numa_node is None else gpu.numa_node}\n")
