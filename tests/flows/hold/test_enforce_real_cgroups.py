"""The same on real cgroups with real processes: PID, cgroup, container and limit, from one end to the other."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sharer.adapters.cgroups import CgroupTree
from sharer.adapters.nvml import NvmlDriver
from sharer.adapters.processes import ProcFs
from sharer.adapters.watch import DirectoryWatch
from sharer.core.change.rollout import PolicyInForce
from sharer.core.enforcer import Reach
from sharer.core.holders.evidence import CheckpointEntry, SourceStatus
from sharer.core.policy.model import MemoryPolicy
from sharer.core.quantities import GIB
from sharer.enforcers import make_enforcers
from sharer.flows.hold.enforce import Enforcing
from sharer.flows.hold.prestart import PreStart
from sharer.flows.holders.attribute import attribute
from sharer.flows.look.availability import AvailabilityCheck
from sharer.flows.state import NodeState
from sharer.simulation.gpus import SimulatedGpus
from sharer.simulation.hardware import SimulatedProcess
from sharer.simulation.memory_limits import LimitBackend
from tests.core.builders import policy, rule
from tests.fakes.real_cgroups import RealCgroups, open_real_cgroups
from tests.flows.limited_node import FOUR, GPUS, POD, SHARED, A, B, GivenCheckpoint, ids

SANDBOX, MAIN, SIDE = "a" * 64, "b" * 64, "c" * 64
GIVE_UP_S = 30.0


class RealNode:
    """An agent's enforcing thread on real cgroups, with simulated GPUs that have the driver's own backend."""

    def __init__(self, tree: RealCgroups, watch: DirectoryWatch) -> None:
        self.tree = tree
        self.gpus = SimulatedGpus(GPUS, limit_backend=LimitBackend.MISC)
        self.driver = NvmlDriver(self.gpus.library)
        self.checkpoint = GivenCheckpoint()
        cgroups = CgroupTree(tree.root, Path("/proc"), watch)
        enforcers = make_enforcers(Reach(limits=self.driver, cgroups=cgroups))
        self.state = NodeState()
        self.state.change(
            inventory=self.driver.discover(),
            policy=PolicyInForce(policy=policy(rule(FOUR, memory=MemoryPolicy(required=True)))),
        )
        self.check = AvailabilityCheck(enforcers)
        self.check(self.state, 0.0)
        self.enforcing = Enforcing(self.state, enforcers, cgroups, self.checkpoint)
        self.pre_start = PreStart(self.state, enforcers, cgroups, self.checkpoint)
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.enforcing.run, args=(self.stop,))

    def give(self, container: str, *device_ids: str) -> None:
        entry = CheckpointEntry(uid=POD, container=container, resource=SHARED, ids=device_ids)
        self.checkpoint.entries = (*self.checkpoint.entries, entry)

    def read_processes(self) -> None:
        found = attribute(self.driver, ProcFs(Path("/proc")), [POD])
        ledger = self.state.view.ledger
        evidence = replace(ledger.evidence, processes=found.reading)
        self.state.change(
            ledger=replace(ledger, evidence=evidence), sources={"processes": SourceStatus(read_s=time.monotonic())}
        )

    def close(self) -> None:
        self.stop.set()
        self.enforcing.wake("")
        if self.thread.ident is not None:
            self.thread.join()
        self.driver.close()

    def wait_for(self, holds: Callable[[], bool], what: str) -> float:
        """Wait until something is so, and return how long it took, in seconds."""
        begun_s, wait = time.monotonic(), threading.Event()
        while not holds():
            assert time.monotonic() - begun_s < GIVE_UP_S, what
            wait.wait(0.0005)
        return time.monotonic() - begun_s

    def limit(self, cgroup: Path, uuid: str = A) -> int | None:
        hard_bytes = self.gpus.memory_limit(uuid, cgroup)[1]
        return None if hard_bytes is None else hard_bytes // GIB


@pytest.fixture
def node() -> Iterator[RealNode]:
    with contextlib.ExitStack() as closing:
        try:
            tree = closing.enter_context(open_real_cgroups())
        except OSError as error:
            pytest.skip(str(error))
        watch = closing.enter_context(contextlib.closing(DirectoryWatch()))
        yield closing.enter_context(contextlib.closing(RealNode(tree, watch)))


def test_a_limit_can_be_tried_beside_the_pods(node: RealNode) -> None:
    assert node.state.view.enforcers[A]["driver"] is None
    assert not (node.tree.kubepods / "sharer-check").exists()


def test_processes_are_attributed_to_containers_and_containers_are_held(node: RealNode) -> None:
    node.give("main", *ids(A, 0))
    node.give("side", *ids(B, 0, gib=10))
    pod = node.tree.add_pod(POD)
    node.tree.add_container(POD, SANDBOX)
    main = node.tree.add_container(POD, MAIN, "main")
    side = node.tree.add_container(POD, SIDE, "side", inner="container")
    node.gpus.put(replace(GPUS[0], processes=(SimulatedProcess(pid=node.tree.pid(main), used_bytes=3 * GIB),)))
    node.gpus.put(
        replace(GPUS[1], processes=(SimulatedProcess(pid=node.tree.pid(side / "container"), used_bytes=11 * GIB),))
    )
    node.read_processes()
    node.enforcing.look(time.monotonic())
    assert [node.limit(path) for path in (pod, main, side)] == [20, 20, None]
    assert [node.limit(path, B) for path in (pod, main, side, side / "container")] == [10, None, 10, 10]
    holds = node.enforcing.found.enforcement.by_container()
    assert holds[POD, "main", A].by == "driver"
    assert holds[POD, "side", B].reason == "driver: it uses more than the 10 GiB it was promised"
    assert [excess.key[0][1] for excess in node.enforcing.found.excesses] == ["side"]


def test_a_pods_limit_is_there_before_the_start_and_a_containers_soon_after_its_cgroup(node: RealNode) -> None:
    """The thread, inotify and all: within 100 ms (measured apart, in tests/bench), here only that it comes."""
    node.thread.start()
    node.give("main", *ids(A, 0))
    pod = node.tree.add_pod(POD)
    node.tree.add_container(POD, SANDBOX)
    node.pre_start(SHARED, ids(A, 0))
    assert node.limit(pod) == 20
    leaf = node.tree.add_container(POD, MAIN, "main")
    node.wait_for(lambda: node.limit(leaf) == 20, "the container's limit")
    node.tree.remove(leaf)
    again = node.tree.add_container(POD, "d" * 64, "main")
    node.wait_for(lambda: node.limit(again) == 20, "the limit after a restart")
    node.read_processes()
    node.enforcing.wake(POD)
    node.wait_for(lambda: node.enforcing.found.enforcement.by_container()[POD, "main", A].by == "driver", "the verdict")


def test_a_process_that_comes_late_names_its_container(node: RealNode) -> None:
    """At the cgroup's mkdir nobody is in it (runtime-facts 33)."""
    node.thread.start()
    node.give("main", *ids(A, 0))
    pod = node.tree.add_pod(POD)
    leaf = pod / MAIN
    leaf.mkdir()
    node.wait_for(lambda: node.limit(pod) == 20, "the pod's limit")
    assert node.limit(leaf) is None
    node.tree.start_process(leaf, POD, "main")
    node.wait_for(lambda: node.limit(leaf) == 20, "the container's limit")


def test_a_container_that_ended_is_forgotten(node: RealNode) -> None:
    node.give("main", *ids(A, 0))
    node.tree.add_pod(POD)
    leaf = node.tree.add_container(POD, MAIN, "main")
    node.enforcing.look(time.monotonic())
    node.tree.remove(leaf)
    node.enforcing.look(time.monotonic())
    assert {key[0][1:] for key in node.enforcing.found.enforcement.holds} == {(None, None), ("main", None)}
