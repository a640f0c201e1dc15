"""Policies that people write into the API: which one a node follows, and when a change takes effect (DESIGN §4)."""

from __future__ import annotations

from itertools import cycle

from sharer.simulation.apiserver import CONFIG_MAP, NODE
from tests.e2e.api import SOURCE, Api
from tests.e2e.gpus import GPU, A, B, policy, shared, slices
from tests.e2e.node import Node
from tests.e2e.process import Agent, quickest_s
from tests.e2e.reported import wait_report

FOUR, TWO, ONE = policy(), policy(shared(2)), policy(shared(1))
EDIT_S = 5.0  # from an edit to its effect, at a node's turn


def in_force(node: Node, count: int) -> bool:
    """Whether a cut into so many slices is what the kubelet may give out."""
    wanted = {*slices(A, count, 81920 // count), *slices(B, count, 81920 // count)}
    return bool(node.lists()) and node.lists()[-1].healthy_ids == wanted


def wait_cut(node: Node, count: int) -> None:
    node.wait(lambda: in_force(node, count), f"{count} slices a GPU")


def start(node: Node, api: Api, count: int) -> Agent:
    """An agent that already follows the policy in the API, which has so many slices a GPU."""
    agent = node.start_agent(*api.flags)
    wait_cut(node, count)
    return agent


def test_the_policy_of_the_configmap_is_the_first_that_is_offered_and_an_edit_takes_effect_within_5_s(
    node: Node, api: Api
) -> None:
    """P07. A policy is mounted too, and is not even looked at."""
    api.put_policies(default=TWO)
    agent = start(node, api, 2)
    assert [set(message.ids) for message in node.lists()] == [{*slices(A, 2, 40960), *slices(B, 2, 40960)}]
    agent.wait_log(f"policy in force: {SOURCE} key default")
    cuts = cycle((1, 2))

    def edit() -> None:
        count = next(cuts)
        api.put_policies(default=policy(shared(count)))
        wait_cut(node, count)

    assert quickest_s(edit, tries=3) < EDIT_S


def test_a_label_that_names_no_policy_changes_nothing_and_is_said_with_what_was_meant(node: Node, api: Api) -> None:
    """P05: label a10O, in use; then a key deleted while in use; then no label."""
    api.put_policies(default=FOUR, a100=TWO)
    api.put_node(policy="a100")
    agent = start(node, api, 2)
    api.put_node(policy="a10O")
    said = agent.wait_log(f"{SOURCE} has no key 'a10O'")
    assert "did you mean 'a100'?" in said
    report = wait_report(node, lambda one: one.status.policy.refused is not None, "what is refused").status.policy
    assert (report.wanted, report.in_force) == ("a10O", f"{SOURCE} key a100")
    api.put_node(policy="a100")
    wait_report(node, lambda one: one.status.policy.refused is None, "that nothing is wrong")
    api.put_policies(default=FOUR)
    agent.wait_log(f"{SOURCE} has no key 'a100'")
    assert in_force(node, 2)
    api.put_node()
    agent.wait_log(f"policy in force: {SOURCE} key default")


def test_a_node_that_never_had_a_policy_takes_the_declared_default_for_a_missing_one(node: Node, api: Api) -> None:
    """P05: and says which one it wanted."""
    api.put_policies(default=TWO, a100=ONE)
    api.put_node(policy="a10O")
    agent = start(node, api, 2)
    agent.wait_log(f"{SOURCE} key default")
    report = wait_report(node, lambda one: one.status.policy.in_force is not None, "a policy").status.policy
    assert report.wanted == "a10O"


def test_a_held_node_stays_as_it_is_until_the_label_is_gone(node: Node, api: Api) -> None:
    api.put_policies(default=FOUR)
    api.put_node(hold="")
    agent = start(node, api, 4)
    api.put_policies(default=TWO)
    agent.wait_log("is staged: the label sharer.dev/hold holds this node")
    assert in_force(node, 4)
    api.put_node()
    agent.wait_log("policy in force", count=2)


def test_a_change_waits_for_the_nodes_turn_and_a_correction_need_not(node: Node, api: Api) -> None:
    api.put_policies(default=FOUR)
    agent = start(node, api, 4)
    api.put_policies(default=policy(shared(2), rollout="{window: 10m}"))
    agent.wait_log("within a window of 10m")
    staged = wait_report(node, lambda one: one.status.policy.staged is not None, "the staged policy").status.policy
    assert staged.staged is not None
    assert staged.staged.source == f"{SOURCE} key default"
    assert in_force(node, 4)
    api.put_policies(default=ONE)
    agent.wait_log("policy in force", count=2)


def test_a_wrong_edit_is_named_by_configmap_key_and_line_and_changes_nothing(node: Node, api: Api) -> None:
    api.put_policies(default=FOUR)
    agent = start(node, api, 4)
    api.put_policies(default=policy(shared(2, "replicas: 2")))
    assert "rules[0].replicas" in agent.wait_log(f"{SOURCE} key default:4")
    assert in_force(node, 4)


def test_a_configmap_that_does_not_exist_offers_nothing_and_one_that_is_deleted_stays_in_force(
    node: Node, api: Api
) -> None:
    agent = node.start_agent(*api.flags)
    agent.wait_log(f"there is no {SOURCE}; create it, or correct --policy-configmap")
    assert node.kubelet.register_calls() == []
    api.put_policies(default=TWO)
    wait_cut(node, 2)
    api.server.delete(CONFIG_MAP, "policies", "gpu")
    agent.wait_log(f"there is no {SOURCE}", count=2)
    assert in_force(node, 2)


def test_a_node_object_that_goes_away_leaves_the_policy_as_it_is(node: Node, api: Api) -> None:
    """It is made anew under the same name, with its labels: in between they are not known."""
    api.put_policies(default=FOUR, a100=TWO)
    api.put_node(policy="a100")
    agent = start(node, api, 2)
    api.server.delete(NODE, api.node_name)
    agent.wait_log(f"the API server has no Node called {api.node_name}")
    assert in_force(node, 2)


def test_without_the_api_the_mounted_policy_stands_in_and_steps_back(node: Node, api: Api) -> None:
    """The API is away at the start. The mounted copy may be older: as soon as it can be asked, the API counts."""
    api.put_policies(default=TWO)
    api.server.stop()
    agent = start(node, api, 4)
    report = wait_report(node, lambda one: bool(one.status.warnings), "a warning")
    assert any(
        f"stands in for {SOURCE}: the API server cannot be reached" in one.message for one in report.status.warnings
    )
    api.server.start()
    agent.wait_log(f"policy in force: {SOURCE} key default")


def test_switched_off_nothing_is_asked_and_the_mounted_policy_counts(node: Node, api: Api) -> None:
    api.put_policies(default=TWO)
    agent = node.start_agent(*api.flags, "--kubernetes=off")
    wait_cut(node, 4)
    pod = node.kubelet.start_pod("train", {GPU: 1})
    agent.wait_log(f"holds {pod.ids(GPU)[0]}")
    report = wait_report(node, lambda one: bool(one.status.warnings), "a warning")
    assert any("--kubernetes off" in one.message for one in report.status.warnings)
    assert api.asked() == {}
