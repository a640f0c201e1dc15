"""Reading a whole cluster: pages, what is left to the server, what is asked again, what is missing."""

from __future__ import annotations

import datetime
from collections import Counter

import msgspec
import pytest

from sharer.adapters.kube.access import InCluster, Kubeconfig, choose_user_access
from sharer.adapters.kube.client import FIELD_MANAGER
from sharer.adapters.kube.cluster import GPU_NODES_PAGE, PAGE, RESTARTS, TRIES, Narrowing, read_cluster
from sharer.adapters.kube.fleet import Lease, LeaseMeta, LeaseSpec, Managed, Node, lease_facts, node_facts
from sharer.core.cluster.facts import ClusterFacts
from sharer.core.errors import NodeError
from sharer.simulation.apiserver import GPU_NODE, LEASE, NODE, POD, ApiServer, Fail, Reset, node_object, pod_object
from tests.adapters.kube.lab import KubeLab

NVIDIA = "nvidia.com/gpu"


class Reading:
    """Reads with pauses that take no time."""

    def __init__(self, lab: KubeLab) -> None:
        self.client = lab.client()
        self.paused_s: list[float] = []
        self.told: Counter[str] = Counter()

    def __call__(self, narrowing: Narrowing | None = None) -> ClusterFacts:
        return read_cluster(self.client, narrowing or Narrowing(), self.told.__setitem__, pause=self.paused_s.append)


@pytest.fixture
def read(lab: KubeLab) -> Reading:
    return Reading(lab)


def fill(server: ApiServer, nodes: int, pods: int = 0) -> None:
    for number in range(nodes):
        server.put(NODE, node_object(f"n{number}", allocatable={NVIDIA: 8, "cpu": 4}))
        metadata = {"name": f"n{number}", "annotations": {"sharer.dev/lease": f"sharer/n{number}"}}
        server.put(GPU_NODE, {"metadata": metadata, "status": {"gpus": [{"uuid": f"GPU-{number}"}]}})
        spec = {"leaseDurationSeconds": 40, "renewTime": "2999-01-01T00:00:00.000000Z"}
        server.put(LEASE, {"metadata": {"name": f"n{number}", "namespace": "sharer"}, "spec": spec})
    for number in range(pods):
        server.put(POD, pod_object(f"p{number}", node="n0", phase="Running", limits={NVIDIA: 1}))


def test_lists_come_in_pages_and_progress_is_told(server: ApiServer, read: Reading) -> None:
    fill(server, GPU_NODES_PAGE + 1, PAGE + 1)
    facts = read()
    assert facts.pods.items is not None
    assert facts.gpu_nodes.items is not None
    assert facts.leases.items is not None
    assert (len(facts.pods.items), len(facts.gpu_nodes.items)) == (PAGE + 1, GPU_NODES_PAGE + 1)
    assert len(facts.leases.items) == GPU_NODES_PAGE + 1
    asked = Counter(request.resource for request in server.requests("list"))
    assert asked == {"pods": 2, "gpunodes": 2, "nodes": 1, "leases": 1}
    assert read.told["pods"] == PAGE + 1


def test_pods_that_do_not_count_are_left_to_the_server_and_those_without_gpus_are_forgotten(
    server: ApiServer, read: Reading
) -> None:
    server.put(POD, pod_object("counts", node="n", limits={NVIDIA: 1}))
    server.put(POD, pod_object("cpu", node="n", limits={"cpu": 1}))
    for name, node, phase in (("ended", "n", "Succeeded"), ("failed", "n", "Failed"), ("unbound", None, "Pending")):
        server.put(POD, pod_object(name, node=node, phase=phase, limits={NVIDIA: 1}))
    facts = read()
    assert [pod.name for pod in facts.pods.items or ()] == ["counts"]
    assert read.told["pods"] == 2


def test_a_crd_that_is_not_installed_is_no_problem_in_itself(server: ApiServer, read: Reading) -> None:
    server.fail_next(Fail(code=404), resource="gpunodes", times=None)
    facts = read()
    assert (facts.gpu_nodes.absent, facts.gpu_nodes.items, facts.gpu_nodes.problem) == (True, None, None)
    assert facts.leases.items is None


