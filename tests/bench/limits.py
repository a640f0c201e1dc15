"""What holding 250 containers costs: before a start, after a cgroup has appeared, and while nothing happens."""

from __future__ import annotations

import contextlib
import json
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from sharer.adapters.cgroups import CgroupTree
from sharer.adapters.checkpoint import Checkpoint
from sharer.adapters.nvml import NvmlDriver
from sharer.adapters.watch import DirectoryWatch
from sharer.core.change.rollout import PolicyInForce
from sharer.core.enforcer import Reach
from sharer.core.holders.evidence import GpuProcess, ProcessReading, SourceStatus
from sharer.core.policy.model import MemoryPolicy
from sharer.core.quantities import GIB
from sharer.enforcers import make_enforcers
from sharer.flows.hold.diary import LOOK_S
from sharer.flows.hold.enforce import Enforcing
from sharer.flows.hold.prestart import PreStart
from sharer.flows.look.availability import AvailabilityCheck
from sharer.flows.state import NodeState
from sharer.simulation.hardware import SimulatedGpu
from sharer.simulation.memory_limits import LimitBackend
from tests.core.builders import policy, rule, time_slicing
from tests.fakes.cgroups import FakeCgroups
from tests.fakes.nvml import InstalledGpus

PODS, GPUS = 250, 8
SLICES = 40
SHARED = "nvidia.com/gpu.shared"


@dataclass(frozen=True, slots=True)
class Measured:
    """One figure, with what the issue allows."""

    name: str
    value: float
    unit: str
    bound: float | None


class BusyNode:
    """A node with 250 pods that hold a slice each; the driver's library is the C one."""

    def __init__(self, folder: Path, watch: DirectoryWatch) -> None:
        gpus = [
            SimulatedGpu(uuid=f"GPU-{number:036d}", minor_number=number, pci_bus_id=f"00000000:{number:02X}:00.0")
            for number in range(GPUS)
        ]
        self.tree = FakeCgroups(folder / "node")
        self.gpus = InstalledGpus(folder / "driver", gpus, limit_backend=LimitBackend.DMEM)
        self.driver = NvmlDriver(self.gpus.library)
        self._file = folder / "kubelet_internal_checkpoint"
        self._entries: list[dict[str, object]] = []
        self._cgroups = CgroupTree(self.tree.root, self.tree.proc_root, watch)
        self.enforcers = make_enforcers(Reach(limits=self.driver, cgroups=self._cgroups))
        self.state = NodeState()
        wanted = policy(rule(time_slicing(SLICES), memory=MemoryPolicy(required=True)))
        self.state.change(inventory=self.driver.discover(), policy=PolicyInForce(policy=wanted))
        AvailabilityCheck(self.enforcers)(self.state, 0.0)
        self.enforcing = Enforcing(self.state, self.enforcers, self._cgroups, Checkpoint(self._file, watch))
        self.pre_start = PreStart(self.state, self.enforcers, self._cgroups, Checkpoint(self._file, watch))
        self.leaves = [self.add(number) for number in range(PODS)]
        self.write()
        processes = tuple(
            GpuProcess(
                pid=self.tree.pid(leaf), gpu_uuid=self.held(number)[0].partition("::")[0], used_bytes=GIB,
                command="python", uid=self.uid(number), container_id=leaf.name, attributed=True,
            )
            for number, leaf in enumerate(self.leaves)
        )  # fmt: skip
        self._reading = ProcessReading(processes=processes, asked=frozenset(gpu.uuid for gpu in gpus))
        self.read_processes()

    def uid(self, number: int) -> str:
        return f"0e1f8a3b-0000-4000-8000-{number:012x}"

    def held(self, number: int) -> list[str]:
        return [f"GPU-{number % GPUS:036d}::ts-{number // GPUS}-2048"]

    def add(self, number: int) -> Path:
        """Another pod, with a sandbox and a container."""
        self.allocate(number)
        self.add_pod(number)
        return self.tree.add_container(self.uid(number), f"{2 * number + 1:064x}", "main")

    def add_pod(self, number: int) -> None:
        """A pod's cgroup and its sandbox's."""
        self.tree.add_pod(self.uid(number))
        sandbox = self.tree.add_container(self.uid(number), f"{2 * number:064x}")
        self.tree.record(self.tree.pid(sandbox), self.uid(number))

    def allocate(self, number: int) -> None:
        """The kubelet gives a container its slice."""
        self._entries.append(
            {
                "PodUID": self.uid(number), "ContainerName": "main", "ResourceName": SHARED,
                "DeviceIDs": {"-1": self.held(number)}, "AllocResp": "",
            }
        )  # fmt: skip

    def write(self) -> None:
        """The kubelet's checkpoint, by temporary name and rename."""
        text = json.dumps({"Data": {"PodDeviceEntries": self._entries, "RegisteredDevices": {}}, "Checksum": 0})
        scratch = self._file.with_name(".1")
        scratch.write_text(text)
        scratch.replace(self._file)

    def read_processes(self) -> None:
        ledger = self.state.view.ledger
        evidence = replace(ledger.evidence, processes=replace(self._reading))
        self.state.change(
            ledger=replace(ledger, evidence=evidence), sources={"processes": SourceStatus(read_s=time.monotonic())}
        )

    def wait_for_limit(self, number: int, cgroup: Path) -> None:
        """Wait until a cgroup is limited on the GPU of that pod."""
        uuid, end_s = self.held(number)[0].partition("::")[0], time.perf_counter() + 15.0
        while self.gpus.memory_limit(uuid, cgroup)[1] is None:
            assert time.perf_counter() < end_s, "the limit does not come"
            threading.Event().wait(0.001)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """The enforcing thread runs."""
        stop = threading.Event()
        thread = threading.Thread(target=self.enforcing.run, args=(stop,))
        thread.start()
        try:
            yield
        finally:
            stop.set()
            self.enforcing.wake("")
            thread.join()

    def close(self) -> None:
        self.driver.close()
        self.gpus.close()


