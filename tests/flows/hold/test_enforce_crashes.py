"""Whatever the order of events, and wherever the agent is killed: the next look ends in the same, right place.

Three things hold always: no container uses more than its slices promise once it was held, no reservation stays behind,
and nobody else's cgroup has a limit of ours.
"""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sharer.core.enforcer import MemoryLimits
from sharer.core.policy.model import MemoryPolicy
from sharer.core.quantities import GIB
from sharer.simulation.gpus import SimulatedGpus
from sharer.simulation.memory_limits import LimitBackend
from tests.flows.limited_node import GPUS, POD, A, B, Crash, CrashingLimits, LimitedNode, ids

GUARANTEE = MemoryPolicy(guarantee=True)
STRANGER = "0e1f8a3b-0000-4000-8000-0000000000ff"
BACKENDS = pytest.mark.parametrize("backend", [LimitBackend.DMEM, LimitBackend.MISC], ids=["dmem", "misc"])


class CrashingNode(LimitedNode):
    """A node whose agent can be killed before a change of a limit."""

    def __init__(self, folder: Path, backend: LimitBackend) -> None:
        super().__init__(folder, gpus=SimulatedGpus(GPUS, limit_backend=backend), limits=self._crashing)

    def _crashing(self, limits: MemoryLimits) -> MemoryLimits:
        self.power = CrashingLimits(limits)
        return self.power

    def look_until_killed(self, before_change: int | None) -> bool:
        """A look at everything. Returns whether the agent was killed in it; another one runs then."""
        self.power.before_change = None if before_change is None else self.power.changes + before_change
        try:
            self.look()
        except Crash:
            wanted = self.state.view.policy.policy
            assert wanted is not None
            self.start_agent()
            self.use(wanted)
            return True
        self.power.before_change = None
        return False

    def reserved(self, path: Path, uuid: str = A) -> int:
        return self.gpus.memory_limit(uuid, path)[0]

    def orphans(self) -> dict[str, int]:
        """What is reserved above containers and by none of them, by path and GPU, in GiB."""
        found = {}
        for uuid in (A, B):
            for above in (self.tree.kubepods, *self._below(self.tree.kubepods, 1), *self._below(self.tree.kubepods, 2)):
                below = sum(self.reserved(path, uuid) for path in self._below(above, 1))
                surplus = self.reserved(above, uuid) - below if self._below(above, 1) else 0
                if surplus:
                    found[f"{above} {uuid}"] = surplus // GIB
        return found

    def _below(self, path: Path, depth: int) -> list[Path]:
        folders = [one for one in path.iterdir() if one.is_dir()]
        return folders if depth == 1 else [deeper for one in folders for deeper in self._below(one, depth - 1)]


def steps(node: CrashingNode) -> None:
    """A pod with two containers on two GPUs, beside a stranger's."""
    node.use(GUARANTEE)
    node.give("main", *ids(A, 0), *ids(B, 0))
    node.give("side", *ids(A, 1))
    node.start_pod()
    node.start("main"), node.start("side")
    node.start_pod(STRANGER)
    node.start("main", STRANGER)


@BACKENDS
@pytest.mark.parametrize("before_change", range(6))
def test_a_crash_at_any_step_of_applying_is_cured_by_the_next_look(
    tmp_path: Path, backend: LimitBackend, before_change: int
) -> None:
    with contextlib.closing(CrashingNode(tmp_path, backend)) as node:
        steps(node)
        killed = node.look_until_killed(before_change)
        node.look()
        pod = node.tree.pod(POD)
        main, side = sorted(path for path in pod.iterdir() if path.is_dir())[1:]
        assert [node.limit(path) for path in (pod, main, side)] == [40, 20, 20]
        assert [node.limit(path, B) for path in (pod, main, side)] == [20, 20, None]
        assert (node.hold("side").by, {hold.by for hold in node.holds("main").values()}) == ("driver", {"driver"})
        assert {path for path in node.gpus.limited(A) if STRANGER in path} == set()
        assert node.reserved(main) == 20 * GIB
        assert node.orphans() == {} or backend is LimitBackend.MISC
        assert killed is (before_change < 5)  # applying takes as many changes: else this test would prove nothing


