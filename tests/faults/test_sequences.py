"""A few seeds, and that the rules they are judged by notice what they are there for."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
from collections.abc import Sequence as ListOf
from dataclasses import replace

import pytest

from sharer.cli.report.command import read_report
from sharer.core.errors import NodeError
from sharer.core.mps.compute_modes import EXCLUSIVE_PROCESS
from sharer.core.quantities import MIB
from sharer.simulation.cgroups import SANDBOX
from sharer.simulation.kubelet import ContainerSpec, ListedDevice, ListMessage, Stream
from sharer.simulation.memory_limits import LimitBackend
from tests.e2e.gpus import GPU, A, slices
from tests.faults.files import wrong_files
from tests.faults.history import wrong_moments
from tests.faults.limits import wrong_limits
from tests.faults.mps import MpsKind
from tests.faults.mps_truth import wrong_mps
from tests.faults.opening import open_world
from tests.faults.policies import CUTS, MPS, OTHER
from tests.faults.run import LOOK_S, run, run_many
from tests.faults.sequence import Sequence, sequence
from tests.faults.shrink import shrink
from tests.faults.steps import (
    DeletePod,
    EditPolicy,
    EndPod,
    ForceDeletePod,
    LiftLimits,
    ListTrouble,
    Place,
    RefuseWrites,
    RestartContainer,
    StartPod,
    TroubleList,
)
from tests.faults.truth import truth_of, wrong


def stream(number: int, resource: str, *lists: tuple[float, ListOf[str]], ended_at_s: float | None = None) -> Stream:
    """A stream whose lists name healthy IDs."""
    messages = [
        ListMessage(at_s=at_s, size_bytes=0, devices=tuple(ListedDevice(one, "Healthy", ()) for one in ids))
        for at_s, ids in lists
    ]
    return Stream(
        number=number,
        resource=resource,
        endpoint="s",
        opened_at_s=0.0,
        messages=tuple(messages),
        ended_at_s=ended_at_s,
    )


def test_whatever_happens_to_a_node_the_agent_s_ledger_is_the_kubelet_s_truth() -> None:
    """As `python -m tests faults`, with fewer seeds and shorter ones."""
    failed = [one for one in run_many(range(1000, 1004), bursts=4, jobs=4) if one.problem is not None]
    assert not failed, "\n".join(line for one in failed for line in (*one.lines, one.problem or ""))


def test_an_id_that_was_withdrawn_late_is_listed_under_another_name_no_sooner_for_it() -> None:
    """Found by seed 106: a `List` that hangs keeps the agent from showing what it has decided, for 2 s each time."""
    [renamed] = [cut for cut in CUTS if cut.name == "renamed, patience 10m"]
    burst = (
        TroubleList((ListTrouble.HANGS,) * 2),
        StartPod("p1", (ContainerSpec(limits={GPU: 1}),)),
        EditPolicy(renamed),
    )
    outcome = run(Sequence(seed=0, with_api=False, waits_for_drops=False, bursts=(burst,)))
    assert outcome.problem is None, outcome.problem


@pytest.mark.parametrize("seed", range(20))
def test_a_seed_always_means_the_same_and_fewer_steps_are_its_beginning(seed: int) -> None:
    assert sequence(seed) == sequence(seed)
    assert sequence(seed, 5).bursts == sequence(seed).bursts[:5]


def test_of_a_sequence_the_steps_that_are_left_stay_in_their_order_and_an_empty_burst_goes() -> None:
    whole = sequence(7)
    steps = [step for burst in whole.bursts for step in burst]
    left = whole.only({1, 3, whole.steps})
    assert [step for burst in left.bursts for step in burst] == [steps[0], steps[2], steps[-1]]
    assert all(left.bursts)
    assert replace(left, bursts=whole.bursts) == whole


@pytest.mark.parametrize("guilty", [{1}, {40}, {3, 17}, {1, 2, 39, 40}, {5, 6, 7, 8, 30}])
def test_only_the_steps_without_which_it_would_pass_are_left(guilty: set[int]) -> None:
    tried = []

    def fails(kept: frozenset[int]) -> bool:
        tried.append(kept)
        return guilty <= kept

    assert shrink(40, fails) == guilty
    assert len(tried) < 120


def test_a_step_about_a_pod_that_never_came_is_left_out() -> None:
    """As happens in a shrunk sequence."""
    with open_world(3, with_api=False) as world:
        for step in (EndPod("p"), DeletePod("p"), ForceDeletePod("p"), RestartContainer("p"), LiftLimits("p")):
            world.do(step)


def test_a_report_that_is_older_than_a_pod_is_not_the_truth() -> None:
    with open_world(1, with_api=False) as world:
        world.start()
        world.node.wait_listed(8)
        until_s = time.monotonic() + world.lag_s()
        while wrong(world, before := read_report(world.node.run_dir)):
            assert time.monotonic() < until_s
        world.node.kubelet.start_pod("train", {GPU: 1})
        assert any("belongs to train/main" in sentence for sentence in wrong(world, before))


@pytest.mark.parametrize("backend", [LimitBackend.DMEM, LimitBackend.MISC], ids=["dmem", "misc"])
def test_a_limit_that_is_not_as_it_must_be_is_noticed(backend: LimitBackend) -> None:
    """What was lifted, what is on a stranger, what is reserved for nobody."""
    with open_world(2, with_api=False, backend=backend) as world:
        world.start()
        world.node.wait_listed(8)
        pod = world.node.kubelet.start_pod("train", {GPU: 1})
        world.node.kubelet.start_pod("stranger", {})
        uuid = pod.ids(GPU)[0].partition("::")[0]
        leaf, sandbox = world.node.cgroup_of(pod.uid, "main"), world.node.cgroup_of(pod.uid, SANDBOX)
        until_s = time.monotonic() + world.lag_s()
        while list(wrong_limits(world, truth_of(world.node.kubelet).in_file)) or not leaf.exists():
            assert time.monotonic() < until_s
            threading.Event().wait(LOOK_S)
        in_file = truth_of(world.node.kubelet).in_file
        assert world.agent is not None
        world.agent.kill()
        assert list(wrong_limits(world, in_file)) == []
        world.do(LiftLimits("train"))
        world.node.gpus.set_memory_limit(uuid, sandbox, soft_bytes=MIB, hard_bytes=MIB)
        found = list(wrong_limits(world, in_file))
        assert any("train/main is limited to None on" in line for line in found)
        assert any(f"{sandbox} belongs to nobody with slices, and has a limit" in line for line in found)
        shutil.rmtree(sandbox)
        orphans = [line for line in wrong_limits(world, in_file) if "reserved, and those below it" in line]
        assert bool(orphans) is (backend is LimitBackend.DMEM)


def test_what_a_supervisor_or_its_daemon_does_wrong_is_noticed() -> None:
    """Slices that nobody serves, a mode that is nobody's, another daemon without a reason, one that serves nobody."""
    with open_world(3, with_api=False, mps=MpsKind.V3) as world:
        assert world.mps is not None
        world.start()
        until_s = time.monotonic() + world.lag_s()
        while True:
            world.look()
            with contextlib.suppress(NodeError):
                rows = read_report(world.node.run_dir).slices
                if any(row.resource == MPS and row.healthy for row in rows) and not list(wrong_mps(world, rows)):
                    break
            assert time.monotonic() < until_s
            threading.Event().wait(LOOK_S)
        world.node.gpus.set_compute_mode(A.uuid, EXCLUSIVE_PROCESS)
        sick = [replace(row, healthy=False, reason="so") for row in rows]
        world.mps.up_since_s = time.monotonic() - 60
        found = list(wrong_mps(world, sick))
        assert any(f"{A.uuid} is shared by time, and in compute mode 3" in line for line in found)
        assert any("is Unhealthy, and its daemon is up for 60 s: so" in line for line in found)
        world.mps.up_since_s, world.mps.down_since_s = None, time.monotonic() - 60
        world.mps.unnoticed_s = time.monotonic()
        found = list(wrong_mps(world, rows))
        assert any("nobody serves them for 60 s" in line for line in found)
        assert any("were not Unhealthy since the MPS daemon failed" in line for line in found)
        world.mps.kept_pid = os.getpid()
        with pytest.raises(AssertionError, match="nothing happened to it, and now it is"):
            world.look()


