"""A node whose limits are looked after: simulated GPUs, a cgroup tree of folders, the kubelet's checkpoint as given."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from sharer.adapters.cgroups import CgroupTree
from sharer.adapters.nvml import NvmlDriver
from sharer.core.change.rollout import PolicyInForce
from sharer.core.enforcement import Hold
from sharer.core.enforcer import ContainerCgroups, LimitAnswer, LimitQuestion, MemoryLimits, Reach
from sharer.core.errors import NodeError
from sharer.core.holders.evidence import (
    CheckpointEntry,
    CheckpointReading,
    Evidence,
    GpuProcess,
    ProcessReading,
    SourceStatus,
)
from sharer.core.holders.ledger import Ledger
from sharer.core.holders.observations import PodSeen, PodsSeen
from sharer.core.inventory import remember_lost
from sharer.core.policy.model import MemoryPolicy, Policy, TimeSlicing
from sharer.core.quantities import GIB
from sharer.enforcers import make_enforcers
from sharer.flows.hold.enforce import Enforcing
from sharer.flows.hold.prestart import PreStart
from sharer.flows.look.availability import AvailabilityCheck
from sharer.flows.state import NodeState
from sharer.simulation.gpus import SimulatedGpus
from sharer.simulation.hardware import SimulatedGpu
from sharer.simulation.memory_limits import LimitBackend
from sharer.simulation.steering import GpuSteering
from tests.core.builders import gpu_uuid, policy, rule, time_slicing
from tests.fakes.cgroups import FakeCgroups
from tests.fakes.no_watch import NoWatch

A, B = gpu_uuid(0), gpu_uuid(1)
GPUS = tuple(
    SimulatedGpu(uuid=uuid, minor_number=number, pci_bus_id=f"00000000:{number:02X}:00.0", memory_bytes=80 * GIB)
    for number, uuid in enumerate((A, B))
)
SHARED = "nvidia.com/gpu.shared"
POD = "0e1f8a3b-0000-4000-8000-00000000000a"
FOUR = time_slicing(4)
MIB_PER_GIB = 1024


class GivenCheckpoint:
    """A checkpoint that says what a test wants."""

    def __init__(self) -> None:
        self.entries: tuple[CheckpointEntry, ...] = ()
        self.problem: str | None = None
        self.is_there = True

    def read(self) -> CheckpointReading | None:
        if self.problem is not None:
            raise NodeError(self.problem)
        return CheckpointReading(serial=1, entries=self.entries) if self.is_there else None

    def follow(self, changed: Callable[[], None]) -> None:
        """Nothing is ever told."""


class LimitedNode:
    """Two GPUs of 80 GiB in four slices of 20 GiB each, on a driver that can limit memory."""

    def __init__(
        self,
        folder: Path,
        *,
        backend: LimitBackend = LimitBackend.DMEM,
        gpus: GpuSteering | None = None,
        version: int = 2,
        dmem: bool = True,
        limits: Callable[[MemoryLimits], MemoryLimits] = lambda limits: limits,
        cgroups: Callable[[ContainerCgroups], ContainerCgroups] = lambda cgroups: cgroups,
    ) -> None:
        """`limits` and `cgroups` may stand between the enforcers and what they reach."""
        self.now_s = 100.0
        self.tree = FakeCgroups(folder, version=version, dmem=dmem)
        self.gpus = SimulatedGpus(GPUS, limit_backend=backend) if gpus is None else gpus
        self.driver = NvmlDriver(self.gpus.library, call_deadline_s=5.0)
        self.checkpoint = GivenCheckpoint()
        self._limits, self._cgroups = limits, cgroups
        self._numbers = itertools.count(1)
        self._processes: tuple[GpuProcess, ...] = ()
        self._pods: tuple[PodSeen, ...] = ()
        self.start_agent()

    def start_agent(self) -> None:
        """An agent that remembers nothing."""
        watched = CgroupTree(self.tree.root, self.tree.proc_root, NoWatch(), now_s=lambda: self.now_s)
        cgroups = self.cgroups = self._cgroups(watched)
        self.enforcers = make_enforcers(Reach(limits=self._limits(self.driver), cgroups=cgroups))
        self.state = NodeState()
        self.state.change(inventory=self.driver.discover())
        self.check = AvailabilityCheck(self.enforcers)
        self.enforcing = Enforcing(self.state, self.enforcers, cgroups, self.checkpoint, now_s=lambda: self.now_s)
        self.pre_start = PreStart(self.state, self.enforcers, cgroups, self.checkpoint)
        self.use(policy(FOUR))
        self.read_processes()

    def use(self, wanted: Policy | TimeSlicing | MemoryPolicy) -> None:
        """Have a policy in force, and check what can hold what."""
        if isinstance(wanted, MemoryPolicy):
            wanted = policy(rule(FOUR, memory=wanted))
        elif isinstance(wanted, TimeSlicing):
            wanted = policy(wanted)
        self.state.change(policy=PolicyInForce(policy=wanted))
        self.check(self.state, self.now_s)

    def refresh(self) -> None:
        """The driver is looked at again, and what can hold what."""
        known = self.state.view.inventory
        assert known is not None
        all_in_use = {mig.uuid for gpu in known.gpus for mig in gpu.mig_devices}
        self.state.change(inventory=remember_lost(known, self.driver.discover(), all_in_use))
        self.check(self.state, self.now_s)

    def close(self) -> None:
        self.gpus.clear()
        self.driver.close()

    def give(self, container: str, *ids: str, uid: str = POD, resource: str = SHARED) -> None:
        """The kubelet gives a container slices."""
        entry = CheckpointEntry(uid=uid, container=container, resource=resource, ids=ids)
        self.checkpoint.entries = (*self.checkpoint.entries, entry)

    def start_pod(self, uid: str = POD) -> Path:
        """A pod with a sandbox."""
        pod = self.tree.add_pod(uid)
        self.tree.add_container(uid, self.next_id())
        return pod

    def start(self, container: str, uid: str = POD, *, inner: str | None = None) -> Path:
        """A container whose mounts are there. Returns its cgroup."""
        return self.tree.add_container(uid, self.next_id(), container, inner=inner)

    def next_id(self) -> str:
        return f"{next(self._numbers):064x}"

    def process(self, leaf: Path, uuid: str = A, used_bytes: int | None = GIB, uid: str = POD) -> None:
        """A container's process is seen on a GPU at the next reading."""
        found = GpuProcess(
            pid=self.tree.pid(leaf),
            gpu_uuid=uuid,
            used_bytes=used_bytes,
            command="python",
            uid=uid,
            container_id=leaf.name,
            attributed=True,
        )
        others = (one for one in self._processes if (one.container_id, one.gpu_uuid) != (leaf.name, uuid))
        self._processes = (*others, found)

    def read_processes(self, asked: Sequence[str] = (A, B)) -> None:
        """A new reading of the process lists reaches the ledger."""
        self._change(processes=ProcessReading(processes=self._processes, asked=frozenset(asked)))
        self.state.change(sources={"processes": SourceStatus(read_s=self.now_s)})

    def tell_pods(self, *pods: PodSeen) -> None:
        """The API server tells of pods."""
        seen = PodsSeen(pods={pod.uid: pod for pod in pods}, synced_at_s=self.now_s, resource_version="1")
        self._change(pods=seen)
        names = {pod.cgroup_uid: (pod.namespace, pod.name) for pod in pods}
        self.state.change(ledger=replace(self.state.view.ledger, names=names))

    def look(self, *uids: str) -> str | None:
        """Look at some pods, or at everything, a second later."""
        self.now_s += 1.0
        return self.enforcing.look(self.now_s, uids or None)

    def limit(self, cgroup: Path, uuid: str = A) -> int | None:
        """The hard limit of a cgroup, in GiB."""
        hard_bytes = self.gpus.memory_limit(uuid, cgroup)[1]
        return None if hard_bytes is None else hard_bytes // GIB

    def holds(self, container: str = "main", uid: str = POD) -> Mapping[str, Hold]:
        """How a container stands on each GPU."""
        found = self.enforcing.found.enforcement.by_container()
        return {uuid: hold for (pod, name, uuid), hold in found.items() if (pod, name) == (uid, container)}

    def hold(self, container: str = "main", uid: str = POD) -> Hold:
        (hold,) = self.holds(container, uid).values()
        return hold

    def _change(self, **parts: object) -> None:
        ledger: Ledger = self.state.view.ledger
        evidence: Evidence = replace(ledger.evidence, **parts)  # type: ignore[arg-type]  # checked by the dataclass
        self.state.change(ledger=replace(ledger, evidence=evidence))


def ids(uuid: str, *replicas: int, gib: int = 20) -> tuple[str, ...]:
    """IDs of slices of a GPU."""
    return tuple(f"{uuid}::ts-{replica}-{gib * MIB_PER_GIB}" for replica in replicas)


class Crash(Exception):  # noqa: N818 - it is no error of ours
    """The agent is killed here."""


class CrashingLimits:
    """The driver's limits, and a power cut before the n-th change of one, if there is such a change."""

    def __init__(self, limits: MemoryLimits) -> None:
        self._limits = limits
        self.before_change: int | None = None
        self.changes = 0

    def limits(self, questions: Sequence[LimitQuestion], *, within_s: float | None = None) -> list[LimitAnswer]:
        answers = []
        for question in questions:
            if question.change is not None:
                if self.changes == self.before_change:
                    raise Crash
                self.changes += 1
            answers += self._limits.limits([question], within_s=within_s)
        return answers