@BACKENDS
@pytest.mark.parametrize("before_change", range(6))
def test_a_crash_at_any_step_of_letting_go_is_cured_by_the_next_look(
    tmp_path: Path, backend: LimitBackend, before_change: int
) -> None:
    """A container ends with its reservation, and the pod after it."""
    with contextlib.closing(CrashingNode(tmp_path, backend)) as node:
        steps(node)
        node.look()
        pod = node.tree.pod(POD)
        main, side = sorted(path for path in pod.iterdir() if path.is_dir())[1:]
        node.tree.remove(main)
        node.look_until_killed(before_change)
        node.look()
        assert node.limit(side) == 20
        node.tree.remove(pod)
        node.look_until_killed(before_change)
        node.look()
        assert (node.gpus.limited(A), node.gpus.limited(B)) == ({}, {})


@pytest.mark.parametrize("before_change", range(6))
def test_limits_that_are_not_wanted_any_more_are_lifted_or_stay_and_are_never_half_trusted(
    tmp_path: Path, before_change: int
) -> None:
    """After a crash here nobody remembers whose the limits are: they stay, stricter than the policy asks."""
    with contextlib.closing(CrashingNode(tmp_path, LimitBackend.DMEM)) as node:
        steps(node)
        node.look()
        node.use(MemoryPolicy(enforce=("watch",)))
        node.look_until_killed(before_change)
        node.look()
        assert node.hold("side").by == "watch"
        assert set(node.gpus.limited(A)) <= {str(path) for path in node.tree.pod(POD).parent.rglob("*")} | {
            str(path) for path in (node.tree.kubepods, *node.tree.kubepods.iterdir())
        }