def test_a_file_of_the_agent_s_that_is_not_as_it_must_be_is_noticed() -> None:
    """A policy and a spec that were not written: while they cannot be, that must be told, and later they must be."""
    with open_world(4, with_api=False, with_cdi=True) as world:
        world.start()
        world.node.wait_listed(8)
        until_s = time.monotonic() + world.lag_s()
        while list(wrong_files(world, report := read_report(world.node.run_dir))):
            assert time.monotonic() < until_s
            threading.Event().wait(LOOK_S)
        assert world.agent is not None
        world.agent.kill()
        (world.node.run_dir / "policy-last-good.yaml").unlink()
        for spec in world.node.run_cdi.iterdir():
            spec.unlink()
        found = "\n".join(wrong_files(world, report))
        assert "what is kept is nothing" in found
        assert "are listed, and no CDI spec has them" in found
        for place in (Place.RUN, Place.CDI):
            world.do(RefuseWrites(place, refused=True))
        found = "\n".join(wrong_files(world, report))
        assert "is not kept, and nobody says so" in found
        assert "no CDI spec has them, and nobody says so" in found


def test_more_memory_listed_than_a_gpu_has_is_noticed_at_the_moment_it_is_so() -> None:
    both = [stream(0, GPU, (1.0, slices(A, 4, 20480)), (2.0, [*slices(A, 2, 40960), *slices(A, 1, 20480)]))]
    assert list(wrong_moments(both)) == [f"at 2.00: 102400 MiB of {A.uuid} listed Healthy, and it has 81920"]


def test_an_id_under_two_names_is_noticed_unless_the_one_stream_has_ended_before_the_other_began() -> None:
    one, other = slices(A, 1, 20480), (2.0, slices(A, 1, 20480))
    assert "Healthy under two resources" in next(wrong_moments([stream(0, GPU, (1.0, one)), stream(1, OTHER, other)]))
    assert not list(wrong_moments([stream(0, GPU, (1.0, one), ended_at_s=1.5), stream(1, OTHER, other)]))