@pytest.mark.parametrize("fault", [Fail(code=503), Fail(code=429, retry_after_s=2)])
def test_a_page_that_fails_for_a_moment_is_asked_for_again_no_sooner_than_told(
    server: ApiServer, read: Reading, fault: Fail
) -> None:
    """P33."""
    fill(server, 1)
    server.fail_next(fault, resource="nodes", times=TRIES - 1)
    facts = read()
    assert len(facts.nodes.items or ()) == 1
    assert len(read.paused_s) == TRIES - 1
    assert min(read.paused_s) >= (2 if fault.retry_after_s else 0.5)


def test_a_page_that_keeps_failing_is_given_up_and_the_others_go_on(server: ApiServer, read: Reading) -> None:
    fill(server, 1)
    server.fail_next(Fail(code=503), resource="nodes", times=None)
    facts = read()
    assert facts.nodes.items is None
    assert "503" in (facts.nodes.problem or "")
    assert len(facts.gpu_nodes.items or ()) == 1
    assert server.counts()[("list", "nodes")] == TRIES


def test_nobody_is_kept_waiting_for_as_long_as_a_server_may_wish(server: ApiServer, read: Reading) -> None:
    """Neighbour of P33: Retry-After of a day."""
    server.fail_next(Fail(code=429, retry_after_s=120), resource="pods", times=None)
    assert read().pods.items is None
    assert read.paused_s == []


def test_a_list_whose_pages_have_expired_begins_again(server: ApiServer, read: Reading) -> None:
    fill(server, GPU_NODES_PAGE + 1)
    gone = Fail(code=410, reason="Expired")
    expired = iter([True])

    def told(what: str, _count: int) -> None:
        if what == "gpunodes" and next(expired, False):
            server.fail_next(gone, resource="gpunodes")

    facts = read_cluster(read.client, Narrowing(), told, pause=read.paused_s.append)
    assert len(facts.gpu_nodes.items or ()) == GPU_NODES_PAGE + 1
    assert server.counts()[("list", "gpunodes")] == 4


def test_a_list_that_expires_each_time_is_given_up(server: ApiServer, read: Reading) -> None:
    fill(server, 1)
    server.fail_next(Fail(code=410, reason="Expired"), resource="nodes", times=None)
    assert read().nodes.items is None
    assert server.counts()[("list", "nodes")] == RESTARTS + 1


def test_a_server_that_was_never_reached_is_not_waited_for(server: ApiServer, read: Reading) -> None:
    server.fail_next(Reset(), times=None)
    with pytest.raises(NodeError, match="cannot be reached"):
        read()
    assert read.paused_s == []


def test_pods_that_nobody_wants_to_know_are_not_asked_for(server: ApiServer, read: Reading) -> None:
    fill(server, 1, 1)
    assert read(Narrowing(pods=False)).pods.items is None
    assert server.requests("list", "pods") == ()


def test_selectors_are_left_to_the_server(server: ApiServer, read: Reading) -> None:
    read(Narrowing(labels="pool=a", node="n1"))
    asked = {request.resource: request.query for request in server.requests("list")}
    assert asked["nodes"]["labelSelector"] == "pool=a"
    assert asked["pods"]["fieldSelector"] == "spec.nodeName=n1,status.phase!=Succeeded,status.phase!=Failed"


def test_a_lease_is_judged_by_the_server_s_clock(server: ApiServer, read: Reading) -> None:
    fill(server, 1)
    assert read.client.server_time() is None
    (lease,) = read().leases.items or ()
    time = read.client.server_time()
    assert time is not None
    ends = datetime.datetime(2999, 1, 1, 0, 0, 40, tzinfo=datetime.UTC)
    assert abs(lease.overdue_s + (ends - time).total_seconds()) <= 2


