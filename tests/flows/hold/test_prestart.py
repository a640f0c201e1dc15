"""Where the policy requires it, no container starts before its pod's limit is in force, and the refusal says why."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from sharer.core.errors import RequestError
from sharer.core.policy.enforcers import WATCHING
from sharer.core.policy.model import MemoryPolicy
from sharer.core.quantities import GIB
from sharer.flows.hold.prestart import PreStart
from tests.flows.limited_node import POD, SHARED, A, B, LimitedNode, ids

OTHER = "0e1f8a3b-0000-4000-8000-00000000000b"
REQUIRED = MemoryPolicy(required=True)


@pytest.fixture
def node(node: LimitedNode) -> LimitedNode:
    node.use(REQUIRED)
    return node


@pytest.fixture
def quick(quick: LimitedNode) -> LimitedNode:
    quick.use(REQUIRED)
    return quick


def test_the_pods_limit_is_in_force_when_the_kubelet_is_told_to_start(node: LimitedNode) -> None:
    node.give("main", *ids(A, 0))
    node.give("side", *ids(A, 1), *ids(B, 0))
    pod = node.start_pod()
    node.pre_start(SHARED, ids(A, 0))
    assert (node.limit(pod, A), node.limit(pod, B)) == (40, 20)


def test_asking_twice_is_asking_once(node: LimitedNode) -> None:
    node.give("main", *ids(A, 0))
    node.start_pod()
    calls = []
    for _ in range(3):
        node.pre_start(SHARED, ids(A, 0))
        calls.append(node.gpus.calls("nvmlDeviceSetMemoryLimits_v1"))
    assert len(set(calls)) == 1


def test_two_containers_with_the_same_ids_need_not_be_told_apart(quick: LimitedNode) -> None:
    """An init container's slices go on to an app container (runtime-facts 56)."""
    quick.give("load", *ids(A, 0))
    quick.give("main", *ids(A, 0))
    pod = quick.start_pod()
    quick.pre_start(SHARED, ids(A, 0))
    assert quick.limit(pod) == 20


def test_a_pod_that_was_deleted_by_force_and_its_successor_are_both_held(quick: LimitedNode) -> None:
    quick.give("main", *ids(A, 0))
    quick.give("main", *ids(A, 0), uid=OTHER)
    pod, other = quick.start_pod(), quick.start_pod(OTHER)
    quick.pre_start(SHARED, ids(A, 0))
    assert (quick.limit(pod), quick.limit(other)) == (20, 20)


def test_a_stale_entry_of_a_pod_that_is_gone_is_passed_over(quick: LimitedNode) -> None:
    quick.give("main", *ids(A, 0), uid=OTHER)
    quick.give("main", *ids(A, 0))
    pod = quick.start_pod()
    quick.pre_start(SHARED, ids(A, 0))
    assert quick.limit(pod) == 20


def test_ids_in_any_order_are_the_same_ids(quick: LimitedNode) -> None:
    quick.give("main", *ids(A, 0, 1))
    pod = quick.start_pod()
    quick.pre_start(SHARED, tuple(reversed(ids(A, 0, 1))))
    assert quick.limit(pod) == 40


def refusal(node: LimitedNode) -> str:
    with pytest.raises(RequestError) as refused:
        node.pre_start(SHARED, ids(A, 0))
    text = str(refused.value)
    assert text.startswith(
        f"the memory limit that the policy requires for {SHARED} is not in force before the container starts: "
    )
    assert "The kubelet tries again" in text
    return text


def test_a_pod_that_nobody_knows_is_not_started(quick: LimitedNode) -> None:
    assert "no pod that holds" in refusal(quick)
    quick.give("main", *ids(A, 0))
    assert "no pod that holds" in refusal(quick)  # it has no cgroup


def test_a_checkpoint_that_cannot_be_read_delays_the_start(quick: LimitedNode) -> None:
    quick.checkpoint.problem = "the kubelet's checkpoint is damaged"
    assert "the kubelet's checkpoint is damaged" in refusal(quick)


def test_a_limit_that_is_refused_delays_the_start_with_the_drivers_reason(node: LimitedNode) -> None:
    node.give("main", *ids(A, 0))
    node.start_pod()
    fault = node.gpus.fail("nvmlDeviceSetMemoryLimits_v1", 4)
    assert "the driver lets only root set limits" in refusal(node)
    node.gpus.clear(fault)
    node.pre_start(SHARED, ids(A, 0))


def test_a_limit_that_was_set_and_is_not_read_back_delays_the_start(quick: LimitedNode) -> None:
    quick.give("main", *ids(A, 0))
    quick.start_pod()
    quick.gpus.fail("nvmlDeviceGetMemoryLimits_v1", 15)
    assert "fallen off the bus" in refusal(quick)


def test_without_a_means_the_start_waits(quick: LimitedNode) -> None:
    quick.give("main", *ids(A, 0))
    quick.start_pod()
    quick.state.change(enforcers={A: {"driver": "it is gone", **dict.fromkeys(WATCHING)}})
    assert f"nothing can hold a container to its memory on {A}: driver: it is gone" in refusal(quick)


def test_a_gpu_without_the_requirement_delays_nothing(quick: LimitedNode) -> None:
    quick.use(MemoryPolicy())
    quick.give("main", *ids(A, 0))
    pod = quick.start_pod()
    quick.gpus.fail("nvmlDeviceSetMemoryLimits_v1", 4)
    quick.pre_start(SHARED, ids(A, 0))
    assert quick.limit(pod) is None


def test_a_driver_that_hangs_is_given_up_in_time(quick: LimitedNode) -> None:
    quick.give("main", *ids(A, 0))
    quick.start_pod()
    impatient = PreStart(quick.state, quick.enforcers, quick.cgroups, quick.checkpoint, within_s=2.0)
    fault = quick.gpus.hang("nvmlDeviceSetMemoryLimits_v1")
    begun_s = time.monotonic()
    with pytest.raises(RequestError, match=r"NVML did not answer within [\d.]+ s"):
        impatient(SHARED, ids(A, 0))
    assert time.monotonic() - begun_s < 10.0  # the driver's own deadline for a call
    quick.gpus.clear(fault)
    quick.pre_start(SHARED, ids(A, 0))


def test_many_starts_at_once_are_all_answered(quick: LimitedNode) -> None:
    uids = [f"{POD[:-2]}{number:02x}" for number in range(16)]
    for number, uid in enumerate(uids):
        quick.give("main", *ids(A, number, gib=1), uid=uid)
        quick.start_pod(uid)
    patient = PreStart(quick.state, quick.enforcers, quick.cgroups, quick.checkpoint, within_s=30.0)
    with ThreadPoolExecutor(16) as pool:
        starts = [pool.submit(patient, SHARED, ids(A, number, gib=1)) for number in range(16)]
    assert [start.result() for start in starts] == [None] * 16
    assert [quick.limit(quick.tree.pod(uid)) for uid in uids] == [1] * 16


def test_what_the_container_uses_later_is_not_asked(quick: LimitedNode) -> None:
    """An old pod above its promise must be able to start its next container: its limit is in force all the same."""
    quick.give("main", *ids(A, 0))
    pod = quick.start_pod()
    leaf = quick.start("main")
    assert quick.gpus.allocate(A, leaf, 50 * GIB)
    quick.pre_start(SHARED, ids(A, 0))
    assert quick.limit(pod) == 20
