"""The Node tells what its GPUs are, if it is asked to."""

from __future__ import annotations

from sharer.core.tell.node_labels import COUNT, KEYS, PRODUCT, SLICES
from sharer.simulation.apiserver import NODE
from tests.e2e.api import Api
from tests.e2e.gpus import policy, shared
from tests.e2e.node import Node


def labels(api: Api) -> dict[str, str]:
    node = api.server.get(NODE, api.node_name)
    assert node is not None
    found: dict[str, str] = node["metadata"].get("labels", {})
    return found


def test_labels_follow_the_policy_and_go_with_the_gpus_and_nothing_else_is_touched(node: Node, api: Api) -> None:
    api.put_node(hold="")
    node.start_agent(api.only_pods, "--node-labels=on")
    node.wait_listed(8)
    api.wait(lambda: labels(api).get(SLICES) == "8", "the labels")
    assert (labels(api)[COUNT], labels(api)[PRODUCT]) == ("2", "NVIDIA-A100-SXM4-80GB")
    node.gpus.set_gpus(())
    api.wait(lambda: not labels(api).keys() & set(KEYS), "no labels")
    assert "sharer.dev/hold" in labels(api)


def test_an_agent_that_starts_again_writes_nothing(node: Node, api: Api) -> None:
    node.start_agent(api.only_pods, "--node-labels=on").wait_log("labelled the Node: ")
    node.agents[-1].terminate()
    writes = len(api.server.requests("patch", "nodes"))
    assert writes == 1
    again = node.start_agent(api.only_pods, "--node-labels=on")
    node.wait_listed(8)
    node.write_policy(policy(shared(2)))
    again.wait_log("labelled the Node: ")
    assert len(api.server.requests("patch", "nodes")) == writes + 1, "the changed policy, and nothing before it"


def test_without_the_flag_no_node_is_written(node: Node, api: Api) -> None:
    agent = node.start_agent(api.only_pods)
    node.wait_listed(8)
    api.server.wait_watches(1, resource="nodes")
    agent.terminate()
    assert api.server.requests("patch", "nodes") == ()


def test_a_missing_right_is_said_once_with_the_rule_and_sharing_goes_on(node: Node, api: Api) -> None:
    """P36"""
    api.server.forbid("patch", "nodes")
    agent = node.start_agent(api.only_pods, "--node-labels=on")
    said = agent.wait_log("the Node's labels: ")
    assert " WARNING " in said
    assert "patch" in said
    node.wait_listed(8)