def test_a_node_tells_its_extended_resources_and_why_it_is_not_ready() -> None:
    """Neighbour of P38: a thousand slices are "1k" to the API server."""
    made = node_object("n", allocatable={NVIDIA: "1k", "cpu": 4, "example.com/odd": "1.5"})
    made["metadata"] |= {"uid": "u", "labels": {"a": "b", "nvidia.com/gpu.product": "T4", "sharer.dev/policy": "p"}}
    made["status"]["conditions"] = [{"type": "Ready", "status": "Unknown", "reason": "Lost", "message": "no news"}]
    facts = node_facts(msgspec.convert(made, Node))
    assert facts.allocatable == {NVIDIA: 1000, "example.com/odd": None}
    assert (facts.ready, facts.not_ready_reason) == (False, "Lost: no news")
    assert facts.labels == {"nvidia.com/gpu.product": "T4", "sharer.dev/policy": "p"}
    made["status"]["conditions"] = []
    assert node_facts(msgspec.convert(made, Node)).ready is None


def test_a_lease_is_overdue_once_its_duration_has_passed() -> None:
    now = datetime.datetime(2026, 1, 1, 0, 1, tzinfo=datetime.UTC)

    def overdue_s(renewed: str | None) -> float | None:
        spec = LeaseSpec(lease_duration_seconds=40, renew_time=renewed)
        facts = lease_facts(Lease(metadata=LeaseMeta(name="n", namespace="s", uid="u"), spec=spec), now)
        assert facts is None or facts.key == "s/n"
        return None if facts is None else facts.overdue_s

    assert overdue_s("2026-01-01T00:00:30.000000Z") == -10
    assert overdue_s("2026-01-01T00:00:00Z") == 20
    assert [overdue_s(odd) for odd in (None, "yesterday", "2026-01-01T00:00:00")] == [None] * 3


@pytest.mark.parametrize(
    ("node_says", "server_notes", "overdue_s"),
    [
        ("2025-12-31T22:00:45.000000Z", "2026-01-01T00:00:45Z", -25.0),
        ("2026-01-01T02:00:10.000000Z", "2026-01-01T00:00:10Z", 10.0),
        ("2026-01-01T02:00:10.000000Z", None, -7190.0),
        ("2026-01-01T00:00:45.000000Z", "2026-01-01T00:00:10Z", -25.0),
        ("2025-12-31T22:00:45.000000Z", "soon", 7175.0),
    ],
    ids=["two hours behind", "two hours ahead, and dead", "ahead, nothing noted", "right", "noted in other words"],
)
def test_a_node_whose_clock_is_wrong_has_no_silent_agent(
    node_says: str, server_notes: str | None, overdue_s: float
) -> None:
    """Reported of heartbeats: whoever compares a time from another machine with its own clock takes it for dead."""
    now = datetime.datetime(2026, 1, 1, 0, 1, tzinfo=datetime.UTC)
    noted = (Managed(manager="kubectl", time="2026-01-01T00:00:59Z"), Managed(manager=FIELD_MANAGER, time=server_notes))
    lease = Lease(
        metadata=LeaseMeta(name="n", namespace="s", uid="u", managed_fields=noted),
        spec=LeaseSpec(lease_duration_seconds=40, renew_time=node_says),
    )
    facts = lease_facts(lease, now)
    assert facts is not None
    assert facts.overdue_s == overdue_s


def test_what_the_server_notes_of_a_renewal_is_read_from_it(server: ApiServer, read: Reading) -> None:
    fill(server, 1)
    wrong = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=2)
    read.client.renew_lease("sharer", "n0", holder="n0", duration_s=300, now=wrong)
    (lease,) = read().leases.items or ()
    assert lease.overdue_s < 0


def test_who_asks_is_chosen_in_kubectl_s_order(tmp_path_factory: pytest.TempPathFactory) -> None:
    home = tmp_path_factory.mktemp("home")
    pod = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOME": str(home)}
    assert isinstance(choose_user_access(None, None, pod), InCluster)
    assert choose_user_access(None, "a", pod) is None
    assert choose_user_access(None, None, {"HOME": str(home)}) is None
    (home / ".kube").mkdir()
    (home / ".kube" / "config").write_text("")
    assert choose_user_access(None, "a", pod) == Kubeconfig(path=home / ".kube" / "config", context="a")
    variable = {**pod, "KUBECONFIG": "/k1:/k2"}
    assert str(choose_user_access(None, None, variable)) == "the kubeconfig /k1:/k2"
    assert str(choose_user_access("/mine", None, variable)) == "the kubeconfig /mine"
