"""Who may do what on the simulated API server, what goes wrong on purpose, and its log and life."""

from __future__ import annotations

import http.client
import threading

import pytest

from sharer.simulation.apiserver import (
    POD,
    ApiServer,
    Fail,
    Hang,
    Reset,
    Rule,
    ServerSettings,
    config_map_object,
    pod_object,
)
from sharer.simulation.apiserver.kinds import CONFIG_MAP
from tests.simulation.apiserver.http import PODS, Http

ALL_PODS = "/api/v1/pods"
CLUSTER, DEFAULT = "at the cluster scope", 'in the namespace "default"'
WHO = 'User "system:serviceaccount:sharer:sharer-agent"'


# ---- who may do what


def test_only_tokens_of_the_present_are_known(server: ApiServer) -> None:
    assert Http(server).get(ALL_PODS).code == 200
    server.accept_tokens("new")
    assert Http(server, "new").get(ALL_PODS).code == 200
    assert Http(server, "old").get(ALL_PODS).refusal == (401, "Unauthorized")
    assert Http(server).get(ALL_PODS).code == 401


@pytest.mark.parametrize(
    ("verb", "resource", "method", "path", "subject", "scope"),
    [
        ("list", "pods", "GET", ALL_PODS, "pods", CLUSTER),
        ("watch", "pods", "GET", f"{ALL_PODS}?watch=1&timeoutSeconds=0", "pods", CLUSTER),
        ("get", "nodes", "GET", "/api/v1/nodes/n1", 'nodes "n1"', CLUSTER),
        ("create", "events", "POST", "/api/v1/namespaces/default/events", "events", DEFAULT),
        ("create", "pods/eviction", "POST", f"{PODS}/a/eviction", 'pods "a"', DEFAULT),
    ],
)
def test_a_refusal_names_verb_resource_and_scope(
    server: ApiServer, verb: str, resource: str, method: str, path: str, subject: str, scope: str
) -> None:
    """P36."""
    server.forbid(verb, resource)
    message = f'{subject} is forbidden: {WHO} cannot {verb} resource "{resource}" in API group "" {scope}'
    assert Http(server).send(method, path, {}).refusal == (403, message)
    server.allow(verb, resource)
    assert Http(server).send(method, path, {}).code != 403


def test_a_refusal_names_the_group_of_a_custom_resource(server: ApiServer) -> None:
    server.forbid("patch", "gpunodes/status")
    code, message = Http(server).apply("/apis/sharer.dev/v1alpha1/gpunodes/n1/status", {}).refusal
    assert code == 403
    assert message.startswith('gpunodes.sharer.dev "n1" is forbidden')
    assert message.endswith(f'resource "gpunodes/status" in API group "sharer.dev" {CLUSTER}')


def test_a_watch_can_be_forbidden_where_the_list_is_not(server: ApiServer) -> None:
    server.forbid("watch", "pods")
    assert Http(server).get(ALL_PODS).code == 200
    assert Http(server).get(ALL_PODS, watch=1).code == 403


def test_rules_allow_what_they_name_and_nothing_else(server: ApiServer) -> None:
    server.grant(
        [
            Rule(groups=("",), resources=("pods",), verbs=("list",)),
            Rule(groups=("",), resources=("configmaps",), verbs=("get", "list"), names=("mine",), namespace="default"),
        ]
    )
    client = Http(server)
    maps = "/api/v1/namespaces/default/configmaps"
    server.put(CONFIG_MAP, config_map_object("mine", {}))
    assert client.get(ALL_PODS).code == 200
    assert client.get(ALL_PODS, watch=1).code == 403
    assert client.get("/api/v1/nodes").code == 403
    assert client.get(f"{maps}/mine").code == 200
    assert client.get(f"{maps}/other").code == 403
    assert client.get(maps).code == 403
    assert client.get(maps, fieldSelector="metadata.name=mine").code == 200
    assert client.get("/api/v1/configmaps", fieldSelector="metadata.name=mine").code == 403


def test_an_apply_that_creates_needs_the_right_to_create(server: ApiServer) -> None:
    """And `create` with a resource name is enough for it, since the name is in the path (api-server-facts §8)."""
    path = "/apis/sharer.dev/v1alpha1/gpunodes/n1"
    body = {"apiVersion": "sharer.dev/v1alpha1", "kind": "GpuNode"}
    patch = Rule(groups=("sharer.dev",), resources=("gpunodes",), verbs=("patch",))
    server.grant([patch])
    assert Http(server).apply(path, body).code == 403
    server.grant([patch, Rule(groups=("sharer.dev",), resources=("gpunodes",), verbs=("create",), names=("n1",))])
    assert Http(server).post("/apis/sharer.dev/v1alpha1/gpunodes", {**body, "metadata": {"name": "n1"}}).code == 403
    assert Http(server).apply(path, body).code == 201


