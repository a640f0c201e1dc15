"""What can hold containers is tried when GPUs change and now and then, and told once."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sharer.core.edits import DeviceFacts, Injection, NodeFacts
from sharer.core.policy.model import MemoryPolicy
from sharer.flows.look.availability import RECHECK_S, RETRY_S, AvailabilityCheck
from sharer.flows.state import NodeState
from sharer.simulation.gpus import SimulatedGpus
from sharer.simulation.memory_limits import LimitBackend
from tests.flows.limited_node import GPUS, A, B, LimitedNode

CHECKS = "nvmlDeviceSetMemoryLimits_v1"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[LimitedNode]:
    gpus = SimulatedGpus(GPUS, limit_backend=LimitBackend.DMEM)
    with contextlib.closing(LimitedNode(tmp_path / "node", gpus=gpus)) as made:
        yield made


def test_nothing_is_tried_before_the_gpus_are_known(node: LimitedNode) -> None:
    assert AvailabilityCheck(node.enforcers)(NodeState(), 0.0) is None


def test_what_was_found_is_told_once_for_what_the_policy_wishes(node: LimitedNode) -> None:
    check = AvailabilityCheck(node.enforcers)
    node.state.change(enforcers={})
    assert check(node.state, 0.0) == "driver can hold limits on every GPU"
    assert check(node.state, 1.0) is None
    node.gpus.fail(CHECKS, 4, uuid=B)
    said = check(node.state, RECHECK_S)
    assert said is not None
    assert said.startswith(f"driver cannot hold limits on {B}: the driver lets only root set limits")


def test_a_check_leaves_no_limit_and_no_cgroup_behind(node: LimitedNode) -> None:
    assert node.gpus.limited(A) == {}
    left = {path.name for path in node.tree.kubepods.iterdir() if path.is_dir()}
    assert left == {"burstable", "besteffort"}


def test_it_is_not_tried_again_while_nothing_changes_for_some_minutes(node: LimitedNode) -> None:
    before = node.gpus.calls(CHECKS)
    node.check(node.state, node.now_s + RECHECK_S - 1.0)
    assert node.gpus.calls(CHECKS) == before
    node.check(node.state, node.now_s + RECHECK_S)
    assert node.gpus.calls(CHECKS) == before + 4  # set and lifted, on two GPUs


def test_a_driver_that_failed_once_is_tried_again_soon(node: LimitedNode) -> None:
    """Found by chance: a timeout at the agent's start left containers without a limit for ten minutes."""
    node.gpus.fail(CHECKS, 10, uuid=A, times=1)
    node.gpus.set_driver_version("615.10")
    node.refresh()
    assert node.state.view.enforcers[A]["driver"] is not None
    node.check(node.state, node.now_s + RETRY_S)
    assert node.state.view.enforcers[A]["driver"] is None


def test_what_cannot_be_had_is_looked_for_ever_more_rarely(node: LimitedNode) -> None:
    """As on a driver that is too old, for ever."""
    node.gpus.fail(CHECKS, 13)
    node.gpus.set_driver_version("610.1")
    node.refresh()
    before = node.gpus.calls(CHECKS)
    for second in range(1, 600):
        node.check(node.state, node.now_s + second)
    checks = (node.gpus.calls(CHECKS) - before) // len(GPUS)
    assert 3 <= checks <= 6
    before = node.gpus.calls(CHECKS)
    for second in range(600, 2400, 10):
        node.check(node.state, node.now_s + second)
    assert (node.gpus.calls(CHECKS) - before) // len(GPUS) <= 4


def test_a_driver_that_was_replaced_is_tried_at_once(node: LimitedNode) -> None:
    node.gpus.fail(CHECKS, 4, uuid=B)
    node.gpus.set_driver_version("615.10")
    node.refresh()
    assert node.state.view.enforcers[A]["driver"] is None
    assert "only root" in (node.state.view.enforcers[B]["driver"] or "")


def test_a_driver_that_hangs_cannot_hold_anything_and_delays_nobody_for_long(tmp_path: Path) -> None:
    gpus = SimulatedGpus(GPUS[:1], limit_backend=LimitBackend.DMEM)
    with contextlib.closing(LimitedNode(tmp_path / "node", gpus=gpus)) as node:
        fault = gpus.hang("nvmlDeviceGetMemoryLimits_v1")
        gpus.set_driver_version("615.10")
        node.refresh()
        reason = node.state.view.enforcers[A]["driver"]
        assert reason is not None
        assert "NVML did not answer within 2 s" in reason
        gpus.clear(fault)


def test_allocate_hears_which_gpus_the_driver_is_to_hold(node: LimitedNode) -> None:
    facts = NodeFacts(injection=(Injection.CDI,), devices={A: DeviceFacts(), B: DeviceFacts()})
    node.state.change(facts=facts)
    node.check(node.state, node.now_s)
    marked = node.state.view.facts
    assert marked is not None
    assert [device.driver_limit for device in marked.devices.values()] == [True, True]
    node.check(node.state, node.now_s)
    assert node.state.view.facts is marked
    node.use(MemoryPolicy(enforce=("watch",)))
    assert node.state.view.facts == facts


def test_a_gpu_that_changes_its_mode_is_tried_anew(node: LimitedNode) -> None:
    """P18: MIG mode switched on while the agent runs."""
    assert node.state.view.enforcers[A]["driver"] is None
    node.gpus.put(replace(GPUS[0], mig_enabled=True))
    node.refresh()
    assert node.state.view.enforcers[A]["driver"] == "the GPU is in MIG mode, in which the driver takes no limits"
