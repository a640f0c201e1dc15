"""Policies that are edited while the agent runs: a wrong one changes nothing, and is told in full (DESIGN §4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from sharer.simulation.hardware import SimulatedGpu
from tests.e2e.conftest import MakeNode
from tests.e2e.gpus import GPU, A, B, gpu, policy, shared, slices
from tests.e2e.node import Node
from tests.e2e.pages import HTTP, wait_page

HEADER = "version: v1\n"
MISTAKES = {  # P01: where it stands -> the policy
    "flags.failRequestsGreaterThanOne": HEADER + "flags: {failRequestsGreaterThanOne: true, renameByDefault: true}\n"
    "sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 16384}]}}\n",
    "sharing.TimeSlicing": HEADER + "sharing: {TimeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 8}]}}\n",
    "resources[0].devices": HEADER
    + "sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 8, devices: {names: [a]}}]}}\n",
    "sharing.timeSlicing.replicas": HEADER + "sharing: {timeSlicing: {replicas: 8}}\n",
}


def refuse_each(make_node: MakeNode, gpus: Sequence[SimulatedGpu], good: str, mistakes: Mapping[str, str]) -> list[str]:
    """For each mistake a node that follows a good policy, then reads the wrong one: nothing changes.

    `mistakes`: words that the refusal must have -> the policy. Returns the refusals. The nodes wait side by side.
    """
    nodes = [make_node(*gpus) for _ in mistakes]
    lists = []
    for node in nodes:
        node.kubelet.start()
        node.write_policy(good)
        node.start_agent().wait_log("planned")
        node.wait(lambda: bool(node.lists()), "the first list")  # noqa: B023 - waited for here
        lists.append(node.lists())
    for node, text in zip(nodes, mistakes.values(), strict=True):
        node.write_policy(text)
        node.wake(gpus[0])
    told = [node.agents[0].wait_log(words) for node, words in zip(nodes, mistakes, strict=True)]
    assert [node.lists() for node in nodes] == lists
    assert {len(node.kubelet.register_calls()) for node in nodes} == {1}
    return [line.partition(str(node.policy_file))[2] for node, line in zip(nodes, told, strict=True)]


def test_each_misplaced_key_is_named_with_its_path_and_the_good_policy_stays(make_node: MakeNode) -> None:
    """Threat 11, P01: four mistakes after a good policy of four slices."""
    told = refuse_each(make_node, [A, B], policy(), {f"{path}: ": text for path, text in MISTAKES.items()})
    assert len(set(told)) == len(MISTAKES)


def test_a_changed_policy_is_noticed_without_any_help(node: Node) -> None:
    """Nothing wakes this agent (DESIGN §4)."""
    agent = node.start_agent()
    node.wait_listed(8)
    node.write_policy("rules: 4\n")
    agent.wait_log(f"{node.policy_file}:1:")


def test_one_slice_is_the_whole_gpu_and_no_slice_is_no_policy(make_node: MakeNode) -> None:
    """P03: 1 and 4 side by side; then 0, -1 and nothing are refused and change nothing."""
    alone, cut = gpu(0), gpu(1)
    rule = f"match: {{uuid: [{alone.uuid}]}}, strategy: time-slicing"
    assert offered([alone, cut], policy(f"{{{rule}, slices: 1}}", shared(4)), make_node) == {
        f"{alone.uuid}::ts-0-81920",
        *slices(cut, 4, 20480),
    }
    mistakes = {
        "found the number 0": policy(f"{{{rule}, slices: 0}}"),
        "found the number -1": policy(f"{{{rule}, slices: -1}}"),
        "rules[0].slices: is missing": policy(f"{{{rule}}}"),
    }
    refuse_each(make_node, [alone, cut], policy(shared(1)), mistakes)


def test_a_list_that_no_kubelet_would_receive_refuses_the_policy(make_node: MakeNode) -> None:
    """Contract row 26, P04: 65536 slices of one GPU, and 16384 of each of eight."""
    unlimited = "memory: {limit: none}"
    mistakes = {
        "65536 slices of one GPU make a device list of": policy(shared(65536, unlimited)),
        f"{GPU} would have 131072 slices on this node": policy(shared(16384, unlimited)),
    }
    refuse_each(make_node, [gpu(number) for number in range(8)], policy(), mistakes)


def test_a_wrong_policy_at_the_start_offers_nothing_until_it_is_right(node: Node) -> None:
    """The agent never exits for a policy (DESIGN §4)."""
    node.write_policy(policy(shared(4, "replicas: 4")))
    agent = node.start_agent()
    agent.wait_log("rules[0].replicas")
    assert node.kubelet.register_calls() == []
    node.write_policy(policy())
    node.wake(A)
    node.wait_listed(8)


def test_the_last_good_policy_outlives_the_agent(node: Node) -> None:
    """Threat 11, P32, DESIGN §4: with a wrong one in its place. A damaged copy is no policy, and no crash."""
    first = node.start_agent()
    node.wait_listed(8)
    first.kill()
    node.write_policy("rules: [")
    second = node.start_agent()
    second.wait_log(f"{node.policy_file}:")
    node.kubelet.wait_registered(GPU, 2)
    node.wait_listed(8)
    second.kill()
    (node.run_dir / "policy-last-good.yaml").write_bytes(b"\xff{")
    third = node.start_agent()
    third.wait_log(f"{node.policy_file}:")
    third.wait_log("found 2")
    assert len(node.kubelet.register_calls()) == 2
    node.write_policy(policy())
    node.wake(A)
    node.kubelet.wait_registered(GPU, 3)
    node.wait_listed(8)


def test_a_restart_with_a_list_too_long_for_the_kubelet_follows_the_last_good_policy(node: Node) -> None:
    """Neighbour of P04: edited while the agent was away. It is judged by the GPUs at the first look, too."""
    first = node.start_agent()
    node.wait_listed(8)
    first.kill()
    node.write_policy(policy(shared(40000, "memory: {limit: none}")))
    second = node.start_agent()
    second.wait_log(f"{GPU} would have 80000 slices on this node")
    node.kubelet.wait_registered(GPU, 2)
    node.wait_listed(8)
    second.kill()
    assert "slices: 4" in (node.run_dir / "policy-last-good.yaml").read_text()


def test_a_node_whose_late_gpus_make_the_list_too_long_is_not_ready_and_says_why(make_node: MakeNode) -> None:
    """Neighbour of P04: the policy was read before a driver answered, so that nobody could have refused it."""
    node = make_node(A, B, driver_installed=False)
    node.kubelet.start()
    node.write_policy(policy(shared(40000, "memory: {limit: none}")))
    agent = node.start_agent(HTTP)
    agent.wait_log(f"library is not at {node.gpus.path}")
    node.gpus.install()
    agent.wait_log(f"{GPU} would have 80000 slices on this node")
    said = "no policy is in force:"
    wait_page(agent, "/readyz", lambda status, text: status == 503 and said in text and "80000 slices" in text)
    assert node.kubelet.register_calls() == []
    node.write_policy(policy())
    node.wake(A)
    node.wait_listed(8)
    wait_page(agent, "/readyz", lambda status, _: status == 200)


@pytest.mark.parametrize(
    "memory",
    ["limit: 0", "limit: 0%", "limit: -1", "limit: 101%", "limit: 0.001%", "limit: 17179869184"],
)
def test_a_limit_of_zero_or_without_a_unit_refuses_the_policy(node: Node, memory: str) -> None:
    """P23."""
    node.write_policy(policy(shared(4, f"memory: {{{memory}}}")))
    agent = node.start_agent()
    agent.wait_log("rules[0].memory.limit")
    assert node.kubelet.register_calls() == []


def test_a_gpu_whose_slices_would_be_promised_nothing_offers_none_and_the_others_do(make_node: MakeNode) -> None:
    """P23: 4096 slices of 2000 MiB are 0 MiB each."""
    tiny, large = gpu(0, memory_mib=2000), gpu(1, memory_mib=4096 * 64)
    node = make_node(tiny, large)
    node.kubelet.start()
    node.write_policy(policy(shared(4096)))
    agent = node.start_agent()
    node.wait_listed(4096)
    assert {device_id.partition("::")[0] for device_id in node.ids()} == {large.uuid}
    agent.wait_log(f"{tiny.uuid}, offers nothing: 4096 slices of")


def test_a_gpu_whose_memory_nobody_knows_is_offered_without_a_limit_or_with_the_one_that_the_policy_gives(
    make_node: MakeNode,
) -> None:
    """P25: unified memory. Time slicing in four; MPS in four; MPS in four with the size in the policy."""
    unified, known = gpu(0, memory_mib=None), gpu(1, memory_mib=24576)
    mps = "{match: {}, strategy: mps, slices: 4"
    assert offered([unified, known], policy(), make_node) == {*slices(unified, 4), *slices(known, 4, 6144)}
    assert offered([unified, known], policy(mps + "}"), make_node) == {
        f"{known.uuid}::mps-{replica}-6144-25" for replica in range(4)
    }
    assert offered([unified], policy(mps + ", memory: {total: 131072Mi}}"), make_node) == {
        f"{unified.uuid}::mps-{replica}-32768-25" for replica in range(4)
    }


def offered(gpus: list[SimulatedGpu], text: str, make_node: MakeNode) -> set[str]:
    """The IDs that a node with these GPUs lists under this policy."""
    node = make_node(*gpus)
    node.kubelet.start()
    node.write_policy(text)
    node.start_agent()
    return set(node.kubelet.wait_stream(GPU, lambda stream: bool(stream.messages)).messages[-1].ids)
