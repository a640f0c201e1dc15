"""Writes to the simulated API server: apply, patch, status, Events, Leases, pods' ends (api-server-facts §3-§6)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharer.simulation.apiserver import BUDGET, EVENT, GPU_NODE, NODE, POD, ApiServer, node_object, pod_object
from sharer.simulation.apiserver.fields import apply
from tests.simulation.apiserver.http import PODS, Http

GPU_NODES = "/apis/sharer.dev/v1alpha1/gpunodes"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"


def gpu_node(**fields: object) -> dict[str, object]:
    return {"apiVersion": "sharer.dev/v1alpha1", "kind": "GpuNode", "metadata": {"name": "n1"}, **fields}


def pod(name: str = "a", **metadata: object) -> dict[str, object]:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, **metadata}, "spec": {"containers": []}}


# ---- create, get, patch


def test_a_created_object_gets_an_identity_and_keeps_no_status(http: Http) -> None:
    reply = http.post(PODS, {**pod(), "status": {"phase": "Running"}})
    assert reply.code == 201
    metadata = reply.json["metadata"]
    assert metadata["uid"]
    assert metadata["creationTimestamp"]
    assert metadata["namespace"] == "default"
    assert reply.json["status"] == {"phase": "Pending"}
    assert http.get(f"{PODS}/a").json == reply.json


def test_a_name_can_be_generated(http: Http) -> None:
    reply = http.post(PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "job-"}})
    assert reply.code == 201
    assert reply.json["metadata"]["name"].startswith("job-")


def test_a_second_object_of_a_name_is_refused(http: Http) -> None:
    http.post(PODS, pod())
    refused = http.post(PODS, pod())
    assert refused.refusal == (409, 'pods "a" already exists')
    assert refused.json["reason"] == "AlreadyExists"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a"}}, 400),
        (pod(namespace="other"), 400),
        (pod("Not_A_Name"), 422),
        ({"apiVersion": "v1", "kind": "Pod"}, 422),
        ([], 400),
    ],
)
def test_an_object_that_does_not_fit_its_path_is_refused(http: Http, body: object, code: int) -> None:
    assert http.post(PODS, body).code == code


def test_only_a_custom_object_must_say_what_it_is(http: Http) -> None:
    assert http.post(PODS, {"metadata": {"name": "a"}, "spec": {}}).json["kind"] == "Pod"
    assert http.post(GPU_NODES, {"metadata": {"name": "n1"}}).code == 400


def test_a_body_that_is_not_json_is_refused(http: Http) -> None:
    assert http.send("POST", PODS, {}, "application/vnd.kubernetes.protobuf").code == 415


def test_a_merge_patch_changes_and_removes(server: ApiServer, http: Http) -> None:
    server.put(NODE, node_object("n1", labels={"a": "1", "b": "2"}))
    reply = http.merge("/api/v1/nodes/n1", {"metadata": {"labels": {"a": None, "c": "3"}}})
    assert reply.json["metadata"]["labels"] == {"kubernetes.io/hostname": "n1", "b": "2", "c": "3"}


def test_each_path_writes_only_its_part_and_drops_the_rest_without_a_word(http: Http) -> None:
    http.apply(f"{GPU_NODES}/n1", gpu_node(status={"agent": "ignored"}))
    written = gpu_node(status={"agent": "1"})
    written["metadata"] = {"name": "n1", "labels": {"ignored": "yes"}}
    reply = http.apply(f"{GPU_NODES}/n1/status", written)
    assert reply.json["status"] == {"agent": "1"}
    assert "labels" not in reply.json["metadata"]
    http.apply(f"{GPU_NODES}/n1", gpu_node())
    assert http.get(f"{GPU_NODES}/n1").json["status"] == {"agent": "1"}
    assert http.merge(f"{GPU_NODES}/n1", {"status": {"agent": "2"}}).json["status"] == {"agent": "1"}


def test_a_patch_of_another_format_is_refused(server: ApiServer, http: Http) -> None:
    server.put(NODE, node_object("n1"))
    assert http.send("PATCH", "/api/v1/nodes/n1", [], "application/json-patch+json").code == 415


def test_generation_counts_changes_of_the_spec_only(http: Http) -> None:
    http.apply(f"{GPU_NODES}/n1", gpu_node(spec={"a": 1}))
    http.apply(f"{GPU_NODES}/n1/status", gpu_node(status={"b": 1}))
    assert http.get(f"{GPU_NODES}/n1").json["metadata"]["generation"] == 1
    assert http.apply(f"{GPU_NODES}/n1", gpu_node(spec={"a": 2})).json["metadata"]["generation"] == 2


def test_a_dry_run_stores_nothing(server: ApiServer, http: Http) -> None:
    assert http.post(PODS, pod(), dryRun="All").code == 201
    assert server.get(POD, "a") is None


# ---- server-side apply


def test_an_apply_creates_then_updates_and_unchanged_keeps_the_version(http: Http) -> None:
    path = f"{GPU_NODES}/n1"
    first = http.apply(path, gpu_node(spec={"a": 1}))
    again = http.apply(path, gpu_node(spec={"a": 1}))
    changed = http.apply(path, gpu_node(spec={"a": 2}))
    assert (first.code, again.code, changed.code) == (201, 200, 200)
    assert again.json == first.json
    assert changed.json["metadata"]["resourceVersion"] != first.json["metadata"]["resourceVersion"]


def test_a_field_left_out_is_removed_unless_another_manager_owns_it_too(http: Http) -> None:
    path = f"{GPU_NODES}/n1"
    http.apply(path, gpu_node(spec={"mine": 1, "ours": 1}), manager="one")
    http.apply(path, gpu_node(spec={"ours": 1, "theirs": {"deep": 1}}), manager="two")
    reply = http.apply(path, gpu_node(), manager="one")
    assert reply.json["spec"] == {"ours": 1, "theirs": {"deep": 1}}
    reply = http.apply(path, gpu_node(), manager="two")
    assert "spec" not in reply.json


def test_another_manager_s_field_is_a_conflict_without_force(http: Http) -> None:
    path = f"{GPU_NODES}/n1"
    http.apply(path, gpu_node(spec={"a": 1}), manager="sharer-agent")
    refused = http.apply(path, gpu_node(spec={"a": 2}), manager="kubectl")
    assert refused.code == 409
    assert refused.json["message"].startswith('Apply failed with 1 conflict: conflict with "sharer-agent"')
    assert http.apply(path, gpu_node(spec={"a": 2}), manager="kubectl", force="true").json["spec"] == {"a": 2}
    assert http.apply(path, gpu_node(), manager="sharer-agent").json["spec"] == {"a": 2}


def test_a_status_can_only_be_applied_to_what_exists(http: Http) -> None:
    assert http.apply(f"{GPU_NODES}/n1/status", gpu_node(status={})).code == 404


@pytest.mark.parametrize(
    ("metadata", "code"),
    [
        ({"managedFields": [{"manager": "x"}]}, 400),
        ({"uid": "wrong"}, 422),
        ({"resourceVersion": "1"}, 409),
        ({"name": "n2"}, 400),
    ],
)
def test_an_apply_with_the_wrong_metadata_is_refused(http: Http, metadata: dict[str, object], code: int) -> None:
    http.apply(f"{GPU_NODES}/n1", gpu_node())
    body = gpu_node()
    body["metadata"] = {"name": "n1", **metadata}
    assert http.apply(f"{GPU_NODES}/n1", body).code == code


def test_a_wrong_uid_is_ignored_on_the_status_path(http: Http) -> None:
    http.apply(f"{GPU_NODES}/n1", gpu_node())
    body = gpu_node(status={"a": 1})
    body["metadata"] = {"name": "n1", "uid": "wrong"}
    assert http.apply(f"{GPU_NODES}/n1/status", body).code == 200


def test_an_apply_without_a_manager_is_refused(http: Http) -> None:
    assert http.apply(f"{GPU_NODES}/n1", gpu_node(), manager="").code == 422


def test_managed_fields_name_manager_and_subresource(http: Http) -> None:
    http.apply(f"{GPU_NODES}/n1", gpu_node(spec={"a": 1}))
    http.apply(f"{GPU_NODES}/n1/status", gpu_node(status={"b": {"c": 1}}))
    managed = http.get(f"{GPU_NODES}/n1").json["metadata"]["managedFields"]
    assert [(one["manager"], one.get("subresource"), one["fieldsV1"]) for one in managed] == [
        ("test", None, {"f:spec": {"f:a": {}}}),
        ("test", "status", {"f:status": {"f:b": {"f:c": {}}}}),
    ]


documents = st.recursive(
    st.integers(0, 3),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
).filter(lambda value: isinstance(value, dict))


@given(first=documents, second=documents, other=documents)
def test_an_apply_twice_is_as_once_and_the_last_one_wins(first: Any, second: Any, other: Any) -> None:
    """Any: random documents."""
    one, two = ("one", ""), ("two", "")
    live, owners = apply({}, {}, first, one, force=True)
    live, owners = apply(live, owners, other, two, force=True)
    once = apply(live, owners, second, one, force=True)
    assert apply(*once, second, one, force=True) == once
    assert apply(*once, {}, one, force=True)[1].keys() <= {two}

    def holds(obj: Any, wanted: Any) -> bool:
        return obj == wanted or (
            isinstance(obj, dict)
            and isinstance(wanted, dict)
            and all(key in obj and holds(obj[key], value) for key, value in wanted.items())
        )

    assert holds(once[0], second)


# ---- sizes


def test_what_etcd_cannot_hold_is_a_500_and_what_cannot_be_received_a_413(http: Http) -> None:
    big = http.apply(f"{GPU_NODES}/n1", gpu_node(spec={"a": "x" * 1_600_000}))
    assert big.refusal == (500, "etcdserver: request is too large")
    assert http.apply(f"{GPU_NODES}/n1", gpu_node(spec={"a": "x" * 3_200_000})).code == 413


# ---- Events and Leases


@pytest.mark.parametrize(
    ("namespace", "about", "code"),
    [("default", "default", 201), ("other", "default", 422), ("default", "", 201), ("other", "", 422)],
)
def test_an_event_lies_beside_what_it_is_about(http: Http, namespace: str, about: str, code: int) -> None:
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "a.1", "namespace": namespace},
        "involvedObject": {"kind": "Pod", "name": "a", **({"namespace": about} if about else {})},
    }
    assert http.apply(f"/api/v1/namespaces/{namespace}/events/a.1", event).code == code


def test_an_event_of_a_fixed_name_is_updated_in_place(server: ApiServer, http: Http) -> None:
    for count in (1, 2):
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "involvedObject": {"kind": "Pod", "namespace": "default", "name": "a"},
            "count": count,
        }
        http.apply("/api/v1/namespaces/default/events/a.1", event)
    (stored,) = server.objects(EVENT)
    assert stored["count"] == 2


@pytest.mark.parametrize(
    ("spec", "code"),
    [
        ({"renewTime": "2026-01-01T00:00:00.123456Z", "leaseDurationSeconds": 40}, 201),
        ({"renewTime": "2026-01-01T00:00:00Z"}, 500),
        ({"leaseDurationSeconds": 0}, 422),
    ],
)
def test_a_lease_wants_six_decimals_and_a_duration(http: Http, spec: dict[str, object], code: int) -> None:
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "spec": spec}
    assert http.apply(f"{LEASES}/n1", lease).code == code


# ---- the end of pods


def eviction(name: str = "a", **options: object) -> dict[str, object]:
    return {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": name, "namespace": "default"},
        "deleteOptions": options,
    }


def test_an_eviction_marks_the_pod_and_again_is_accepted_again(server: ApiServer, http: Http) -> None:
    server.put(POD, pod_object("a", uid="u1", node="n1", phase="Running"))
    assert http.post(f"{PODS}/a/eviction", eviction(preconditions={"uid": "u1"})).code == 201
    evicted = server.get(POD, "a")
    assert evicted is not None
    assert evicted["metadata"]["deletionTimestamp"]
    (condition,) = evicted["status"]["conditions"]
    assert (condition["type"], condition["reason"]) == ("DisruptionTarget", "EvictionByEvictionAPI")
    version = server.version
    assert http.post(f"{PODS}/a/eviction", eviction(preconditions={"uid": "u1"})).code == 201
    assert server.version == version


def test_a_disruption_budget_blocks_with_a_cause_that_tells_it_from_throttling(server: ApiServer, http: Http) -> None:
    server.put(POD, pod_object("a", node="n1", labels={"app": "web"}))
    spec = {"selector": {"matchLabels": {"app": "web"}}}
    server.put(BUDGET, {"metadata": {"name": "web"}, "spec": spec, "status": {"disruptionsAllowed": 0}})
    refused = http.post(f"{PODS}/a/eviction", eviction())
    assert refused.refusal == (429, "Cannot evict pod as it would violate the pod's disruption budget.")
    assert [cause["reason"] for cause in refused.json["details"]["causes"]] == ["DisruptionBudget"]
    server.put(BUDGET, {"metadata": {"name": "web"}, "spec": spec, "status": {"disruptionsAllowed": 1}})
    assert http.post(f"{PODS}/a/eviction", eviction(), dryRun="All").code == 201
    assert http.post(f"{PODS}/a/eviction", eviction()).code == 201


@pytest.mark.parametrize(
    ("body", "code"),
    [(eviction(preconditions={"uid": "other"}), 409), (eviction(name="b"), 400), (eviction(name=""), 400)],
)
def test_an_eviction_of_another_pod_is_refused(
    server: ApiServer, http: Http, body: dict[str, object], code: int
) -> None:
    server.put(POD, pod_object("a", uid="u1", node="n1"))
    assert http.post(f"{PODS}/a/eviction", body).code == code


def test_an_eviction_of_nobody_is_a_404_and_one_without_grace_removes_at_once(server: ApiServer, http: Http) -> None:
    assert http.post(f"{PODS}/a/eviction", eviction()).code == 404
    server.put(POD, pod_object("a", node="n1"))
    assert http.post(f"{PODS}/a/eviction", eviction(gracePeriodSeconds=0)).code == 201
    assert server.get(POD, "a") is None


def test_a_bound_pod_is_marked_and_an_unbound_one_is_gone(server: ApiServer, http: Http) -> None:
    server.put(POD, pod_object("bound", node="n1"))
    server.put(POD, pod_object("unbound"))
    assert http.delete(f"{PODS}/bound").code == 200
    assert http.delete(f"{PODS}/unbound").code == 200
    (left,) = server.objects(POD)
    assert (left["metadata"]["name"], left["metadata"]["deletionGracePeriodSeconds"]) == ("bound", 30)
    assert http.delete(f"{PODS}/bound", gracePeriodSeconds=0).code == 200
    assert server.objects(POD) == ()


def test_a_deletion_can_insist_on_the_uid(server: ApiServer, http: Http) -> None:
    server.put(POD, pod_object("a", uid="u1"))
    assert http.delete(f"{PODS}/a", {"preconditions": {"uid": "u2"}}).code == 409
    assert http.delete(f"{PODS}/a", {"preconditions": {"uid": "u1"}}).code == 200


def test_a_finalizer_keeps_an_object(server: ApiServer, http: Http) -> None:
    server.put(GPU_NODE, {"metadata": {"name": "n1", "finalizers": ["x/y"]}})
    http.delete(f"{GPU_NODES}/n1")
    kept = server.get(GPU_NODE, "n1")
    assert kept is not None
    assert "deletionTimestamp" in kept["metadata"]
