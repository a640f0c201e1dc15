"""Events reach the API server as they are meant, by the real client and a server that speaks its protocol."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from sharer.core.change.rollout import PolicyInForce
from sharer.core.enforcement import Enforcement, Hold
from sharer.core.errors import NodeError
from sharer.core.holders.evidence import Evidence
from sharer.core.holders.ledger import Ledger
from sharer.core.holders.observations import PodPhase, PodSeen
from sharer.core.inventory import Inventory
from sharer.core.limits.limits import PromiseKey
from sharer.core.policy.enforcers import Promise
from sharer.core.tell.news import News, Reason
from sharer.core.tell.notices import BURST
from sharer.flows.state import NodeView
from sharer.flows.tell.events import Telling
from sharer.flows.tell.told import Told
from sharer.simulation.apiserver import EVENT, ApiServer, Fail, Object
from tests.adapters.kube.lab import KubeLab
from tests.core.builders import gpu, gpu_uuid, node
from tests.core.evidence import held, key, pod, seen

NOON_S = 1_800_000_000.0  # on the wall, at second 1000 of the agent's clock
A = gpu_uuid(0)
INVENTORY: Inventory = node(gpu(0))
REFUSED = PolicyInForce(refused="slices is 0")
FAULTY = NodeView(inventory=INVENTORY, faults={A: "XID 79"})


class Agent:
    """One run of an agent, as far as it tells."""

    def __init__(self, lab: KubeLab) -> None:
        self.told = Told(has_api=True)
        self.now_s = 1000.0
        client = lab.client()
        self.telling = Telling(lambda: client, self.told, "node-1", wall_s=lambda: NOON_S + self.now_s - 1000.0)

    def step(self, view: NodeView, *, after_s: float = 0.0) -> float | None:
        self.now_s += after_s
        return self.telling.step(view, self.now_s)


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer().start() as made:
        yield made


@pytest.fixture
def lab(tmp_path: Path, server: ApiServer) -> Iterator[KubeLab]:
    with contextlib.closing(KubeLab(tmp_path, server)) as made:
        yield made


def events(server: ApiServer) -> Mapping[str, Object]:
    """By reason."""
    return {event["reason"]: event for event in server.objects(EVENT)}


def pods(count: int) -> NodeView:
    """Pods that nothing holds to their promise."""
    running = seen(*(pod(f"train-{number}", uid=f"uid-{number}") for number in range(1, count + 1)))
    holds: dict[PromiseKey, Hold] = {
        ((uid, "c", None), Promise.MEMORY, A): Hold(by=None, reason="no driver limit") for uid in running.pods
    }
    ledger = Ledger(
        entries=held(*(key(replica) for replica in range(count))),
        evidence=Evidence(pods=running),
    )
    return NodeView(inventory=INVENTORY, ledger=ledger, enforcement=Enforcement(holds=holds))


def test_news_of_the_node_is_found_by_its_name_in_the_default_namespace(lab: KubeLab, server: ApiServer) -> None:
    Agent(lab).step(FAULTY)
    event = events(server)["GpuFault"]
    assert event["metadata"]["namespace"] == "default"
    assert event["involvedObject"] == {"apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": "node-1"}
    assert (event["type"], event["count"], event["source"]["component"]) == ("Warning", 1, "sharer")
    assert event["firstTimestamp"] == event["lastTimestamp"] == "2027-01-15T08:00:00Z"


def test_news_of_a_pod_is_on_the_pod_once_it_has_lasted(lab: KubeLab, server: ApiServer) -> None:
    agent, view = Agent(lab), pods(1)
    assert agent.step(view) == 1030.0
    assert events(server) == {}
    agent.step(view, after_s=30.0)
    event = events(server)["LimitNotEnforced"]
    assert (event["metadata"]["namespace"], event["involvedObject"]["uid"]) == ("default", "uid-1")
    assert event["firstTimestamp"] == "2027-01-15T08:00:00Z"
    assert event["lastTimestamp"] == "2027-01-15T08:00:30Z"


def test_a_recovery_is_a_second_event_and_no_warning(lab: KubeLab, server: ApiServer) -> None:
    agent = Agent(lab)
    agent.step(FAULTY)
    agent.step(replace(FAULTY, faults={}), after_s=60.0)
    assert {name: event["type"] for name, event in events(server).items()} == {
        "GpuFault": "Warning", "GpuRecovered": "Normal",
    }  # fmt: skip


def test_what_another_step_notes_is_told(lab: KubeLab, server: ApiServer) -> None:
    agent = Agent(lab)
    agent.telling.note(News(reason=Reason.EVICTED, message="it is evicted", pod=PodSeen(
        uid="u", cgroup_uid="u", namespace="n", name="p", phase=PodPhase.RUNNING,
    )))  # fmt: skip
    agent.step(NodeView())
    assert events(server)["Evicted"]["involvedObject"]["name"] == "p"


def test_an_agent_that_starts_again_changes_the_events_that_are_there_and_adds_none(
    lab: KubeLab, server: ApiServer
) -> None:
    view = replace(pods(3), policy=REFUSED, faults=FAULTY.faults)
    for _ in range(3):
        agent = Agent(lab)
        agent.step(view)
        agent.step(view, after_s=30.0)
    assert len(server.objects(EVENT)) == 5


def test_other_words_for_the_same_news_change_the_event(lab: KubeLab, server: ApiServer) -> None:
    agent = Agent(lab)
    agent.step(FAULTY)
    agent.step(replace(FAULTY, faults={A: "XID 119"}), after_s=400.0)
    (event,) = server.objects(EVENT)
    assert "XID 119" in event["message"]


def test_a_node_in_trouble_sends_no_more_than_a_burst_at_once(lab: KubeLab, server: ApiServer) -> None:
    agent, view = Agent(lab), pods(100)
    agent.step(view)
    assert agent.step(view, after_s=30.0) is not None
    assert len(server.objects(EVENT)) == BURST
    assert agent.told.events.sent == {"LimitNotEnforced": BURST}


def test_where_nothing_has_changed_nothing_is_asked_of_the_api_server(lab: KubeLab, server: ApiServer) -> None:
    agent = Agent(lab)
    agent.step(FAULTY)
    asked = server.counts()
    for _ in range(5):
        agent.step(FAULTY, after_s=2.0)
    assert server.counts() == asked


def test_a_missing_right_is_raised_with_the_rule_and_counted(lab: KubeLab, server: ApiServer) -> None:
    server.forbid("patch", "events")
    agent = Agent(lab)
    with pytest.raises(NodeError, match=r"resources: \[events\], verbs: \[create, patch\]"):
        agent.step(FAULTY)
    assert (agent.told.events.sent, agent.told.events.failed) == ({}, {"GpuFault": 1})


def test_what_the_api_server_did_not_take_is_told_later(lab: KubeLab, server: ApiServer) -> None:
    agent = Agent(lab)
    server.fail_next(Fail(code=500))
    with pytest.raises(NodeError):
        agent.step(FAULTY)
    agent.step(FAULTY, after_s=60.0)
    assert list(events(server)) == ["GpuFault"]


def test_until_the_api_server_is_connected_news_waits() -> None:
    told = Told(has_api=True)
    telling = Telling(lambda: None, told, "node-1")
    assert telling.step(FAULTY, 1000.0) is None
    assert told.events.sent == {}
