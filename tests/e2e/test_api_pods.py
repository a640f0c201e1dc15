"""What the API says about pods: it adds names and ends to what the node itself shows, and alone it frees nothing."""

from __future__ import annotations

import os

import pytest

from sharer.core.report.node import NodeReport
from sharer.simulation.apiserver import POD, Object, pod_object
from sharer.simulation.kubelet import ContainerSpec, KubeletSettings, Phase
from tests.e2e.api import Api
from tests.e2e.conftest import MakeNode
from tests.e2e.gpus import GPU, A, B
from tests.e2e.node import Node
from tests.e2e.process import Agent
from tests.e2e.reported import wait_report

FIRST, SECOND = "11111111-0000-4000-8000-000000000000", "22222222-0000-4000-8000-000000000000"


@pytest.fixture
def node(make_node: MakeNode) -> Node:
    """Its kubelet is one before 1.34, whose list keeps finished pods: only the API says that they have ended."""
    made = make_node(A, B, settings=KubeletSettings(podresources_lead_s=0, sources_ready_after_s=0, older=True))
    made.kubelet.start()
    return made


@pytest.fixture
def agent(node: Node, api: Api) -> Agent:
    """It follows the pods, beside a kubelet that has been running for some time."""
    os.utime(node.kubelet.podresources_socket, (0, 0))
    agent = node.start_agent(api.only_pods)
    node.wait_listed(8)
    api.server.wait_watches(2)
    return agent


def running(api: Api, name: str, uid: str, phase: str = "Running") -> Object:
    """A pod of this node."""
    return pod_object(name, uid=uid, node=api.node_name, phase=phase, limits={GPU: 1})


def holders(report: NodeReport, slice_id: str) -> list[tuple[str, str | None]]:
    """State and UID of everybody who has something on a slice."""
    return sorted((one.state, one.uid) for one in report.status.holders if one.id == slice_id)


def wait_taken_in(node: Node, api: Api, agent: Agent) -> None:
    """Until everything that the API has told of pods has had its effect: a pod of which only the API tells the end."""
    marker = node.kubelet.start_pod("marker", {GPU: 1})
    agent.wait_log(f"default/marker (main) holds {marker.ids(GPU)[0]}")
    node.kubelet.end_pod("marker")
    api.server.put(POD, running(api, "marker", marker.uid, phase="Succeeded"))
    agent.wait_log(f"{marker.ids(GPU)[0]} free again")


def test_a_late_deletion_of_an_old_pod_does_not_touch_its_successor_of_the_same_name(
    node: Node, api: Api, agent: Agent
) -> None:
    """P29: seen; the watch drops; deleted and made anew under the same name; listed again; then old news, twice."""
    first = node.kubelet.start_pod("train", {GPU: 1}, uid=FIRST)
    api.server.put(POD, running(api, "train", FIRST))
    agent.wait_log(f"default/train (main) holds {first.ids(GPU)[0]}")
    api.server.stop()
    node.kubelet.delete_pod("train")
    second = node.kubelet.start_pod("train", {GPU: 1}, uid=SECOND)
    api.server.put(POD, running(api, "train", SECOND))
    api.server.start()
    api.server.wait_watches(1, resource="pods")
    late = {"metadata": {"name": "train", "namespace": "default", "uid": FIRST, "resourceVersion": "9"}}
    api.server.send_event("DELETED", {**running(api, "train", FIRST), **late}, "pods")
    for _ in range(2):
        api.server.send_event("DELETED", late, "pods")
    wait_taken_in(node, api, agent)
    report = wait_report(node, lambda one: len(one.status.holders) == 1, "one holder")
    assert holders(report, second.ids(GPU)[0]) == [("held", SECOND)]


def test_a_deletion_in_the_api_frees_nothing_that_the_kubelet_still_has(node: Node, api: Api, agent: Agent) -> None:
    """P30: the object is gone at once, the container stops when it stops."""
    pod = node.kubelet.start_pod("train", {GPU: 1})
    (slice_id,) = pod.ids(GPU)
    api.server.put(POD, running(api, "train", pod.uid))
    agent.wait_log(f"default/train (main) holds {slice_id}")
    api.server.delete(POD, "train")
    wait_taken_in(node, api, agent)
    report = wait_report(node, lambda one: len(one.status.holders) == 1, "one holder")
    assert holders(report, slice_id) == [("held", pod.uid)]
    assert node.unhealthy() == set()


