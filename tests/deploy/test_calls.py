"""The rights that the chart gives are those that the agent uses: a real one runs under them (bug case P36)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sharer.simulation.apiserver import EVENT, GPU_NODE, LEASE, NODE, POD
from tests.deploy.agent_writes import judged
from tests.deploy.crd import gpu_node_crd
from tests.deploy.granted import granted
from tests.e2e.api import NAMESPACE, Api, as_object, open_api
from tests.e2e.gpus import GPU, A, B, policy
from tests.e2e.node import Node, open_node

EVERYTHING = {"nodeLabels": True, "evict": True, "publish": True}
WRITES = {
    ("patch", "gpunodes"),
    ("patch", "gpunodes/status"),
    ("patch", "leases"),
    ("patch", "nodes"),
    ("patch", "events"),
}
SELDOM = {
    ("create", "pods/eviction"),  # tests/e2e/test_telling.py
    ("get", "gpunodes"),  # every 15 minutes: whether it is still as it was left
}


@pytest.fixture
def node() -> Iterator[Node]:
    with open_node(A, B) as made:
        made.kubelet.start()
        yield made


@pytest.fixture
def api(node: Node) -> Iterator[Api]:
    with open_api(node.root, node.kubelet.settings.node_name) as made:
        made.server.define(gpu_node_crd())
        made.put_policies(default=policy())
        yield made


def asked(api: Api) -> set[tuple[str, str]]:
    return {(verb, resource) for verb, resource in api.asked() if resource is not None}


def refused(api: Api) -> list[str]:
    return [f"{one.verb} {one.resource}: {one.code}" for one in api.server.requests() if one.code in (401, 403)]


def test_an_agent_with_everything_on_does_all_of_it_under_the_chart_s_rights_and_uses_each(
    node: Node, api: Api
) -> None:
    api.server.grant(granted(EVERYTHING))
    api.put_node(policy="default")
    before = api.server.get(NODE, api.node_name)
    node.start_agent(*api.flags, f"--namespace={NAMESPACE}", "--node-labels=on")
    node.wait_listed(8)
    fault = node.gpus.lose(A.uuid)  # worth an Event
    pod = node.kubelet.start_pod("train", {GPU: 1})
    api.server.put(POD, as_object(pod, api.node_name))
    api.wait(lambda: asked(api) >= WRITES, "every write")
    node.gpus.clear(fault)
    api.wait(lambda: bool(api.server.objects(GPU_NODE) and api.server.objects(LEASE)), "GpuNode and Lease")
    api.wait(lambda: bool(api.server.objects(EVENT)), "an Event")
    assert refused(api) == []
    # What it has written is its own node's by the admission policy, too; as the API server sees it, before and after.
    written = {
        "nodes": (api.server.get(NODE, api.node_name), before),
        "gpunodes": (api.server.get(GPU_NODE, api.node_name), None),
        "leases": (api.server.get(LEASE, api.node_name, NAMESPACE), None),
    }
    for resource, (new, old) in written.items():
        operation = "UPDATE" if old else "CREATE"
        assert judged(resource, api.node_name, new, old, operation=operation, node=[api.node_name]) == [], resource
        assert judged(resource, api.node_name, new, old, operation=operation, node=["another"]), resource
    assert written["nodes"][0] != before
    given = {(verb, resource) for rule in granted(EVERYTHING) for verb in rule.verbs for resource in rule.resources}
    creates = {("create", resource) for verb, resource in asked(api) if verb == "patch"}  # what a first apply needs
    api.wait(lambda: given <= asked(api) | creates | SELDOM, "a right that nothing needs")


def test_an_agent_with_the_standard_rights_is_refused_nothing(node: Node, api: Api) -> None:
    api.server.grant(granted({}))
    node.start_agent(*api.flags, f"--namespace={NAMESPACE}")
    node.wait_listed(8)
    api.wait(lambda: asked(api) >= {("patch", "gpunodes/status"), ("patch", "leases")}, "GpuNode and Lease")
    assert refused(api) == []


def test_an_agent_that_does_not_publish_needs_no_right_to_do_it(node: Node, api: Api) -> None:
    api.server.grant(granted({"publish": False}))
    agent = node.start_agent(*api.flags, "--publish=off")
    node.wait_listed(8)
    pod = node.kubelet.start_pod("train", {GPU: 1})
    api.server.put(POD, as_object(pod, api.node_name))
    agent.wait_log("default/train (main) holds")
    assert refused(api) == []
