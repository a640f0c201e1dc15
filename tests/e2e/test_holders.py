"""The agent knows who holds which slice, and has it back when the pod has really ended."""

from __future__ import annotations

import os
import threading
from dataclasses import replace

import grpc
import pytest

from sharer.simulation.cgroups import end_process, write_process
from sharer.simulation.hardware import SimulatedProcess
from sharer.simulation.kubelet import ContainerSpec, Fail, Repeat
from sharer.simulation.kubelet.podresources import PodResourcesFault
from tests.e2e.gpus import GPU, A, policy, shared
from tests.e2e.node import Node
from tests.e2e.process import Agent
from tests.e2e.reported import wait_report
from tests.fakes.fast_clock import fast_clock

PID = 4711


@pytest.fixture
def agent(node: Node) -> Agent:
    """Beside a kubelet that has been running for some time: a young one's list is not taken at its word."""
    os.utime(node.kubelet.podresources_socket, (0, 0))
    agent = node.start_agent()
    node.wait_listed(8)
    return agent


def let_run(node: Node, uid: str, *, command: str = "python", pid: int = PID) -> None:
    """A process of a pod appears on GPU A."""
    write_process(node.root / "proc", pid, node.cgroups.path(uid, "main"), command)
    processes = (*node.gpus.gpu(A.uuid).processes, SimulatedProcess(pid=pid, used_bytes=2**30))
    node.gpus.put(replace(node.gpus.gpu(A.uuid), processes=processes))


def let_end(node: Node, pid: int = PID) -> None:
    """And ends."""
    left = tuple(one for one in node.gpus.gpu(A.uuid).processes if one.pid != pid)
    node.gpus.put(replace(node.gpus.gpu(A.uuid), processes=left))
    end_process(node.root / "proc", pid)


def test_a_holder_is_known_by_name_and_its_slice_is_free_when_it_has_ended(node: Node, agent: Agent) -> None:
    """P29, without the API server."""
    pod = node.kubelet.start_pod("train", {GPU: 1})
    (slice_id,) = pod.ids(GPU)
    agent.wait_log(f"default/train (main) holds {slice_id}")
    node.kubelet.end_pod("train")
    agent.wait_log(f"{slice_id} free again")


def test_init_containers_hold_their_slices_too(node: Node, agent: Agent) -> None:
    """The kubelet's list never names them; the checkpoint does."""
    node.kubelet.start_pod(
        "train",
        containers=[ContainerSpec(name="main", limits={GPU: 1})],
        init_containers=[ContainerSpec(name="fetch", limits={GPU: 2})],
    )
    agent.wait_log("default/train (main) holds")
    node.kubelet.delete_pod("train")
    agent.wait_log("free again")


def test_a_force_deleted_pod_keeps_its_slice_from_others_until_it_has_really_ended(node: Node, agent: Agent) -> None:
    """Threat 6, P30: the kubelet forgets at once; the container runs on."""
    pod = node.kubelet.start_pod("train", {GPU: 1})
    (slice_id,) = pod.ids(GPU)
    let_run(node, pod.uid)
    agent.wait_log(f"default/train (main) holds {slice_id}")
    node.kubelet.force_delete_pod("train")
    agent.wait_log(f"{slice_id} in quarantine")
    node.wait_unhealthy([slice_id])
    agent.wait_log("leaked: process 4711 (python) uses 1 GiB")
    let_end(node)
    node.kubelet.end_remnant(pod.uid)
    agent.wait_log(f"{slice_id} free again")
    node.wait_unhealthy([])


def test_a_process_that_holds_nothing_of_its_gpu_is_warned_of_and_left_alone(node: Node, agent: Agent) -> None:
    pod = node.kubelet.start_pod("web")
    let_run(node, pod.uid)
    node.kubelet.start_pod("one", {GPU: 1})  # so that the agent looks now
    agent.wait_log("unauthorised: process 4711 (python) uses 1 GiB")
    let_run(node, "", command="nvidia-cuda-mps-server", pid=4712)
    let_end(node)
    node.kubelet.start_pod("two", {GPU: 1})
    agent.wait_log("over: process 4711")
    assert agent.said("4712") == []


def test_holders_are_known_again_after_the_agent_was_killed(node: Node, agent: Agent) -> None:
    """P27: never guessed; the kubelet says so again."""
    pod = node.kubelet.start_pod("train", {GPU: 2})
    agent.wait_log("default/train (main) holds")
    agent.kill()
    again = node.start_agent()
    again.wait_log(f"default/train (main) holds {', '.join(pod.ids(GPU))}")
    node.kubelet.end_pod("train")
    again.wait_log("free again")


