"""A few seeds, and that the rules they are judged by notice what they are there for."""

from __future__ import annotations

import time
from collections.abc import Sequence as ListOf

import pytest
from dataclasses import replace

from sharer.cli.report import read_report
from sharer.simulation.kubelet import ContainerSpec, ListedDevice, ListMessage, Stream
from tests.e2e.gpus import GPU, A, slices
from tests.faults.history import wrong_moments
from tests.faults.policies import CUTS, OTHER
from tests.faults.run import run, run_many
from tests.faults.sequence import Sequence, sequence
from tests.faults.steps import EditPolicy, ListTrouble, StartPod, TroubleList
from tests.faults.truth import wrong
from tests.faults.world import open_world


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


def test_a_report_that_is_older_than_a_pod_is_not_the_truth() -> None:
    with open_world(1, with_api=False) as world:
        world.start()
        world.node.wait_listed(8)
        until_s = time.monotonic() + world.lag_s()
        while wrong(world, before := read_report(world.node.run_dir)):
            assert time.monotonic() < until_s
        world.node.kubelet.start_pod("train", {GPU: 1})
        assert any("belongs to train/main" in sentence for sentence in wrong(world, before))


def test_more_memory_listed_than_a_gpu_has_is_noticed_at_the_moment_it_is_so() -> None:
    both = [stream(0, GPU, (1.0, slices(A, 4, 20480)), (2.0, [*slices(A, 2, 40960), *slices(A, 1, 20480)]))]
    assert list(wrong_moments(both)) == [f"at 2.00: 102400 MiB of {A.uuid} listed Healthy, and it has 81920"]


def test_an_id_under_two_names_is_noticed_unless_the_one_stream_has_ended_before_the_other_began() -> None:
    one, other = slices(A, 1, 20480), (2.0, slices(A, 1, 20480))
    assert "Healthy under two resources" in next(wrong_moments([stream(0, GPU, (1.0, one)), stream(1, OTHER, other)]))
    assert not list(wrong_moments([stream(0, GPU, (1.0, one), ended_at_s=1.5), stream(1, OTHER, other)]))
