"""What sharer writes: apply, status, Events, evictions, a Lease; and the rights that all of it needs."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import replace

import pytest

from sharer.adapters.kube.calls import NODES, Resource
from sharer.adapters.kube.client import KubeClient
from sharer.adapters.kube.errors import ApiError
from sharer.adapters.kube.watches import watch_config_map, watch_node
from sharer.core.holders.observations import ApiTroubleKind, ConfigMapSeen, NodeSeen
from sharer.core.ports.api import ApiEvent, Eviction
from sharer.simulation.apiserver import (
    BUDGET,
    EVENT,
    GPU_NODE,
    LEASE,
    NODE,
    POD,
    ApiServer,
    Fail,
    Rule,
    node_object,
    pod_object,
)
from tests.adapters.kube.lab import NODE_NAME, KubeLab, Told

GPU_NODES = Resource(group="sharer.dev", version="v1alpha1", plural="gpunodes", kind="GpuNode", namespaced=False)
NOW = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.timezone(datetime.timedelta(hours=1)))

POD_EVENT = ApiEvent(
    kind="Pod",
    namespace="ml",
    name="train",
    uid="uid1",
    reason="LimitNotEnforced",
    message="no enforcer holds it",
    about="main",
    is_warning=True,
    count=1,
    first_s=0.0,
    last_s=60.0,
    node_name=NODE_NAME,
)
NODE_EVENT = replace(POD_EVENT, kind="Node", namespace=None, name=NODE_NAME, uid="n1", reason="GpuFault")


@pytest.fixture
def client(lab: KubeLab) -> KubeClient:
    return lab.client()


# ---- apply and status


def test_an_apply_creates_changes_and_takes_back(client: KubeClient, server: ApiServer) -> None:
    first = client.apply(GPU_NODES, NODE_NAME, {"spec": {"a": 1, "b": 1}})
    again = client.apply(GPU_NODES, NODE_NAME, {"spec": {"a": 1, "b": 1}})
    assert again == first
    client.apply(GPU_NODES, NODE_NAME, {"spec": {"a": 2}})
    stored = server.get(GPU_NODE, NODE_NAME)
    assert stored is not None
    assert stored["spec"] == {"a": 2}
    assert stored["metadata"]["uid"] == first.uid
    assert {request.content_type for request in server.requests("patch")} == {"application/apply-patch+yaml"}


def test_a_status_is_applied_after_its_object(client: KubeClient, server: ApiServer) -> None:
    with pytest.raises(ApiError) as missing:
        client.apply(GPU_NODES, NODE_NAME, {"status": {"agent": "1"}}, subresource="status")
    assert (missing.value.code, missing.value.kind) == (404, ApiTroubleKind.REFUSED)
    client.apply(GPU_NODES, NODE_NAME, {})
    client.apply(GPU_NODES, NODE_NAME, {"status": {"agent": "1"}}, subresource="status")
    stored = server.get(GPU_NODE, NODE_NAME)
    assert stored is not None
    assert stored["status"] == {"agent": "1"}


def test_a_schema_that_does_not_know_a_field_is_a_refusal_and_no_server_fault(
    client: KubeClient, server: ApiServer
) -> None:
    """It comes as HTTP 500, and trying again would go on for ever (api-server-facts §3)."""
    server.fail_next(
        Fail(code=500, reason="", message="failed to create typed patch object (/n1): .status.new: not declared")
    )
    with pytest.raises(ApiError) as refused:
        client.apply(GPU_NODES, NODE_NAME, {})
    assert refused.value.kind is ApiTroubleKind.REFUSED


def test_a_label_is_ours_to_set_and_to_remove(client: KubeClient, server: ApiServer) -> None:
    server.put(NODE, node_object(NODE_NAME, labels={"theirs": "1"}))
    client.apply(NODES, NODE_NAME, {"metadata": {"labels": {"sharer.dev/product": "A100"}}})
    assert client.node(NODE_NAME).labels["sharer.dev/product"] == "A100"
    client.apply(NODES, NODE_NAME, {"metadata": {}})
    assert client.node(NODE_NAME).labels == {"kubernetes.io/hostname": NODE_NAME, "theirs": "1"}


# ---- Events


def test_the_same_news_is_one_event_however_often_it_is_told(client: KubeClient, server: ApiServer) -> None:
    client.tell(POD_EVENT)
    client.tell(replace(POD_EVENT, count=2, last_s=120.0))
    (event,) = server.objects(EVENT)
    assert event["metadata"]["namespace"] == "ml"
    assert event["involvedObject"] == {
        "apiVersion": "v1", "kind": "Pod", "namespace": "ml", "name": "train", "uid": "uid1",
    }  # fmt: skip
    assert (event["type"], event["reason"], event["count"]) == ("Warning", "LimitNotEnforced", 2)
    assert (event["firstTimestamp"], event["lastTimestamp"]) == ("1970-01-01T00:00:00Z", "1970-01-01T00:02:00Z")


@pytest.mark.parametrize("change", [{"uid": "uid2"}, {"reason": "OverPromise"}, {"about": "other"}, {"name": "test"}])
def test_other_news_is_another_event(client: KubeClient, server: ApiServer, change: dict[str, str]) -> None:
    client.tell(POD_EVENT)
    client.tell(replace(POD_EVENT, **change))  # type: ignore[arg-type]  # all strings
    assert len(server.objects(EVENT)) == 2


def test_news_about_a_node_lies_in_the_default_namespace(client: KubeClient, server: ApiServer) -> None:
    client.tell(NODE_EVENT)
    (event,) = server.objects(EVENT)
    assert event["metadata"]["namespace"] == "default"
    assert "namespace" not in event["involvedObject"]


def test_a_long_name_and_a_long_message_still_make_an_event(client: KubeClient, server: ApiServer) -> None:
    client.tell(replace(POD_EVENT, name="a" * 228 + "-.-" + "b" * 22, message="x" * 5000))
    (event,) = server.objects(EVENT)
    assert len(event["metadata"]["name"]) <= 253
    assert len(event["message"]) == 1024


# ---- evictions and the Lease


def test_exactly_the_pod_that_was_meant_is_evicted(client: KubeClient, server: ApiServer) -> None:
    server.put(POD, pod_object("a", uid="u1", node=NODE_NAME))
    assert client.evict("default", "a", "other") is Eviction.GONE
    assert client.evict("default", "b", "u1") is Eviction.GONE
    assert client.evict("default", "a", "u1") is Eviction.ACCEPTED
    assert client.evict("default", "a", "u1") is Eviction.ACCEPTED
    pod = server.get(POD, "a")
    assert pod is not None
    assert pod["metadata"]["deletionGracePeriodSeconds"] == 30


def test_a_disruption_budget_is_told_from_throttling(client: KubeClient, server: ApiServer) -> None:
    """Both are 429; only the cause tells them apart (api-server-facts §5)."""
    server.put(POD, pod_object("a", uid="u1", node=NODE_NAME))
    server.fail_next(Fail(code=429, retry_after_s=3), resource="pods/eviction")
    with pytest.raises(ApiError) as throttled:
        client.evict("default", "a", "u1")
    assert (throttled.value.kind, throttled.value.retry_after_s) == (ApiTroubleKind.THROTTLED, 3.0)
    server.put(BUDGET, {"metadata": {"name": "all"}, "spec": {"selector": {}}, "status": {"disruptionsAllowed": 0}})
    assert client.evict("default", "a", "u1") is Eviction.BLOCKED


def test_a_lease_is_renewed_in_the_form_that_the_server_takes(client: KubeClient, server: ApiServer) -> None:
    client.renew_lease("sharer", NODE_NAME, holder=NODE_NAME, duration_s=40, now=NOW)
    (lease,) = server.objects(LEASE)
    assert lease["spec"] == {
        "holderIdentity": NODE_NAME,
        "leaseDurationSeconds": 40,
        "renewTime": "2026-01-02T02:04:05.000000Z",
    }


# ---- rights


@pytest.mark.parametrize(
    ("verb", "resource", "verbs", "role"),
    [
        ("get", "nodes", "get", "a ClusterRole"),
        ("create", "events", "create, patch", "a ClusterRole, or a Role in namespace ml"),
        ("create", "pods/eviction", "create", "a ClusterRole, or a Role in namespace ml"),
    ],
)
def test_a_missing_right_names_its_rule_and_is_missed_no_more_once_granted(
    client: KubeClient, server: ApiServer, verb: str, resource: str, verbs: str, role: str
) -> None:
    """P36: 403 on node get, on events create, on evictions; then allow."""
    server.put(NODE, node_object(NODE_NAME))
    server.put(POD, pod_object("train", namespace="ml", uid="uid1", node=NODE_NAME))
    calls: dict[str, Callable[[], object]] = {
        "nodes": lambda: client.node(NODE_NAME),
        "events": lambda: client.tell(POD_EVENT),
        "pods/eviction": lambda: client.evict("ml", "train", "uid1"),
    }
    server.forbid(verb, resource)
    with pytest.raises(ApiError) as refused:
        calls[resource]()
    assert refused.value.kind is ApiTroubleKind.FORBIDDEN
    assert f'{{apiGroups: [""], resources: [{resource}], verbs: [{verbs}]}} in {role}.' in str(refused.value)
    assert f'cannot {verb} resource "{resource}"' in str(refused.value)
    server.allow(verb, resource)
    calls[resource]()


LEAST_RIGHTS = (
    Rule(groups=("",), resources=("pods",), verbs=("list", "watch")),
    Rule(groups=("sharer.dev",), resources=("gpunodes",), verbs=("create", "patch")),
    Rule(groups=("sharer.dev",), resources=("gpunodes/status",), verbs=("patch",)),
    Rule(groups=("",), resources=("nodes",), verbs=("get", "list", "watch", "patch")),
    Rule(groups=("",), resources=("events",), verbs=("create", "patch")),
    Rule(groups=("",), resources=("pods/eviction",), verbs=("create",)),
    Rule(
        groups=("",),
        resources=("configmaps",),
        verbs=("list", "watch"),
        names=("sharer-policy",),
        namespace="sharer",
    ),
    Rule(groups=("coordination.k8s.io",), resources=("leases",), verbs=("create", "patch"), namespace="sharer"),
)


def test_these_rights_are_enough_for_everything_and_each_is_used(lab: KubeLab, client: KubeClient) -> None:
    """api-server-facts §8, with list and watch of nodes for labels and annotations, and no get where apply does."""
    server = lab.server
    server.put(NODE, node_object(NODE_NAME))
    server.put(POD, pod_object("a", uid="u1", node=NODE_NAME))
    server.grant(LEAST_RIGHTS)
    node: Told[NodeSeen | None] = Told()
    policies: Told[ConfigMapSeen | None] = Told()
    lab.watch_pods()
    lab.run(watch_node(client, NODE_NAME, node, pause=lab.pauses))
    lab.run(watch_config_map(client, "sharer", "sharer-policy", policies, pause=lab.pauses))
    server.wait_watches(3)
    client.apply(GPU_NODES, NODE_NAME, {})
    client.apply(GPU_NODES, NODE_NAME, {"status": {}}, subresource="status")
    client.apply(NODES, NODE_NAME, {"metadata": {"labels": {"sharer.dev/x": "y"}}})
    client.node(NODE_NAME)
    client.tell(POD_EVENT)
    client.evict("default", "a", "u1")
    client.renew_lease("sharer", NODE_NAME, holder=NODE_NAME, duration_s=40, now=NOW)
    assert {request.code for request in server.requests()} <= {200, 201}
    assert lab.pauses.none
    used = {(request.verb, request.resource) for request in server.requests()}
    created = {("create", "gpunodes"), ("create", "events"), ("create", "leases")}  # by the applies that found nothing
    granted = {(verb, resource) for rule in LEAST_RIGHTS for verb in rule.verbs for resource in rule.resources}
    assert used | created == granted
