"""Watches of the simulated API server (api-server-facts §4): from a version, with bookmarks, and how they end."""

from __future__ import annotations

import http.client

import msgspec
import pytest

from sharer.simulation.apiserver import (
    CONFIG_MAP,
    POD,
    ApiServer,
    Ending,
    ServerSettings,
    config_map_object,
    pod_object,
)
from tests.simulation.apiserver.http import Http, events

ALL_PODS = "/api/v1/pods"


@pytest.fixture
def client(server: ApiServer) -> Http:
    return Http(server)


def test_a_watch_from_a_version_tells_everything_since(server: ApiServer, client: Http) -> None:
    server.put(POD, pod_object("before"))
    version = server.version
    server.put(POD, pod_object("a"))
    with client.watch(ALL_PODS, resourceVersion=version) as watch:
        server.put(POD, pod_object("a", phase="Running"))
        server.put(CONFIG_MAP, config_map_object("other-kind", {}))
        server.delete(POD, "a")
        assert list(events(watch, 3)) == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a")]


@pytest.mark.parametrize("query", [{}, {"resourceVersion": "0"}])
def test_a_watch_from_no_version_begins_with_what_exists(
    server: ApiServer, client: Http, query: dict[str, str]
) -> None:
    server.put(POD, pod_object("a"))
    with client.watch(ALL_PODS, **query) as watch:
        server.put(POD, pod_object("b"))
        assert list(events(watch, 2)) == [("ADDED", "a"), ("ADDED", "b")]


def test_an_object_that_leaves_or_enters_the_selector_looks_deleted_or_added(server: ApiServer, client: Http) -> None:
    version = server.version
    with client.watch(ALL_PODS, resourceVersion=version, fieldSelector="status.phase=Running") as watch:
        for phase in ("Pending", "Running", "Running", "Failed"):
            server.put(POD, pod_object("a", phase=phase))
        assert list(events(watch, 2)) == [("ADDED", "a"), ("MODIFIED", "a")]
        kind, last = watch.next()
        assert (kind, last["status"]["phase"]) == ("DELETED", "Running")
        assert last["metadata"]["resourceVersion"] == str(server.version)


def test_a_pod_made_anew_under_its_name_is_a_deletion_and_an_addition(server: ApiServer, client: Http) -> None:
    server.put(POD, pod_object("a", uid="one"))
    with client.watch(ALL_PODS, resourceVersion=server.version) as watch:
        server.put(POD, pod_object("a", uid="two"))
        (deleted, old), (added, new) = watch.next(), watch.next()
        assert (deleted, old["metadata"]["uid"], added, new["metadata"]["uid"]) == ("DELETED", "one", "ADDED", "two")


def test_a_watch_from_a_forgotten_version_is_200_and_then_an_error_event(server: ApiServer, client: Http) -> None:
    version = server.version
    server.expire_history()
    with client.watch(ALL_PODS, resourceVersion=version) as watch:
        assert watch.code == 200
        kind, status = watch.next()
        assert (kind, status["code"], status["reason"]) == ("ERROR", 410, "Expired")
        assert watch.rest() == b""


def test_history_is_bounded() -> None:
    with ApiServer(ServerSettings(history=3)).start() as server:
        versions = [server.version]
        for name in "abcd":
            server.put(POD, pod_object(name))
            versions.append(server.version)
        client = Http(server)
        with client.watch(ALL_PODS, resourceVersion=versions[0]) as too_old:
            assert too_old.next()[0] == "ERROR"
        with client.watch(ALL_PODS, resourceVersion=versions[1]) as oldest:
            assert list(events(oldest, 3)) == [("ADDED", "b"), ("ADDED", "c"), ("ADDED", "d")]


def test_a_watch_of_the_future_is_silent_until_its_timeout(server: ApiServer, client: Http) -> None:
    with client.watch(
        ALL_PODS, resourceVersion=server.version + 10, timeoutSeconds=1, allowWatchBookmarks="true"
    ) as watch:
        server.put(POD, pod_object("a"))
        assert watch.rest() == b""