# ---- what goes wrong


def test_the_next_requests_that_match_fail_and_no_other(server: ApiServer) -> None:
    server.fail_next(Fail(code=429, retry_after_s=2), verb="list", resource="pods", times=2)
    client = Http(server)
    assert client.get("/api/v1/nodes").code == 200
    first, second, third = client.get(ALL_PODS), client.get(ALL_PODS), client.get(ALL_PODS)
    assert (first.code, second.code, third.code) == (429, 429, 200)
    assert first.headers["Retry-After"] == "2"
    assert first.json["details"]["retryAfterSeconds"] == 2


def test_faults_go_on_until_they_are_cleared(server: ApiServer) -> None:
    server.fail_next(Fail(code=503), times=None)
    client = Http(server)
    assert [client.get(ALL_PODS).code for _ in range(3)] == [503, 503, 503]
    server.clear_faults()
    assert client.get(ALL_PODS).code == 200


def test_a_load_balancer_answers_in_html(server: ApiServer) -> None:
    server.fail_next(Fail(code=502, body="<html>bad gateway</html>"))
    reply = Http(server).get(ALL_PODS)
    assert (reply.code, reply.body) == (502, b"<html>bad gateway</html>")


def test_a_connection_is_reset_before_an_answer(server: ApiServer) -> None:
    server.fail_next(Reset())
    with pytest.raises(ConnectionResetError):
        Http(server).get(ALL_PODS)


def test_a_request_hangs_until_the_faults_are_cleared(server: ApiServer) -> None:
    server.fail_next(Hang())
    ended = threading.Event()

    def ask() -> None:
        with pytest.raises(http.client.RemoteDisconnected):
            Http(server).get(ALL_PODS)
        ended.set()

    asking = threading.Thread(target=ask)
    asking.start()
    server.wait_requests(1)
    assert not ended.is_set()
    server.clear_faults()
    asking.join(10)
    assert ended.is_set()


# ---- log and life


def test_the_log_says_who_asked_what_and_what_it_got(server: ApiServer) -> None:
    server.accept_tokens("t1")
    Http(server, "t1").get(PODS, fieldSelector="spec.nodeName=n1")
    Http(server, "t2").get(f"{PODS}/a")
    Http(server, "t1").get("/version")
    listed, got, version = server.requests()
    assert (listed.verb, listed.resource, listed.namespace, listed.code) == ("list", "pods", "default", 200)
    assert (listed.query, listed.user_agent, listed.token) == ({"fieldSelector": "spec.nodeName=n1"}, "test", "t1")
    assert (got.verb, got.name, got.token, got.code) == ("get", "a", "t2", 401)
    assert (version.verb, version.resource, version.path) == ("get", None, "/version")
    assert server.counts()["list", "pods"] == 1


def test_the_log_is_bounded_and_the_counts_are_not() -> None:
    with ApiServer(ServerSettings(requests_kept=2)).start() as server:
        for _ in range(3):
            Http(server).get(ALL_PODS)
        assert [request.number for request in server.requests()] == [2, 3]
        assert server.counts()["list", "pods"] == 3


def test_a_wait_in_vain_says_for_what(server: ApiServer) -> None:
    with pytest.raises(TimeoutError, match="in vain for 1 requests to list pods"):
        server.wait_requests(1, verb="list", resource="pods", timeout_s=0.01)


def test_a_stopped_server_refuses_connections_and_comes_back_with_its_objects(server: ApiServer) -> None:
    server.put(POD, pod_object("a"))
    client, url = Http(server), server.url
    server.stop()
    server.stop()
    with pytest.raises(ConnectionRefusedError):
        client.get(ALL_PODS)
    server.start()
    assert server.url == url
    assert client.get(ALL_PODS).names == ["a"]
    with pytest.raises(RuntimeError, match="runs already"):
        server.start()


def test_a_stop_leaves_no_thread_whatever_its_clients_do(server: ApiServer) -> None:
    idle = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=10)
    idle.request("GET", ALL_PODS)
    idle.getresponse().read()
    with Http(server).watch(ALL_PODS):
        server.stop()
    idle.close()
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("apiserver")] == []


def test_deleting_what_is_not_there_is_a_mistake_of_the_test(server: ApiServer) -> None:
    with pytest.raises(KeyError, match="default/a"):
        server.delete(POD, "a")
