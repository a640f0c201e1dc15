"""Whoever stays above its promise is asked to end where the policy says so, and asked as Kubernetes wants it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sharer.core.change.rollout import PolicyInForce
from sharer.core.errors import NodeError
from sharer.core.holders.evidence import Evidence
from sharer.core.holders.ledger import Ledger
from sharer.core.holders.observations import PodPhase, PodSeen, PodsSeen
from sharer.core.limits.excess import Excess
from sharer.core.policy.model import MemoryPolicy, OnExceed
from sharer.core.ports.api import ApiEvent, Eviction
from sharer.core.quantities import GIB
from sharer.core.tell.news import News, Reason
from sharer.flows.state import NodeState, NodeView
from sharer.flows.tell.evict import AGAIN_S, STALE_S, Evicting
from sharer.flows.tell.told import WITHOUT_API, Told
from tests.core.builders import policy, rule, time_slicing
from tests.core.evidence import seen

UID = "0e1f8a3b-0000-4000-8000-00000000000a"
OTHER = "0e1f8a3b-0000-4000-8000-00000000000b"
OVER = Excess(
    key=((UID, "main", "1" * 64), "GPU-a"),
    used_bytes=2 * GIB,
    promise_bytes=GIB,
    since_s=0.0,
    over_s=60.0,
    readings=2,
    last_s=60.0,
    evict_after_s=60.0,
)
JOB = PodSeen(uid=UID, cgroup_uid=UID, namespace="train", name="job", phase=PodPhase.RUNNING)
MESSAGE = "pod train/job: container main uses more of GPU-a than the 1 GiB it was promised"


class ApiServer:
    """Decides about evictions as it was told to."""

    def __init__(self, *outcomes: Eviction | str) -> None:
        self._outcomes = list(outcomes)
        self.asked: list[tuple[str, str, str]] = []

    def evict(self, namespace: str, name: str, uid: str) -> Eviction:
        self.asked.append((namespace, name, uid))
        outcome = self._outcomes.pop(0)
        if isinstance(outcome, Eviction):
            return outcome
        raise NodeError(outcome)

    def tell(self, event: ApiEvent) -> None:
        raise AssertionError("an eviction tells no Event by itself")


class EvictLab:
    """The step, with what it tells and says."""

    def __init__(self, *outcomes: Eviction | str) -> None:
        self.server, self.told = ApiServer(*outcomes), Told(has_api=True)
        self.noted: list[News] = []
        self.evicting = Evicting(lambda: self.server, self.told, self.noted.append)

    def step(self, *excesses: Excess, at_s: float = 60.0, pods: PodsSeen | None = None) -> float | None:
        evidence = Evidence(pods=seen(JOB) if pods is None else pods)
        return self.evicting.step(NodeView(excesses=excesses, ledger=Ledger(evidence=evidence)), at_s)


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_a_pod_whose_time_is_over_is_evicted_by_name_and_uid(caplog: pytest.LogCaptureFixture) -> None:
    lab = EvictLab(Eviction.ACCEPTED)
    lab.step(OVER)
    assert lab.server.asked == [("train", "job", UID)]
    assert said(caplog) == [f"{MESSAGE}; it is evicted"]
    assert lab.told.evictions.counts == {"accepted": 1}


def test_an_eviction_is_told_on_the_pod() -> None:
    lab = EvictLab(Eviction.ACCEPTED)
    lab.step(OVER)
    (news,) = lab.noted
    assert (news.reason, news.pod) == (Reason.EVICTED, JOB)
    assert news.message.endswith("than the 1 GiB it was promised, and the policy says onExceed: evict")


@pytest.mark.parametrize(
    "young",
    [
        replace(OVER, over_s=59.0),
        replace(OVER, readings=1),
        replace(OVER, evict_after_s=None),
        replace(OVER, last_s=None),
    ],
    ids=["patience", "one reading", "not wanted", "unknown now"],
)
def test_a_pod_whose_time_is_not_over_is_left_alone(young: Excess) -> None:
    lab = EvictLab()
    lab.step(young)
    assert lab.server.asked == []


def test_what_was_read_long_ago_ends_nobody() -> None:
    lab = EvictLab()
    lab.step(OVER, at_s=60.0 + STALE_S + 1.0)
    assert lab.server.asked == []


def test_a_pod_that_a_budget_keeps_is_asked_again_after_a_while(caplog: pytest.LogCaptureFixture) -> None:
    lab = EvictLab(Eviction.BLOCKED, Eviction.ACCEPTED)
    assert lab.step(OVER) == 60.0 + AGAIN_S
    assert lab.noted == []
    assert lab.step(OVER, at_s=61.0) == 60.0 + AGAIN_S
    lab.step(OVER, at_s=60.0 + AGAIN_S)
    assert len(lab.server.asked) == 2
    assert said(caplog) == [
        f"{MESSAGE}; a disruption budget does not allow to evict it now; asked again in 30 s",
        f"{MESSAGE}; it is evicted",
    ]
    assert lab.told.evictions.counts == {"blocked": 1, "accepted": 1}


def test_two_containers_of_a_pod_end_it_once() -> None:
    lab = EvictLab(Eviction.ACCEPTED)
    lab.step(OVER, replace(OVER, key=((UID, "side", "2" * 64), "GPU-a")))
    assert len(lab.server.asked) == 1


@pytest.mark.parametrize("pod", [replace(JOB, is_deleting=True), replace(JOB, phase=PodPhase.FAILED)])
def test_a_pod_that_is_ending_is_not_asked(pod: PodSeen) -> None:
    lab = EvictLab()
    assert lab.step(OVER, pods=seen(pod)) is None
    assert lab.server.asked == []


def test_a_static_pod_cannot_be_evicted_and_that_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    lab = EvictLab()
    for at_s in (60.0, 65.0):
        lab.step(OVER, at_s=at_s, pods=seen(replace(JOB, uid="mirror")))
    assert said(caplog) == [f"{MESSAGE}; a static pod cannot be evicted"]


def test_a_pod_that_the_api_does_not_tell_is_not_guessed(caplog: pytest.LogCaptureFixture) -> None:
    lab = EvictLab()
    lab.step(OVER, pods=seen())
    assert lab.server.asked == []
    assert [line.partition("; ")[2] for line in said(caplog)] == [
        "it is not evicted, since the API server does not tell its pod"
    ]


def test_a_missing_right_is_raised_after_all_were_asked_counted_and_tried_again_later() -> None:
    other = replace(JOB, uid=OTHER, cgroup_uid=OTHER, name="other")
    lab = EvictLab("pods/eviction is forbidden", Eviction.ACCEPTED, Eviction.GONE)
    both = (OVER, replace(OVER, key=((OTHER, "main", "2" * 64), "GPU-a")))
    with pytest.raises(NodeError, match="pods/eviction is forbidden"):
        lab.step(*both, pods=seen(JOB, other))
    assert [name for _, name, _ in lab.server.asked] == ["job", "other"]
    assert lab.told.evictions.counts == {"failed": 1, "accepted": 1}
    lab.step(OVER, at_s=60.0 + AGAIN_S)
    assert lab.told.evictions.counts == {"failed": 1, "accepted": 1, "gone": 1}


def test_until_the_api_server_is_connected_nobody_is_asked() -> None:
    evicting = Evicting(lambda: None, Told(has_api=True), lambda news: None)
    view = NodeView(excesses=(OVER,), ledger=Ledger(evidence=Evidence(pods=seen(JOB))))
    assert evicting.step(view, 60.0) is None


# What the report says.


def state(memory: MemoryPolicy) -> NodeState:
    made = NodeState()
    made.change(policy=PolicyInForce(policy=policy(rule(time_slicing(4), memory=memory))))
    return made


EVICT = MemoryPolicy(on_exceed=OnExceed.EVICT)


def test_without_the_api_it_is_said_that_nobody_can_be_evicted() -> None:
    node = state(EVICT)
    assert Told(has_api=False).take_over(node) == WITHOUT_API
    assert node.view.evictions.problem == WITHOUT_API


@pytest.mark.parametrize("memory", [MemoryPolicy(), MemoryPolicy(on_exceed=OnExceed.EVICT, enforce=("driver",))])
def test_where_the_policy_evicts_nobody_nothing_is_in_the_way(memory: MemoryPolicy) -> None:
    """Off by default, and without `watch` nobody is seen."""
    node = state(memory)
    assert Told(has_api=False).take_over(node) is None
    assert node.view.evictions.problem is None


def test_what_the_api_server_refused_is_in_the_report() -> None:
    lab = EvictLab("pods/eviction is forbidden")
    with pytest.raises(NodeError):
        lab.step(OVER)
    node = state(EVICT)
    assert lab.told.take_over(node) is None
    assert node.view.evictions.problem == "pods/eviction is forbidden"
