"""The agent as a process holds containers to their promise, and says from when on they were held."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from sharer.core.quantities import GIB
from sharer.kubeletapi import deviceplugin_pb2 as api
from sharer.simulation.kubelet import ContainerState, PodStatus
from sharer.simulation.memory_limits import LimitBackend
from tests.e2e.gpus import GPU, A, B, policy, shared
from tests.e2e.node import Node, open_node
from tests.e2e.process import PATIENCE_S, quickest_s

SET = "nvmlDeviceSetMemoryLimits_v1"
REQUIRED = policy(shared(4, "memory: {required: true}"))


@pytest.fixture(params=[LimitBackend.DMEM, LimitBackend.MISC], ids=["dmem", "misc"])
def node(request: pytest.FixtureRequest) -> Iterator[Node]:
    with open_node(A, B, limit_backend=request.param) as made:
        made.kubelet.start()
        yield made


def cgroup(node: Node, pod: PodStatus, container: str | None = None) -> Path:
    path = node.root / "sys/fs/cgroup"
    if container is None:
        return path / f"kubepods/burstable/pod{pod.uid}"
    return path / node.cgroups.path(pod.uid, container).lstrip("/")


def limit(node: Node, pod: PodStatus, container: str | None = None) -> int | None:
    """Of the GPU that the pod's only container holds a slice of, in GiB."""
    uuid = pod.ids(GPU)[0].partition("::")[0]
    hard_bytes = node.gpus.memory_limit(uuid, cgroup(node, pod, container))[1]
    return None if hard_bytes is None else hard_bytes // GIB


def wait(holds: Callable[[], bool], what: str) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end_s, what
        threading.Event().wait(0.005)


def test_a_pod_and_its_container_are_held_from_soon_after_their_start(node: Node) -> None:
    """Threat 4."""
    agent = node.start_agent()
    node.wait_listed(8)
    pod = node.kubelet.start_pod("train", {GPU: 1})
    wait(lambda: limit(node, pod, "main") == 20, "the container's limit")
    assert limit(node, pod) == 20
    agent.wait_log("is held by driver")
    assert agent.said("(main) on")
    registrations = len(node.kubelet.register_calls(GPU))
    node.gpus.set_memory_limit(pod.ids(GPU)[0].partition("::")[0], cgroup(node, pod, "main"))
    wait(lambda: limit(node, pod, "main") == 20, "the limit after somebody has lifted it")
    assert len(node.kubelet.register_calls(GPU)) == registrations


def test_without_an_agent_limits_stay_and_the_next_agent_finds_them(node: Node) -> None:
    agent = node.start_agent()
    node.wait_listed(8)
    pod = node.kubelet.start_pod("train", {GPU: 1})
    wait(lambda: limit(node, pod, "main") == 20, "the container's limit")
    agent.kill()
    sets = node.gpus.calls(SET)
    again = node.start_agent()
    again.wait_log("is held by driver")
    assert (limit(node, pod), limit(node, pod, "main")) == (20, 20)
    assert node.gpus.calls(SET) - sets == 4  # the check alone: set and lifted, on two GPUs


def test_where_a_limit_is_required_no_container_starts_before_its_pods_is_in_force(node: Node) -> None:
    node.write_policy(REQUIRED)
    node.start_agent()
    node.wait_listed(8)
    fault = node.gpus.fail(SET, 4)
    pod = node.kubelet.start_pod("train", {GPU: 1})
    waiting = pod.container()
    assert (waiting.state, waiting.reason) == (ContainerState.WAITING, "CreateContainerConfigError")
    wait(lambda: cgroup(node, pod).exists(), "the pod's cgroup")
    refused = node.kubelet.sync_pod("train").container()
    assert "the driver lets only root set limits" in refused.message
    assert "memory.required: false" in refused.message
    node.gpus.clear(fault)
    assert node.kubelet.sync_pod("train").container().state is ContainerState.RUNNING
    assert limit(node, pod) == 20
    wait(lambda: limit(node, pod, "main") == 20, "the container's limit")


def test_a_start_that_is_asked_for_again_and_at_once_with_whatever_ids_disturbs_no_holder(node: Node) -> None:
    """Contract row 39, pitfall 39: PreStartContainer is idempotent, fast, and refuses what nobody holds by name."""
    node.write_policy(REQUIRED)
    node.start_agent()
    node.wait_listed(8)
    pods = [node.kubelet.start_pod(name, {GPU: 1}) for name in ("train", "other")]
    wait(lambda: [limit(node, pod, "main") for pod in pods] == [20, 20], "the containers' limits")
    wanted = [*[list(pod.ids(GPU)) for pod in pods] * 8, *[["unknown"], [f"{A.uuid}::ts-9-20480"]] * 2]
    with node.plugin() as plugin:

        def start(ids: list[str]) -> None:
            plugin.stub.PreStartContainer(api.PreStartContainerRequest(devices_ids=ids), timeout=30)

        with ThreadPoolExecutor(16) as pool:
            answers = [pool.submit(start, ids) for ids in wanted]
            refusals = [str(answer.exception() or "") for answer in answers]
        assert quickest_s(partial(start, wanted[0])) < 1
    assert ["FAILED_PRECONDITION" in one for one in refusals] == [*[False] * 16, *[True] * 4]
    assert [ids[0] in one for ids, one in zip(wanted, refusals, strict=True)] == [*[False] * 16, *[True] * 4]
    assert [(limit(node, pod), limit(node, pod, "main")) for pod in pods] == [(20, 20), (20, 20)]


def test_a_resource_is_registered_anew_only_where_its_starts_begin_or_cease_to_wait(node: Node) -> None:
    agent = node.start_agent()
    node.wait_listed(8)
    registrations = len(node.kubelet.register_calls(GPU))
    node.write_policy(policy(shared(4, "memory: {evictAfter: 5m, onExceed: evict}")))
    agent.wait_log("policy in force", 2)
    node.write_policy(REQUIRED)
    node.kubelet.wait_for(lambda: len(node.kubelet.register_calls(GPU)) == registrations + 1)
    agent.wait_log("policy in force", 3)
    assert node.kubelet.register_calls(GPU)[-1].options.pre_start_required
    node.wait_listed(8)


def test_on_a_node_that_cannot_hold_a_required_limit_nothing_is_offered_and_the_reason_is_told() -> None:
    with open_node(A, B) as node:
        node.write_policy(REQUIRED)
        agent = node.start_agent()
        line = agent.wait_log(f"{A.uuid}, offers nothing: memory.required is true")
        assert "driver: the driver does not limit memory on this GPU" in line
