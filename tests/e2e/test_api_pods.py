"""What the API says about pods: it adds names and ends to what the node itself shows, and alone it frees nothing."""

from __future__ import annotations

import os

import pytest

from sharer.core.node_report import NodeReport
from sharer.simulation.apiserver import POD, Ending, pod_object
from sharer.simulation.kubelet import ContainerSpec, KubeletSettings, Phase
from tests.e2e.api import Api, open_api
from tests.e2e.conftest import MakeNode
from tests.e2e.gpus import GPU, A, B
from tests.e2e.node import Node
from tests.e2e.process import Agent
from tests.e2e.test_report import wait_report


def start(node: Node, api: Api) -> Agent:
    """An agent that follows the pods, beside a kubelet that has been running for some time."""
    os.utime(node.kubelet.podresources_socket, (0, 0))
    agent = node.start_agent(api.only_pods)
    node.wait_listed(8)
    api.server.wait_watches(2)
    return agent


@pytest.fixture
def agent(node: Node, api: Api) -> Agent:
    return start(node, api)


def holder_uids(report: NodeReport) -> set[str | None]:
    return {one.uid for one in report.status.holders}


def holders(report: NodeReport, slice_id: str) -> list[tuple[str, str | None]]:
    """State and pod of everybody who has something on a slice."""
    return sorted((one.state, one.pod) for one in report.status.holders if one.id == slice_id)


def test_a_late_deletion_of_an_old_pod_does_not_touch_its_successor_of_the_same_name(
    node: Node, api: Api, agent: Agent
) -> None:
    """P29: seen; the watch drops; deleted and made anew under the same name; listed again; then old news, twice."""
    first = node.kubelet.start_pod("train", {GPU: 1}, uid="11111111-0000-4000-8000-000000000000")
    old = pod_object("train", uid=first.uid, node=api.node_name, phase="Running", limits={GPU: 1})
    api.server.put(POD, old)
    agent.wait_log(f"default/train (main) holds {first.ids(GPU)[0]}")
    api.server.stop()
    node.kubelet.delete_pod("train")
    second = node.kubelet.start_pod("train", {GPU: 1}, uid="22222222-0000-4000-8000-000000000000")
    api.server.put(POD, {**old, "metadata": {"name": "train", "namespace": "default", "uid": second.uid}})
    api.server.start()
    wait_report(node, lambda one: holder_uids(one) == {second.uid}, "the successor")
    api.server.wait_watches(1, resource="pods")
    bare = {"metadata": {"name": "train", "namespace": "default", "uid": first.uid, "resourceVersion": "9"}}
    for late in (old, bare, bare):
        api.server.send_event("DELETED", {**late, "metadata": {**bare["metadata"], **late["metadata"]}}, "pods")
    third = node.kubelet.start_pod("other", {GPU: 1})
    agent.wait_log(f"default/other (main) holds {third.ids(GPU)[0]}")
    report = wait_report(node, lambda one: len(one.status.holders) == 2, "two holders")
    assert holder_uids(report) == {second.uid, third.uid}
    assert {one.state for one in report.status.holders} == {"held"}


def test_a_deletion_in_the_api_frees_nothing_that_the_kubelet_still_has(node: Node, api: Api, agent: Agent) -> None:
    """P30: the object is gone at once, the container stops when it stops."""
    with api.mirroring(node.kubelet):
        pod = node.kubelet.start_pod("train", {GPU: 1})
        (slice_id,) = pod.ids(GPU)
        agent.wait_log(f"default/train (main) holds {slice_id}")
        api.wait(lambda: api.server.get(POD, "train") is not None, "the pod in the API")
    api.server.delete(POD, "train")
    following = node.kubelet.start_pod("next", {GPU: 1})
    agent.wait_log(f"default/next (main) holds {following.ids(GPU)[0]}")
    report = wait_report(node, lambda one: len(one.status.holders) == 2, "two holders")
    assert holders(report, slice_id) == [("held", "train")]
    assert following.ids(GPU) != (slice_id,)


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
        assert api.server.get(POD, "train") is None
        node.kubelet.end_remnant(pod.uid)
        agent.wait_log(f"{slice_id} free again")
        node.wait_unhealthy([])


