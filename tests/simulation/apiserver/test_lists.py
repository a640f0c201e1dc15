"""Lists of the simulated API server: selectors, pages and versions as measured (api-server-facts §4)."""

from __future__ import annotations

import pytest

from sharer.simulation.apiserver import KINDS, NODE, POD, ApiServer, node_object, pod_object
from tests.simulation.apiserver.http import PODS, Http

ALL_PODS = "/api/v1/pods"


@pytest.mark.parametrize(
    ("selector", "found"),
    [
        ("", ["a", "b", "c"]),
        ("spec.nodeName=n1", ["a", "c"]),
        ("spec.nodeName==n1,status.phase=Running", ["c"]),
        ("status.phase!=Running", ["a", "b"]),
        ("metadata.name=b", ["b"]),
        ("metadata.namespace=other", ["c"]),
        ("spec.nodeName=", ["b"]),
    ],
)
def test_a_field_selector_lets_through_what_it_names(
    server: ApiServer, http: Http, selector: str, found: list[str]
) -> None:
    server.put(POD, pod_object("a", node="n1"))
    server.put(POD, pod_object("b"))
    server.put(POD, pod_object("c", namespace="other", node="n1", phase="Running"))
    assert http.get(ALL_PODS, fieldSelector=selector).names == found


@pytest.mark.parametrize(
    ("selector", "found"),
    [
        ("app=web", ["a"]),
        ("app!=web", ["b", "c"]),
        ("app in (web,db)", ["a", "b"]),
        ("app notin (web), tier", ["b"]),
        ("!app", ["c"]),
        ("tier=back,app=db", ["b"]),
    ],
)
def test_a_label_selector_lets_through_what_it_names(
    server: ApiServer, http: Http, selector: str, found: list[str]
) -> None:
    server.put(POD, pod_object("a", labels={"app": "web"}))
    server.put(POD, pod_object("b", labels={"app": "db", "tier": "back"}))
    server.put(POD, pod_object("c"))
    assert http.get(ALL_PODS, labelSelector=selector).names == found


def test_a_field_that_cannot_be_selected_by_is_named(http: Http) -> None:
    code, message = http.get(ALL_PODS, fieldSelector="spec.hostname=x").refusal
    assert code == 400
    assert message.endswith("field label not supported: spec.hostname")


def test_a_namespaced_list_holds_only_its_namespace(server: ApiServer, http: Http) -> None:
    server.put(POD, pod_object("a"))
    server.put(POD, pod_object("b", namespace="other"))
    assert http.get(PODS).names == ["a"]


def test_items_of_built_in_kinds_go_without_kind_and_single_objects_with_it(server: ApiServer, http: Http) -> None:
    server.put(POD, pod_object("a"))
    (item,) = http.get(ALL_PODS).json["items"]
    assert "kind" not in item
    assert http.get(f"{PODS}/a").json["kind"] == "Pod"


def test_pages_show_one_moment_whatever_happens_between_them(server: ApiServer, http: Http) -> None:
    for name in "abcde":
        server.put(POD, pod_object(name))
    first = http.get(ALL_PODS, limit=2)
    version, token = first.json["metadata"]["resourceVersion"], first.json["metadata"]["continue"]
    server.delete(POD, "d")
    server.put(POD, pod_object("f"))
    second = http.get(ALL_PODS, **{"limit": 2, "continue": token})
    third = http.get(ALL_PODS, **{"limit": 2, "continue": second.json["metadata"]["continue"]})
    assert first.names + second.names + third.names == ["a", "b", "c", "d", "e"]
    assert "continue" not in third.json["metadata"]
    assert {page.json["metadata"]["resourceVersion"] for page in (first, second, third)} == {version}


@pytest.mark.parametrize("selector", [";;;", "pool=a/b", "a//b", "pool in (x y)", "-a", "pool=" + "x" * 64])
def test_a_label_selector_with_a_word_that_no_label_can_have_is_refused(http: Http, selector: str) -> None:
    refused = http.get(ALL_PODS, labelSelector=selector)
    assert (refused.code, "unable to parse requirement" in refused.json["message"]) == (400, True)