@contextlib.contextmanager
def busy_node() -> Iterator[BusyNode]:
    """A node, gone afterwards."""
    with contextlib.ExitStack() as closing:
        folder = closing.enter_context(tempfile.TemporaryDirectory(prefix="s-"))
        watch = closing.enter_context(contextlib.closing(DirectoryWatch()))
        yield closing.enter_context(contextlib.closing(BusyNode(Path(folder), watch)))


def before_a_start(node: BusyNode, calls: int = 200) -> Iterator[Measured]:
    """PreStartContainer of a new pod each time, with the checkpoint written anew as after its Allocate."""
    took_ms = []
    with node.running():
        for number in range(PODS, PODS + calls):
            node.allocate(number)
            node.write()
            node.add_pod(number)
            begun_s = time.perf_counter()
            node.pre_start(SHARED, node.held(number))
            took_ms.append((time.perf_counter() - begun_s) * 1000)
    yield Measured("PreStartContainer, 250 pods and more: median", statistics.median(took_ms), "ms", None)
    yield Measured("PreStartContainer: p99", sorted(took_ms)[int(len(took_ms) * 0.99)], "ms", 50.0)


def after_a_cgroup(node: BusyNode, starts: int = 60) -> Iterator[Measured]:
    """From a container's mkdir to its limit, its pod being there."""
    took_ms = []
    with node.running():
        for number in range(PODS, PODS + starts):
            node.allocate(number)
            node.write()
            node.add_pod(number)
            node.wait_for_limit(number, node.tree.pod(node.uid(number)))
            begun_s = time.perf_counter()
            node.wait_for_limit(number, node.tree.add_container(node.uid(number), f"{2 * number + 1:064x}", "main"))
            took_ms.append((time.perf_counter() - begun_s) * 1000)
    yield Measured("a container's limit after its cgroup: median", statistics.median(took_ms), "ms", None)
    yield Measured("a container's limit after its cgroup: worst", max(took_ms), "ms", 100.0)


def while_nothing_happens(node: BusyNode, looks: int = 20) -> Iterator[Measured]:
    """The processor time of looks at everything, over the time between two; and of the watch for changes."""
    node.enforcing.look(time.monotonic())
    node.read_processes()
    begun_s = time.process_time()
    for _ in range(looks):
        node.enforcing.look(time.monotonic())
    each_s = (time.process_time() - begun_s) / looks
    assert all(hold.by == "driver" for hold in node.enforcing.found.enforcement.holds.values())
    yield Measured("a look at 250 containers", each_s * 1000, "ms of a core", None)
    yield Measured("verify loop", each_s / LOOK_S * 100, "% of a core", 1.0)
    with node.running():
        threading.Event().wait(2.0)
        begun_s, wall_s = time.process_time(), time.perf_counter()
        threading.Event().wait(LOOK_S * 2)
        busy = (time.process_time() - begun_s) / (time.perf_counter() - wall_s)
    yield Measured("the enforcing thread, its watch and NVML together, at rest", busy * 100, "% of a core", 1.0)


def main() -> int:
    """Measure, print. Returns 1 if a bound does not hold."""
    failed = 0
    for bench in (while_nothing_happens, before_a_start, after_a_cgroup):
        with busy_node() as node:
            for one in bench(node):
                holds = one.bound is None or one.value <= one.bound
                failed += not holds
                allowed = "" if one.bound is None else f"  (at most {one.bound:g}{'' if holds else ': MISSED'})"
                print(f"{one.name:62} {one.value:8.2f} {one.unit}{allowed}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