def test_an_agent_that_can_read_no_record_at_its_start_offers_nothing_until_it_can(node: Node, agent: Agent) -> None:
    """DESIGN §3, found by `tests/faults`: the policy has another name now, and what is held keeps the old one."""
    [held] = node.kubelet.start_pod("train", {GPU: 1}).ids(GPU)
    agent.wait_log("default/train (main) holds")
    agent.kill()
    node.kubelet.checkpoint.write_text("{")
    node.kubelet.on_next_podresources_call(Fail(grpc.StatusCode.UNAVAILABLE, "not now"))
    node.write_policy(policy(shared(4, "resource: example.com/gpu")))
    node.start_agent().wait_log("nothing is offered before the kubelet's checkpoint or list could be read once")
    node.wait_listed(7, "example.com/gpu")
    assert all(held not in message.ids for message in node.lists("example.com/gpu"))


def test_who_holds_what_is_what_the_kubelet_has_on_record_whatever_the_order(node: Node, agent: Agent) -> None:
    """P27: pods of one size at once, a pod with two containers, a crash beside a newcomer; no two are confused."""
    pods = [threading.Thread(target=node.kubelet.start_pod, args=(f"p{number}", {GPU: 1})) for number in range(3)]
    for pod in pods:
        pod.start()
    for pod in pods:
        pod.join()
    node.kubelet.crash_container("p1")
    both = [ContainerSpec(name="one", limits={GPU: 1}), ContainerSpec(name="two", limits={GPU: 2})]
    node.kubelet.start_pod("both", containers=both)
    node.kubelet.restart_container("p1")
    node.kubelet.start_pod("late", {GPU: 1})
    names = {pod.uid: pod.name for pod in node.kubelet.pods()}
    truth = {
        (device_id, names[uid], container)
        for (uid, container, _), ids in node.kubelet.records().items()
        for device_id in ids
    }
    assert len(truth) == 7
    wait_report(node, lambda one: {(h.id, h.pod, h.container) for h in one.status.holders} == truth, f"{truth}")


def test_a_kubelet_restart_frees_nothing_that_runs(node: Node, agent: Agent) -> None:
    """Contract §22: in the first second its list is empty."""
    node.kubelet.start_pod("train", {GPU: 1})
    agent.wait_log("default/train (main) holds")
    for count in (2, 3):
        node.kubelet.restart()
        node.kubelet.wait_registered(GPU, count)
        node.wait_listed(8)
    node.kubelet.start_pod("next", {GPU: 1})
    agent.wait_log("default/next (main) holds")
    assert agent.said("free again") == []
    assert agent.said("quarantine") == []


def test_a_list_that_lies_fails_or_repeats_itself_frees_nothing_and_counts_nothing_twice(node: Node) -> None:
    """Contract row 40, pitfalls 34, 43 and 44: here only `List` would tell of an end, for no pod has a cgroup."""
    nowhere = node.root / "no-cgroups"
    (nowhere / "kubepods").mkdir(parents=True)
    (nowhere / "cgroup.controllers").touch()
    os.utime(node.kubelet.podresources_socket, (0, 0))
    agent = node.start_agent(f"--cgroup-root={nowhere}", variables=fast_clock(5))
    node.wait_listed(8)
    [held] = node.kubelet.start_pod("train", {GPU: 1}).ids(GPU)
    agent.wait_log(f"default/train (main) holds {held}")

    def after(*faults: PodResourcesFault, pod: str) -> None:
        """Let the next answers be like this, and make sure that as many and one more were given."""
        node.kubelet.on_next_podresources_call(*faults)
        asked = len(node.kubelet.podresources_calls())
        node.kubelet.start_pod(pod, {GPU: 1})  # so that it looks now
        node.kubelet.wait_for(lambda: len(node.kubelet.podresources_calls()) > asked + max(1, len(faults)))

    node.kubelet.hide_from_list("train")
    after(pod="absent-once")
    after(*[Fail(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")] * 2, pod="throttled")
    after(Repeat(), Repeat(), pod="repeated")
    assert agent.said("free again") == []
    assert len(wait_report(node, lambda one: len(one.status.holders) == 4, "four holders").status.holders) == 4

    node.kubelet.restart()
    node.kubelet.wait_registered(GPU, 2)
    node.wait_listed(8)
    node.kubelet.start_pod("later", {GPU: 1})
    agent.wait_log("default/later (main) holds")
    assert agent.said(f"{held} free again") == []
    os.utime(node.kubelet.podresources_socket, (0, 0))
    node.kubelet.end_pod("train")
    agent.wait_log(f"{held} free again")
    assert agent.terminate() < 5
    assert node.our_sockets() == []
    assert len(node.kubelet.register_calls()) == 2