def test_how_many_remain_is_said_only_without_a_selector(server: ApiServer, http: Http) -> None:
    for name in "abc":
        server.put(POD, pod_object(name, node="n1"))
    assert http.get(ALL_PODS, limit=1).json["metadata"]["remainingItemCount"] == 2
    selected = http.get(ALL_PODS, limit=1, fieldSelector="spec.nodeName=n1").json["metadata"]
    assert selected["continue"]
    assert "remainingItemCount" not in selected


@pytest.mark.parametrize(
    "query", [{"resourceVersion": "0"}, {"resourceVersion": "1", "resourceVersionMatch": "NotOlderThan"}]
)
def test_the_limit_is_ignored_where_the_answer_comes_from_the_cache(
    server: ApiServer, http: Http, query: dict[str, str]
) -> None:
    for name in "abc":
        server.put(POD, pod_object(name))
    assert http.get(ALL_PODS, limit=1, **query).names == ["a", "b", "c"]


def test_an_old_page_is_refused_with_a_token_that_continues_with_what_is_there_now(
    server: ApiServer, http: Http
) -> None:
    for name in "abc":
        server.put(POD, pod_object(name))
    token = http.get(ALL_PODS, limit=1).json["metadata"]["continue"]
    server.expire_history()
    server.put(POD, pod_object("d"))
    refused = http.get(ALL_PODS, **{"limit": 1, "continue": token})
    assert refused.code == 410
    assert refused.json["reason"] == "Expired"
    assert http.get(ALL_PODS, **{"continue": refused.json["metadata"]["continue"]}).names == ["b", "c", "d"]


@pytest.mark.parametrize("token", ["rubbish", "e30=", "%%%"])
def test_a_token_that_was_never_given_out_is_refused(http: Http, token: str) -> None:
    assert http.get(ALL_PODS, **{"continue": token}).code == 400


def test_a_page_may_not_name_a_version(server: ApiServer, http: Http) -> None:
    server.put(POD, pod_object("a"))
    server.put(POD, pod_object("b"))
    token = http.get(ALL_PODS, limit=1).json["metadata"]["continue"]
    assert http.get(ALL_PODS, **{"continue": token, "resourceVersion": "5"}).code == 400


def test_an_exact_version_of_the_past_is_too_old(server: ApiServer, http: Http) -> None:
    version = server.version
    server.put(POD, pod_object("a"))
    asked = http.get(ALL_PODS, resourceVersion=version, resourceVersionMatch="Exact")
    assert asked.refusal == (410, "The resourceVersion for the provided list is too old.")


def test_a_version_of_the_future_is_too_large(server: ApiServer, http: Http) -> None:
    asked = http.get(ALL_PODS, resourceVersion=server.version + 1)
    assert asked.code == 504
    assert asked.json["message"].startswith("Too large resource version")


def test_an_unknown_resource_is_refused_in_plain_text(http: Http) -> None:
    """As every path of a kind whose definition was deleted (api-server-facts §3)."""
    reply = http.get("/apis/sharer.dev/v1alpha1/nothings")
    assert (reply.code, reply.body) == (404, b"404 page not found\n")


def test_a_missing_object_is_named(http: Http) -> None:
    assert http.get("/apis/sharer.dev/v1alpha1/gpunodes/n1").refusal == (404, 'gpunodes.sharer.dev "n1" not found')


def test_discovery_names_every_served_resource(server: ApiServer, http: Http) -> None:
    assert http.get("/version").json["gitVersion"] == "v1.36.2"
    assert http.get("/readyz").body == b"ok"
    assert http.get("/api").json["versions"] == ["v1"]
    groups = {group["name"] for group in http.get("/apis").json["groups"]}
    assert groups == {kind.group for kind in KINDS} - {""} >= {"apps", "coordination.k8s.io", "policy", "sharer.dev"}
    core = {resource["name"] for resource in http.get("/api/v1").json["resources"]}
    assert {"pods", "pods/status", "pods/eviction", "nodes", "configmaps", "events", "namespaces"} <= core
    (gpu_nodes, _) = http.get("/apis/sharer.dev/v1alpha1").json["resources"]
    assert (gpu_nodes["name"], gpu_nodes["namespaced"]) == ("gpunodes", False)


def test_a_cluster_scoped_kind_has_no_namespace(server: ApiServer, http: Http) -> None:
    server.put(NODE, node_object("n1", labels={"a": "b"}))
    assert http.get("/api/v1/nodes", labelSelector="a=b").names == ["n1"]
    assert http.get("/api/v1/namespaces/default/nodes").code == 404
