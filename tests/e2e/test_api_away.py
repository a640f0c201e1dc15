"""The agent beside an API server that is slow, silent, forbidding or forgetful: the kubelet never notices."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

from sharer.adapters.kube.timings import KubeTimings
from sharer.flows.look.recover import RECOVER_ANNOTATION
from sharer.simulation.apiserver import Ending, Hang
from sharer.simulation.kubelet import Hang as ListHangs
from sharer.simulation.kubelet import Phase
from tests.e2e.api import SOURCE, Api
from tests.e2e.gpus import GPU, A, B, policy, shared, slices
from tests.e2e.node import Node
from tests.e2e.process import ENDS_S
from tests.e2e.reported import wait_report

EACH = {(verb, resource): 1 for verb in ("list", "watch") for resource in ("pods", "nodes", "configmaps")}
ALLOCATE_S = 1.0  # less than a `List` that hangs is waited for
API_S = KubeTimings().answer_timeout_s  # for so long an API server that is silent is waited for


def test_200_allocations_cost_the_api_not_one_request(node: Node, api: Api) -> None:
    """P33: one list and one watch of pods, Node and ConfigMap, whatever the kubelet asks."""
    api.put_policies(default=policy())
    node.start_agent(*api.flags, "--publish=off")  # which has its own time
    node.wait_listed(8)
    api.server.wait_watches(3)
    with node.plugin() as plugin:
        for number in range(200):
            plugin.allocate([node.ids()[number % 8]])
    node.kubelet.start_pod("train", {GPU: 1})
    assert api.asked() == EACH


def test_no_answer_to_the_kubelet_waits_for_the_api(node: Node, api: Api) -> None:
    """P12: it accepts connections and says nothing, from one moment to the next."""
    agent = node.start_agent(api.only_pods)
    node.wait_listed(8)
    api.server.wait_watches(2)
    api.server.fail_next(Hang(), times=None)
    api.server.interrupt_watches(Ending.RESET)
    began_s = time.monotonic()
    pod = node.kubelet.start_pod("train", {GPU: 1})
    assert time.monotonic() - began_s < API_S
    assert pod.phase is Phase.RUNNING
    agent.wait_log(f"holds {pod.ids(GPU)[0]}")


def test_no_answer_to_the_kubelet_waits_for_an_api_server_and_a_list_of_pods_that_both_hang(
    node: Node, api: Api
) -> None:
    """Contract row 36, pitfall 27, P12: every call of `List` hangs, and so does every request to the API server."""
    api.put_policies(default=policy())
    agent = node.start_agent(*api.flags)
    node.wait_listed(8)
    api.server.wait_watches(3)
    api.server.fail_next(Hang(), times=None)
    api.server.interrupt_watches(Ending.RESET)
    node.kubelet.on_next_podresources_call(*[ListHangs()] * 100)
    asked = len(node.kubelet.podresources_calls())
    took_s = []
    for number in range(4):
        began_s = time.monotonic()
        assert node.kubelet.start_pod(f"p{number}", {GPU: 2}).phase is Phase.RUNNING
        took_s.append(time.monotonic() - began_s)
        node.kubelet.wait_for(lambda: len(node.kubelet.podresources_calls()) > asked)  # from now on it waits for one
    assert min(took_s) < ALLOCATE_S
    assert agent.terminate() < ENDS_S


def test_an_agent_registers_gives_and_ends_with_an_api_that_never_answers(node: Node, api: Api) -> None:
    """The last good policy is in force, though the ConfigMap cannot be read this time."""
    api.put_policies(default=policy(shared(2)))
    first = node.start_agent(*api.flags)
    node.wait_listed(4)
    first.kill()
    api.server.fail_next(Hang(), times=None)
    began_s = time.monotonic()
    agent = node.start_agent(*api.flags)
    node.kubelet.wait_registered(GPU, 2)
    node.wait_listed(4)
    assert node.kubelet.start_pod("train", {GPU: 1}).phase is Phase.RUNNING
    assert time.monotonic() - began_s < API_S
    agent.wait_log(f"{SOURCE} has not been read yet")
    assert agent.terminate() < ENDS_S


def test_a_renewed_token_is_used_without_a_restart(node: Node, api: Api) -> None:
    """P35: every request carries the token in the file, also after the one from the start is known no more."""
    api.server.accept_tokens("t1")
    api.put_policies(default=policy())
    agent = node.start_agent(*api.flags)
    node.wait_listed(8)
    api.server.wait_watches(3)
    assert {request.token for request in api.server.requests()} == {"t1"}
    api.write_token("t2")
    api.server.accept_tokens("t2")
    api.server.interrupt_watches(Ending.RESET)
    api.server.wait_watches(3)
    api.put_policies(default=policy(shared(2)))
    agent.wait_log("policy in force", count=2)
    assert {request.token for request in api.server.requests() if request.code == 200} == {"t1", "t2"}


def test_without_any_right_there_is_one_line_for_each_and_the_node_is_shared_all_the_same(node: Node, api: Api) -> None:
    """P36: a role that was forgotten. The mounted policy stands in, and the node counts as without labels."""
    api.put_policies(default=policy(shared(2)))
    api.put_node(policy="a100")
    api.server.grant([])
    agent = node.start_agent(*api.flags)
    node.wait_listed(8)
    pod = node.kubelet.start_pod("train", {GPU: 1})
    agent.wait_log(f"default/train (main) holds {pod.ids(GPU)[0]}")
    for resource in ("pods", "nodes", "configmaps"):
        said = agent.wait_log(f"sharer may not list {resource}")
        assert f'{{apiGroups: [""], resources: [{resource}], verbs: [list, watch]}}' in said
        api.server.wait_requests(1, verb="list", resource=resource)
    lines = [line for line in agent.said("WARNING sharer may not") if "trying again" in line]
    assert len(lines) == 3
    report = wait_report(node, lambda one: bool(one.missing()), "what is missing")
    assert any(one.startswith("pods: sharer may not list pods") for one in report.missing())


def test_an_operator_ends_a_fatal_fault_by_an_annotation_that_is_newer(node: Node, api: Api) -> None:
    """P14: DESIGN §3. An older one changes nothing, and the log says since when the fault is there."""
    agent = node.start_agent(api.only_pods)
    node.wait_listed(8)
    api.server.wait_watches(2)
    node.gpus.wait_for_calls("nvmlEventSetWait_v2", 1)
    node.gpus.xid(A.uuid, 79)
    node.wait_unhealthy(slices(A, 4, 20480))
    now = datetime.now(UTC)
    api.put_node({RECOVER_ANNOTATION: f"{A.uuid}@{(now - timedelta(minutes=1)).isoformat()}"})
    agent.wait_log("XID 79 (GPU has fallen off the bus) was last seen at ")
    assert node.unhealthy() == set(slices(A, 4, 20480))
    api.put_node({RECOVER_ANNOTATION: f"{A.uuid}@{datetime.now(UTC).isoformat()}"})
    node.wait_unhealthy([])
    agent.wait_log(f"{A.uuid} is healthy again")
    node.gpus.xid(A.uuid, 79)
    node.wait_unhealthy(slices(A, 4, 20480))
    api.put_node({RECOVER_ANNOTATION: f"{B.uuid}@{datetime.now(UTC).isoformat()}"})
    agent.wait_log(f"no fault of {B.uuid} is waiting for a repair")
    assert node.unhealthy() == set(slices(A, 4, 20480))
