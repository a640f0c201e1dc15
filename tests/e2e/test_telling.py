"""What the agent as a process tells pods and nodes by Events, and how it ends a pod that stays above its promise."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import cycle

from sharer.core.quantities import GIB
from sharer.flows.tell.told import WITHOUT_API
from sharer.simulation.apiserver import BUDGET, EVENT, POD, Object
from sharer.simulation.hardware import SimulatedProcess
from sharer.simulation.kubelet import PodStatus
from tests.e2e.api import Api
from tests.e2e.gpus import GPU, A, policy, shared
from tests.e2e.node import Node
from tests.e2e.reported import wait_report

EVICT = [policy(shared(4, f"memory: {{onExceed: evict, evictAfter: {seconds}s}}")) for seconds in (1, 2)]


def events(api: Api, reason: str) -> list[Object]:
    return [event for event in api.server.objects(EVENT) if event["reason"] == reason]


def pid_of(node: Node, pod: PodStatus) -> int:
    """The process of a pod's container. Its cgroup is there, and empty, a moment before it."""
    procs = node.cgroup_of(pod.uid, "main") / "cgroup.procs"
    node.wait(lambda: procs.exists() and procs.read_text() != "", "the container's process")
    return int(procs.read_text())


def use(node: Node, gib: int, *pods: PodStatus) -> None:
    """Let each pod's container use so much of the GPU that they all hold a slice of."""
    processes = [SimulatedProcess(pid=pid_of(node, pod), used_bytes=gib * GIB) for pod in pods]
    (uuid,) = {one.partition("::")[0] for pod in pods for one in pod.ids(GPU)}
    node.gpus.put(replace(node.gpus.gpu(uuid), processes=tuple(processes)))


def looks(node: Node) -> Iterator[None]:
    """Have everything looked at again and again, by edits of the policy that make no difference to what is offered."""
    for text in cycle(EVICT):
        node.write_policy(text)
        yield


def test_a_refused_policy_and_a_gpu_at_fault_are_told_on_the_node_and_that_it_has_recovered(
    node: Node, api: Api
) -> None:
    node.start_agent(api.only_pods)
    node.wait_listed(8)
    node.write_policy("rules: 4\n")
    fault = node.gpus.lose(A.uuid)
    api.wait(lambda: bool(events(api, "PolicyRefused") and events(api, "GpuFault")), "both Events")
    (refused,) = events(api, "PolicyRefused")
    assert refused["involvedObject"]["name"] == refused["involvedObject"]["uid"] == node.kubelet.settings.node_name
    assert str(node.policy_file) in refused["message"]
    node.gpus.clear(fault)
    api.wait(lambda: bool(events(api, "GpuRecovered")), "the recovery")
    assert f"GPU 0, {A.uuid}, is healthy again" in events(api, "GpuRecovered")[0]["message"]


def test_pods_above_their_promise_are_told_and_evicted_where_a_budget_allows_it(node: Node, api: Api) -> None:
    """By UID, with their own grace period, and not on one reading."""
    node.write_policy(EVICT[1])
    agent = node.start_agent(api.only_pods)
    node.wait_listed(8)
    budget: Object = {
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "keep", "namespace": "kept"},
        "spec": {"selector": {}}, "status": {"disruptionsAllowed": 0},
    }  # fmt: skip
    api.server.put(BUDGET, budget)
    with api.mirroring(node.kubelet):
        pods = [node.kubelet.start_pod("train", {GPU: 1}, namespace=namespace) for namespace in ("kept", "free")]
        use(node, 30, *pods)
        for _ in looks(node):
            if node.comes_true(lambda: bool(events(api, "Evicted")), 2.5):
                break
        agent.wait_log("pod kept/train: container main uses more of")
        api.wait(lambda: len(events(api, "OverPromise")) == 2, "what both are told")
    stored = {one: api.server.get(POD, "train", one) or {"metadata": {}} for one in ("kept", "free")}
    assert {one for one, pod in stored.items() if "deletionTimestamp" in pod["metadata"]} == {"free"}
    assert stored["free"]["metadata"]["deletionGracePeriodSeconds"] > 0
    assert [event["involvedObject"]["uid"] for event in events(api, "Evicted")] == [pods[1].uid]
    agent.wait_log("a disruption budget does not allow to evict it now")
    assert len(agent.said("a disruption budget does not allow to evict it now")) == 1


def test_without_the_api_it_is_said_that_nobody_can_be_evicted(node: Node) -> None:
    node.write_policy(EVICT[0])
    agent = node.start_agent()
    agent.wait_log(WITHOUT_API)
    report = wait_report(node, lambda one: any(w.reason == "Eviction" for w in one.status.warnings), "the warning")
    assert [one.message for one in report.status.warnings if one.reason == "Eviction"] == [WITHOUT_API]