def test_a_watch_ends_properly_at_its_timeout_after_a_last_bookmark(server: ApiServer, client: Http) -> None:
    with client.watch(ALL_PODS, resourceVersion=server.version, timeoutSeconds=1, allowWatchBookmarks="true") as watch:
        kind, obj = watch.next()
        assert (kind, obj["metadata"]["resourceVersion"]) == ("BOOKMARK", str(server.version))
        assert watch.rest() == b""


def test_without_being_asked_for_there_is_no_bookmark(server: ApiServer, client: Http) -> None:
    with client.watch(ALL_PODS, resourceVersion=server.version, timeoutSeconds=1) as watch:
        assert watch.rest() == b""


def test_bookmarks_come_on_a_timer_with_the_newest_version() -> None:
    with (
        ApiServer(ServerSettings(bookmark_every_s=0.01)).start() as server,
        Http(server).watch(ALL_PODS, resourceVersion=server.version, allowWatchBookmarks="true") as watch,
    ):
        server.put(CONFIG_MAP, config_map_object("elsewhere", {}))
        while watch.next()[1]["metadata"]["resourceVersion"] != str(server.version):
            pass


def test_a_watch_list_ends_its_list_with_a_marked_bookmark(server: ApiServer, client: Http) -> None:
    server.put(POD, pod_object("a"))
    asked = {"sendInitialEvents": "true", "allowWatchBookmarks": "true"}
    with client.watch(ALL_PODS, resourceVersionMatch="NotOlderThan", **asked) as watch:
        assert watch.next()[0] == "ADDED"
        kind, obj = watch.next()
        assert (kind, obj["metadata"]["annotations"]) == ("BOOKMARK", {"k8s.io/initial-events-end": "true"})
    assert client.get(ALL_PODS, watch=1, **asked).code == 422


def test_watches_are_shown_while_they_are_served_and_not_after_the_client_left(server: ApiServer, client: Http) -> None:
    version = server.version
    with client.watch(ALL_PODS, resourceVersion=version, fieldSelector="spec.nodeName=n1"):
        server.wait_watches(1)
        (info,) = server.watches()
        assert (info.resource, info.field_selector, info.since) == ("pods", "spec.nodeName=n1", version)
    server.wait_watches(0)


def test_a_cut_watch_breaks_in_the_middle_of_a_line(server: ApiServer, client: Http) -> None:
    with client.watch(ALL_PODS, resourceVersion=server.version) as watch:
        assert server.interrupt_watches(Ending.CUT) == 1
        with pytest.raises(http.client.IncompleteRead):
            watch.rest()


def test_half_a_line_ends_the_stream_properly(server: ApiServer, client: Http) -> None:
    with client.watch(ALL_PODS, resourceVersion=server.version) as watch:
        server.interrupt_watches(Ending.HALF_LINE)
        rest = watch.rest()
        assert rest
        with pytest.raises(msgspec.DecodeError):
            msgspec.json.decode(rest)


@pytest.mark.parametrize("ending", list(Ending))
def test_a_watch_that_is_interrupted_counts_no_more_at_once(server: ApiServer, client: Http, ending: Ending) -> None:
    with client.watch(ALL_PODS, resourceVersion=server.version):
        server.wait_watches(1)
        server.interrupt_watches(ending)
        assert server.watches() == ()


def test_a_reset_watch_loses_its_connection(server: ApiServer, client: Http) -> None:
    with client.watch(ALL_PODS, resourceVersion=server.version) as watch:
        server.interrupt_watches(Ending.RESET)
        with pytest.raises(ConnectionResetError):
            watch.rest()


def test_a_silent_watch_is_told_nothing_and_stays_open_until_the_server_stops(server: ApiServer, client: Http) -> None:
    with client.watch(ALL_PODS, resourceVersion=server.version) as watch:
        server.interrupt_watches(Ending.SILENT)
        server.wait_watches(0)
        server.put(POD, pod_object("a"))
        server.stop()
        with pytest.raises(http.client.IncompleteRead) as broken:
            watch.rest()
        assert broken.value.partial == b""


def test_any_event_can_be_sent_by_hand(server: ApiServer, client: Http) -> None:
    with client.watch(ALL_PODS, resourceVersion=server.version) as watch:
        server.send_event("DELETED", {"metadata": {"name": "ghost", "uid": "one"}})
        assert list(events(watch, 1)) == [("DELETED", "ghost")]
