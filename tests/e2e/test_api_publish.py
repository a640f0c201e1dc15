"""The agent publishes its node: a GpuNode that a server with the real CRD takes, and a Lease."""

from __future__ import annotations

import time
from typing import Any

import pytest

from sharer.flows.tell.publish import APART_S
from sharer.simulation.apiserver import GPU_NODE, LEASE
from tests.deploy.crd import gpu_node_crd
from tests.e2e.api import NAMESPACE, Api
from tests.e2e.gpus import GPU
from tests.e2e.node import Node
from tests.e2e.process import Agent
from tests.e2e.reported import wait_report

CHANGE_S = 60.0  # a node publishes once in 10 s at most


@pytest.fixture
def api(api: Api) -> Api:
    """Its cluster has the CRD."""
    api.server.define(gpu_node_crd())
    return api


def start(node: Node, api: Api, *flags: str) -> Agent:
    agent = node.start_agent(api.only_pods, f"--namespace={NAMESPACE}", *flags)
    node.wait_listed(8)
    return agent


def status(api: Api) -> Any:  # JSON
    obj = api.server.get(GPU_NODE, api.node_name)
    return None if obj is None else obj.get("status")


def writes(api: Api) -> int:
    """To GpuNodes, so far."""
    asked = api.asked().items()
    return sum(count for (verb, resource), count in asked if verb != "get" and (resource or "").startswith("gpunodes"))


def wait_held(api: Api, held: int) -> Any:  # JSON
    def holds() -> bool:
        now = status(api)
        return now is not None and now["summary"]["held"] == held

    api.wait(holds, f"a GpuNode with {held} held", CHANGE_S)
    return status(api)


def test_the_node_is_published_and_follows_what_happens_on_it(node: Node, api: Api) -> None:
    """P31: a slice is held from the kubelet's word on, and free again with the pod's end; P38."""
    began_s = time.monotonic()
    start(node, api)
    pod = node.kubelet.start_pod("train", {GPU: 1})
    told = wait_held(api, 1)
    (holder,) = told["holders"]
    assert (holder["pod"], holder["id"], holder["state"]) == ("train", pod.ids(GPU)[0], "held")
    assert (told["summary"]["slices"], told["summary"]["free"], told["summary"]["state"]) == (8, 7, "ok")
    obj = api.server.get(GPU_NODE, api.node_name)
    assert obj is not None
    assert obj["metadata"]["ownerReferences"][0]["uid"] == "node-uid"
    node.kubelet.end_pod("train")
    assert wait_held(api, 0)["holders"] == []
    assert writes(api) <= 2 + (time.monotonic() - began_s) / APART_S  # the object; the status, and again for changes


def test_it_says_what_the_local_report_says(node: Node, api: Api) -> None:
    start(node, api)
    node.kubelet.start_pod("train", {GPU: 1})
    told = wait_held(api, 1)
    report = wait_report(node, lambda one: bool(one.status.holders), "a holder").status
    (resource,) = report.resources
    assert [told["resources"][0][name] for name in ("name", "slices", "held", "free")] == [
        resource.name, resource.slices, resource.held, resource.free,
    ]  # fmt: skip
    assert [one["uuid"] for one in told["gpus"]] == [one.uuid for one in report.gpus]
    assert told["factsHash"] == report.facts_hash
    assert (told["node"]["kernel"], told["node"]["cgroup"]) == (report.node.kernel, report.node.cgroup)


def test_a_lease_says_that_the_agent_is_alive(node: Node, api: Api) -> None:
    start(node, api)
    api.wait(lambda: api.server.get(LEASE, api.node_name, NAMESPACE) is not None, "a Lease")
    lease = api.server.get(LEASE, api.node_name, NAMESPACE)
    assert lease is not None
    assert lease["spec"]["holderIdentity"] == api.node_name
    assert lease["metadata"]["ownerReferences"][0]["uid"] == "node-uid"
    api.wait(lambda: status(api) is not None, "a GpuNode")
    obj = api.server.get(GPU_NODE, api.node_name)
    assert obj is not None
    assert obj["metadata"]["annotations"]["sharer.dev/lease"] == f"{NAMESPACE}/{api.node_name}"


def test_a_node_on_which_nothing_happens_writes_nothing(node: Node, api: Api) -> None:
    """P33: for longer than the daemon needs to look at everything again."""
    start(node, api)
    node.kubelet.start_pod("train", {GPU: 1})
    wait_held(api, 1)
    for _ in range(3):  # whatever comes a moment later than that, such as a verdict, is one write more
        before = writes(api)
        if not node.comes_true(lambda: writes(api) > before, APART_S + 1):  # noqa: B023 - at once
            return
    raise AssertionError("it writes and writes")


def test_a_node_made_anew_gets_its_object_again(node: Node, api: Api) -> None:
    start(node, api)
    api.wait(lambda: status(api) is not None, "a GpuNode")
    api.server.delete(GPU_NODE, api.node_name)  # as the garbage collector does
    api.put_node(uid="another-uid")
    api.wait(lambda: status(api) is not None, "the GpuNode again")
    obj = api.server.get(GPU_NODE, api.node_name)
    assert obj is not None
    assert obj["metadata"]["ownerReferences"][0]["uid"] == "another-uid"


def test_without_the_crd_one_line_says_so_and_pods_are_served(node: Node, api: Api) -> None:
    """Neighbour of P36: not the right is missing, but what it is for."""
    api.server.undefine(GPU_NODE)
    agent = start(node, api)
    agent.wait_log("this cluster has no GpuNodes")
    assert node.kubelet.start_pod("train", {GPU: 1}).ids(GPU)
    api.wait(lambda: api.server.get(LEASE, api.node_name, NAMESPACE) is not None, "a Lease")
    assert len(agent.said("this cluster has no GpuNodes")) == 1


def test_without_the_right_one_line_names_the_rule_and_the_rest_goes_on(node: Node, api: Api) -> None:
    """P36."""
    api.server.forbid("patch", "gpunodes")
    agent = start(node, api)
    agent.wait_log("resources: [gpunodes], verbs: [create, patch]")
    api.wait(lambda: api.server.get(LEASE, api.node_name, NAMESPACE) is not None, "a Lease")
    assert node.kubelet.start_pod("train", {GPU: 1}).ids(GPU)


def test_publishing_can_be_switched_off(node: Node, api: Api) -> None:
    start(node, api, "--publish=off")
    api.server.wait_watches(2)
    assert not node.comes_true(lambda: writes(api) > 0 or ("patch", "leases") in api.asked(), 3.0)
