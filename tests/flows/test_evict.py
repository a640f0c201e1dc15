"""Whoever stays above its promise is asked to end where the policy says so, and asked as Kubernetes wants it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sharer.core.errors import NodeError
from sharer.core.excess import Excess
from sharer.core.observations import PodPhase, PodSeen, PodsSeen
from sharer.core.ports import ApiEvent, Eviction
from sharer.core.quantities import GIB
from sharer.flows.evict import AGAIN_S, Evicting

UID = "0e1f8a3b-0000-4000-8000-00000000000a"
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


def pods(*found: PodSeen) -> PodsSeen:
    return PodsSeen(pods={pod.uid: pod for pod in found}, synced_at_s=0.0, resource_version="1")


def test_a_pod_whose_time_is_over_is_evicted_by_name_and_uid() -> None:
    server = ApiServer(Eviction.ACCEPTED)
    assert Evicting(server).step([OVER], pods(JOB), 60.0) == f"{MESSAGE}; it is evicted"
    assert server.asked == [("train", "job", UID)]


def test_a_pod_whose_time_is_not_over_is_left_alone() -> None:
    server = ApiServer()
    for young in (replace(OVER, over_s=59.0), replace(OVER, readings=1), replace(OVER, evict_after_s=None)):
        assert Evicting(server).step([young], pods(JOB), 60.0) is None


def test_a_pod_is_asked_once_and_again_after_a_while() -> None:
    server = ApiServer(Eviction.BLOCKED, Eviction.ACCEPTED)
    evicting = Evicting(server)
    assert evicting.step([OVER], pods(JOB), 0.0) == (
        f"{MESSAGE}; a disruption budget does not allow to evict it now; asked again in 30 s"
    )
    assert evicting.step([OVER], pods(JOB), AGAIN_S - 1.0) is None
    assert evicting.step([OVER], pods(JOB), AGAIN_S) == f"{MESSAGE}; it is evicted"


def test_two_containers_of_a_pod_end_it_once() -> None:
    server = ApiServer(Eviction.ACCEPTED)
    other = replace(OVER, key=((UID, "side", "2" * 64), "GPU-a"))
    assert Evicting(server).step([OVER, other], pods(JOB), 0.0) == f"{MESSAGE}; it is evicted"


@pytest.mark.parametrize("pod", [replace(JOB, is_deleting=True), replace(JOB, phase=PodPhase.FAILED)])
def test_a_pod_that_is_ending_is_not_asked(pod: PodSeen) -> None:
    assert Evicting(ApiServer()).step([OVER], pods(pod), 0.0) is None


def test_a_static_pod_cannot_be_evicted_and_that_is_said() -> None:
    static = replace(JOB, uid="mirror")
    assert Evicting(ApiServer()).step([OVER], pods(static), 0.0) == f"{MESSAGE}; a static pod cannot be evicted"


@pytest.mark.parametrize("known", [None, pods()])
def test_a_pod_that_the_api_does_not_tell_is_not_guessed(known: PodsSeen | None) -> None:
    said = Evicting(ApiServer()).step([OVER], known, 0.0)
    assert said is not None
    assert said.endswith("it is not evicted, since the API server does not tell its pod")


def test_a_missing_right_is_told_and_tried_again_later() -> None:
    server = ApiServer("pods/eviction is forbidden", Eviction.GONE)
    evicting = Evicting(server)
    assert evicting.step([OVER], pods(JOB), 0.0) == f"{MESSAGE}; it could not be evicted: pods/eviction is forbidden"
    assert evicting.step([OVER], pods(JOB), 1.0) is None
    assert evicting.step([OVER], pods(JOB), AGAIN_S) == f"{MESSAGE}; it has gone by itself"