def test_a_force_deleted_pod_keeps_its_slice_unhealthy_until_its_cgroup_is_empty(
    node: Node, api: Api, agent: Agent
) -> None:
    """P30: kubelet and API have both forgotten it; only the node shows that it lives."""
    with api.mirroring(node.kubelet):
        pod = node.kubelet.start_pod("train", {GPU: 1})
        (slice_id,) = pod.ids(GPU)
        agent.wait_log(f"default/train (main) holds {slice_id}")
        node.kubelet.force_delete_pod("train")
        node.wait_unhealthy([slice_id])
        api.wait(lambda: api.server.get(POD, "train") is None, "that the API has forgotten it")
        node.kubelet.end_remnant(pod.uid)
        agent.wait_log(f"{slice_id} free again")
        node.wait_unhealthy([])


def test_ids_that_are_handed_on_while_the_old_container_lives_are_the_new_pod_s(
    node: Node, api: Api, agent: Agent
) -> None:
    """P30: after a force delete on a full node. It is granted, and the rest is reported until it has ended."""
    with api.mirroring(node.kubelet):
        pods = [node.kubelet.start_pod(f"train-{number}", {GPU: 1}) for number in range(8)]
        (slice_id,) = pods[0].ids(GPU)
        agent.wait_log(f"default/train-0 (main) holds {slice_id}")
        node.kubelet.end_pod("train-7")
        agent.wait_log(f"{pods[7].ids(GPU)[0]} free again")  # so the API's pods are known
        node.kubelet.start_pod("train-8", {GPU: 1})
        node.kubelet.force_delete_pod("train-0")
        successor = node.kubelet.start_pod("next", {GPU: 1})
        assert (successor.phase, successor.ids(GPU)) == (Phase.RUNNING, (slice_id,))
        both = [("held", successor.uid), ("remnant", pods[0].uid)]
        wait_report(node, lambda one: holders(one, slice_id) == both, "both")
        assert slice_id not in node.unhealthy()
        node.kubelet.end_remnant(pods[0].uid)
        wait_report(node, lambda one: holders(one, slice_id) == both[:1], "that one is left")


def test_a_slice_is_held_by_a_bound_pod_that_has_not_ended_and_by_no_other(node: Node, api: Api, agent: Agent) -> None:
    """P31: of nine pods four, on a node whose kubelet lists the finished ones too."""
    kubelet = node.kubelet
    with api.mirroring(kubelet):
        for name in ("running", "pulling", "succeeded", "failed", "evicted", "deleting"):
            kubelet.start_pod(name, {GPU: 1})
        main, wait = ContainerSpec(name="main", limits={GPU: 1}), ContainerSpec(name="wait")
        kubelet.start_pod("in-init", containers=[main], init_containers=[wait])
        for name in ("pulling", "in-init"):
            kubelet.crash_container(name)
        wait_report(node, lambda one: [row.state for row in one.status.holders] == 7 * ["held"], "seven holders")
        for name, phase in (("succeeded", Phase.SUCCEEDED), ("failed", Phase.FAILED), ("evicted", Phase.FAILED)):
            kubelet.end_pod(name, phase)
        api.wait(lambda: len(api.server.objects(POD)) == 7, "seven pods in the API")
        api.server.put(POD, pod_object("unbound", limits={GPU: 1}))
        api.server.put(POD, running(api, "never-admitted", FIRST, phase="Failed"))
        api.server.put(POD, pod_object("deleting", uid=kubelet.pod("deleting").uid, node=api.node_name, deleting=True))
        held = {"running", "pulling", "in-init", "deleting"}
        report = wait_report(node, lambda one: {row.pod for row in one.status.holders} == held, "four holders")
        (resource,) = report.status.resources
        assert (resource.held, resource.free) == (4, 4)


def test_an_expired_version_is_made_up_for_by_one_new_list(node: Node, api: Api, agent: Agent) -> None:
    """P34: a pod ends while the API is away, and the server forgets that it did."""
    pod = node.kubelet.start_pod("train", {GPU: 1})
    agent.wait_log(f"default/train (main) holds {pod.ids(GPU)[0]}")
    api.server.stop()
    node.kubelet.end_pod("train")
    api.server.put(POD, running(api, "train", pod.uid, phase="Succeeded"))
    api.server.expire_history()
    api.server.start()
    agent.wait_log(f"{pod.ids(GPU)[0]} free again")
    assert agent.said("has forgotten the version that sharer knows of pods")
    assert len(api.server.requests("list", "pods")) == 2