class Events(RuleBasedStateMachine):
    """Anything may happen on a node, in any order, with an agent that is killed at any change."""

    backend = LimitBackend.DMEM

    @initialize(guarantee=st.booleans())
    def begin(self, guarantee: bool) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="s-")
        self.node = CrashingNode(Path(self.folder.name), self.backend)
        self.node.use(MemoryPolicy(guarantee=guarantee))
        self.promised: dict[str, tuple[str, int]] = {}  # by pod: GPU and GiB
        self.leaves: dict[str, Path] = {}  # of each pod's container
        self.held: set[str] = set()  # pods whose container was held at the last look
        self.replica = 0

    def teardown(self) -> None:
        if hasattr(self, "node"):
            self.node.close()
            self.folder.cleanup()

    @precondition(lambda self: len(self.promised) < 6)
    @rule(uuid=st.sampled_from([A, B]), gib=st.integers(1, 12))
    def pod_comes(self, uuid: str, gib: int) -> None:
        uid = f"{POD[:-4]}{self.replica:04x}"
        self.replica += 1
        self.promised[uid] = (uuid, gib)
        self.node.give("main", *ids(uuid, self.replica, gib=gib), uid=uid)
        self.node.start_pod(uid)

    @precondition(lambda self: bool(set(self.promised) - set(self.leaves)))
    @rule(data=st.data())
    def container_starts(self, data: st.DataObject) -> None:
        uid = data.draw(st.sampled_from(sorted(set(self.promised) - set(self.leaves))))
        self.leaves[uid] = self.node.start("main", uid)

    @precondition(lambda self: self.leaves)
    @rule(data=st.data())
    def container_ends(self, data: st.DataObject) -> None:
        uid = data.draw(st.sampled_from(sorted(self.leaves)))
        self.node.tree.remove(self.leaves.pop(uid))
        self.held.discard(uid)

    @precondition(lambda self: self.promised)
    @rule(data=st.data())
    def pod_goes(self, data: st.DataObject) -> None:
        uid = data.draw(st.sampled_from(sorted(self.promised)))
        self.node.tree.remove(self.node.tree.pod(uid))  # its entry stays in the checkpoint
        del self.promised[uid]
        self.leaves.pop(uid, None)
        self.held.discard(uid)

    @rule()
    def stranger_comes(self) -> None:
        uid = f"{STRANGER[:-4]}{self.replica:04x}"
        self.replica += 1
        self.node.start_pod(uid)
        self.node.start("main", uid)

    @precondition(lambda self: self.leaves)
    @rule(data=st.data())
    def limit_is_lifted(self, data: st.DataObject) -> None:
        uid = data.draw(st.sampled_from(sorted(self.leaves)))
        leaf, uuid = self.leaves[uid], self.promised[uid][0]
        self.node.gpus.set_memory_limit(uuid, leaf, soft_bytes=self.node.reserved(leaf, uuid))
        self.held.discard(uid)

    @precondition(lambda self: self.leaves)
    @rule(data=st.data(), gib=st.integers(1, 20))
    def container_allocates(self, data: st.DataObject, gib: int) -> None:
        uid = data.draw(st.sampled_from(sorted(self.leaves)))
        uuid, promised = self.promised[uid]
        if uid in self.held:
            self.node.gpus.allocate(uuid, self.leaves[uid], gib * GIB)
            entry = self.node.gpus._limit_entries(uuid)[str(self.leaves[uid])]
            assert entry.used_bytes <= promised * GIB

    @rule(before_change=st.none() | st.integers(0, 10))
    def agent_looks(self, before_change: int | None) -> None:
        self.node.read_processes()
        if self.node.look_until_killed(before_change):
            return
        self.held = set(self.leaves)
        for uid, leaf in self.leaves.items():
            uuid, gib = self.promised[uid]
            assert self.node.limit(leaf, uuid) == gib
            assert self.node.hold("main", uid).by == "driver"
        for uid, (uuid, gib) in self.promised.items():
            assert self.node.limit(self.node.tree.pod(uid), uuid) == gib
        assert self.node.orphans() == {} or self.backend is LimitBackend.MISC

    @invariant()
    def strangers_have_no_limit(self) -> None:
        if hasattr(self, "node"):
            ours = {str(self.node.tree.pod(uid)) for uid in self.promised} | {
                str(leaf) for leaf in self.leaves.values()
            }
            above = {str(self.node.tree.kubepods / name) for name in ("", "burstable", "besteffort")}
            for uuid in (A, B):
                assert set(self.node.gpus.limited(uuid)) <= ours | above


class EventsOnMisc(Events):
    """The same on the driver's own backend."""

    backend = LimitBackend.MISC


_SEQUENCES = settings(
    max_examples=20, stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestEventsOnDmem = Events.TestCase
TestEventsOnDmem.settings = _SEQUENCES
TestEventsOnMisc = EventsOnMisc.TestCase
TestEventsOnMisc.settings = _SEQUENCES


@given(st.permutations(["give", "pod", "start", "look", "look", "end"]))
@settings(max_examples=25, deadline=None)
def test_events_that_come_in_any_order_end_in_the_same_place(order: list[str]) -> None:
    """No news can come too early or too late for a look."""
    with contextlib.ExitStack() as closing:
        folder = closing.enter_context(tempfile.TemporaryDirectory(prefix="s-"))
        node = closing.enter_context(contextlib.closing(CrashingNode(Path(folder), LimitBackend.DMEM)))
        main: Path | None = None
        is_there = False
        for event in order:
            match event:
                case "give":
                    node.give("main", *ids(A, 0))
                case "pod":
                    node.start_pod()
                    is_there = True
                case "start" if is_there:
                    main = node.start("main")
                case "end" if main is not None:
                    node.tree.remove(main)
                    main = None
                case "look":
                    node.look()
        node.look()
        assert node.limit(node.tree.pod(POD)) == 20
        assert main is None or node.limit(main) == 20