def test_ids_that_are_handed_on_while_the_old_container_lives_are_the_new_pod_s(make_node: MakeNode) -> None:
    """P30, runtime-facts §9: 0.3 s after a force delete, on a full node. It is granted, and the rest is reported."""
    node = make_node(A)
    node.kubelet.start()
    with open_api(node.root, node.kubelet.settings.node_name) as api, api.mirroring(node.kubelet):
        os.utime(node.kubelet.podresources_socket, (0, 0))
        agent = node.start_agent(api.only_pods)
        node.wait_listed(4)
        pods = [node.kubelet.start_pod(f"train-{number}", {GPU: 1}) for number in range(4)]
        (slice_id,) = pods[0].ids(GPU)
        agent.wait_log(f"holds {slice_id}")
        node.kubelet.force_delete_pod("train-0")
        successor = node.kubelet.start_pod("next", {GPU: 1})
        assert (successor.phase, successor.ids(GPU)) == (Phase.RUNNING, (slice_id,))
        both = [("held", "next"), ("remnant", "train-0")]
        wait_report(node, lambda one: holders(one, slice_id) == both, "both")
        assert node.unhealthy() == set()
        node.kubelet.end_remnant(pods[0].uid)
        wait_report(node, lambda one: holders(one, slice_id) == both[:1], "that one is left")


def test_a_slice_is_held_by_a_bound_pod_that_has_not_ended_and_by_no_other(make_node: MakeNode) -> None:
    """P31: nine pods, and a kubelet before 1.34, whose list keeps finished ones: the API's phase decides."""
    node = make_node(A, B, settings=KubeletSettings(podresources_lead_s=0, sources_ready_after_s=0, older=True))
    node.kubelet.start()
    with open_api(node.root, node.kubelet.settings.node_name) as api, api.mirroring(node.kubelet):
        agent = start(node, api)
        kubelet = node.kubelet
        bound = ("running", "pulling", "in-init", "succeeded", "failed", "evicted", "deleting")
        for name in bound[:2] + bound[3:]:
            kubelet.start_pod(name, {GPU: 1})
        kubelet.start_pod(
            "in-init",
            containers=[ContainerSpec(name="main", limits={GPU: 1})],
            init_containers=[ContainerSpec(name="wait")],
        )
        for name in ("pulling", "in-init"):
            kubelet.crash_container(name)
        agent.wait_log("holds", count=1)
        wait_report(node, lambda one: len(one.status.holders) == 7, "seven holders")
        kubelet.end_pod("succeeded")
        kubelet.end_pod("failed", Phase.FAILED)
        kubelet.end_pod("evicted", Phase.FAILED)
        api.server.put(POD, pod_object("unbound", limits={GPU: 1}))
        api.server.put(
            POD, pod_object("rejected", node=api.node_name, phase="Failed", limits={GPU: 1})
        )  # UnexpectedAdmissionError
        deleting = api.server.get(POD, "deleting")
        assert deleting is not None
        api.server.put(
            POD, {**deleting, "metadata": {**deleting["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}}
        )
        held = {"running", "pulling", "in-init", "deleting"}
        report = wait_report(node, lambda one: {row.pod for row in one.status.holders} == held, "four holders")
        (resource,) = report.status.resources
        assert (resource.held, resource.free) == (4, 4)


def test_an_expired_version_is_made_up_for_by_a_new_list(node: Node, api: Api, agent: Agent) -> None:
    """P34: what happened in between is seen; one more list and watch of each, and no more."""
    before = api.asked()
    api.server.interrupt_watches(Ending.SILENT)  # nothing of what follows is told
    pod = node.kubelet.start_pod("train", {GPU: 1})
    api.server.put(POD, pod_object("train", uid=pod.uid, node=api.node_name, phase="Running", limits={GPU: 1}))
    api.server.expire_history()
    api.server.stop()
    api.server.start()
    api.server.wait_watches(2)
    after = api.asked()
    assert after["list", "pods"] == before["list", "pods"] + 1
    agent.wait_log("default/train (main) holds")
