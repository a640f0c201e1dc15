"""List, then watch, for ever: whatever ends a watch, the pods end up as the API server has them."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace

import pytest

from sharer.adapters.kube.timings import KubeTimings
from sharer.adapters.kube.watches import watch_pods
from sharer.core.holders.observations import ApiTroubleKind, PodsSeen
from sharer.simulation.apiserver import POD, ApiServer, Ending, Fail, Hang, Object, Reset, pod_object
from tests.adapters.kube.lab import NODE_NAME, PATIENCE_S, SETTLED, KubeLab, names

BACKOFF = KubeTimings()


def here(name: str, **fields: object) -> Object:
    return pod_object(name, node=NODE_NAME, **fields)  # type: ignore[arg-type]  # passed through


def begin(lab: KubeLab, *pods: str) -> None:
    for name in pods:
        lab.server.put(POD, here(name))


# ---- what is told


def test_the_first_list_is_told_even_if_it_is_empty(lab: KubeLab) -> None:
    """An empty list is news: until then nothing is known at all."""
    _, told = lab.watch_pods()
    assert told.next().pods == {}


def test_only_pods_of_this_node_are_asked_for_and_told(lab: KubeLab, server: ApiServer) -> None:
    begin(lab, "mine")
    server.put(POD, pod_object("elsewhere", node="node-2"))
    server.put(POD, pod_object("unbound"))
    _, told = lab.watch_pods()
    assert names(told.next()) == ["mine"]
    server.wait_watches(1)
    server.put(POD, pod_object("elsewhere-too", node="node-2"))
    server.put(POD, here("mine-too"))
    assert names(told.next()) == ["mine", "mine-too"]
    assert {request.query["fieldSelector"] for request in server.requests()} == {"spec.nodeName=node-1"}


def test_a_snapshot_is_whole_and_never_changes_afterwards(lab: KubeLab, server: ApiServer) -> None:
    begin(lab, "a")
    _, told = lab.watch_pods()
    first = told.next()
    server.wait_watches(1)
    server.put(POD, here("b"))
    second = told.next()
    server.delete(POD, "a")
    third = told.next()
    assert [names(seen) for seen in (first, second, third)] == [["a"], ["a", "b"], ["b"]]
    assert int(first.resource_version) < int(second.resource_version) < int(third.resource_version)


def test_a_change_of_nothing_that_sharer_reads_is_not_told(lab: KubeLab, server: ApiServer) -> None:
    begin(lab, "a")
    _, told = lab.watch_pods()
    told.next()
    server.wait_watches(1)
    server.put(POD, here("a", labels={"probe": "1"}))
    server.put(POD, here("a", phase="Running"))
    (pod,) = told.next().pods.values()
    assert pod.phase == "Running"
    assert told.nothing


def test_a_list_comes_in_pages(lab: KubeLab, server: ApiServer) -> None:
    begin(lab, *(f"p{number}" for number in range(25)))
    _, told = lab.watch_pods(KubeTimings(page_limit=10))
    assert len(told.next().pods) == 25
    pages = server.requests("list", "pods")
    assert [request.query["limit"] for request in pages] == ["10", "10", "10"]
    assert all("resourceVersion" not in request.query for request in pages), "with version 0 the limit is ignored"


# ---- P29: deletions that nobody told us


def test_a_pod_that_ended_while_the_watch_was_down_is_gone_after_the_next_list(lab: KubeLab, server: ApiServer) -> None:
    """P29: state is keyed by UID; a late deletion of the old pod does not touch its successor; twice is as once."""
    server.put(POD, here("train", uid="uid1"))
    _, told = lab.watch_pods()
    assert list(told.next().pods) == ["uid1"]
    server.wait_watches(1)
    server.expire_history()
    server.interrupt_watches(Ending.RESET)
    lab.pauses.asked_s()
    server.put(POD, here("train", uid="uid2"))
    server.expire_history()
    lab.pauses.go_on()
    lab.pauses.pass_by()  # 410
    assert list(told.next().pods) == ["uid2"]
    server.wait_watches(1)
    late = {"metadata": {"name": "train", "namespace": "default", "uid": "uid1", "resourceVersion": "1"}}
    server.send_event("DELETED", late)
    server.send_event("DELETED", late)
    server.put(POD, here("train", uid="uid2", phase="Running"))
    (left,) = told.next().pods.values()
    assert (left.uid, left.phase) == ("uid2", "Running")


def test_everything_is_listed_again_on_a_timer(lab: KubeLab, server: ApiServer) -> None:
    """Neighbour of P29: a full resync, should an event ever have been lost."""
    _, told = lab.watch_pods(replace(SETTLED, resync_s=600.0))
    told.next()
    server.wait_watches(1)
    lab.clock.now_s += 601
    server.send_bookmarks()
    server.interrupt_watches(Ending.CLEAN)
    server.wait_requests(2, verb="list", resource="pods")


# ---- P34: how watches end


def test_a_watch_that_ends_at_its_timeout_goes_on_from_the_last_version(lab: KubeLab, server: ApiServer) -> None:
    _, told = lab.watch_pods(SETTLED)
    told.next()
    server.wait_watches(1)
    begin(lab, "a")
    told.next()
    server.interrupt_watches(Ending.CLEAN)
    server.wait_requests(2, verb="watch", resource="pods")
    assert server.requests("watch", "pods")[1].query["resourceVersion"] == str(server.version)
    assert len(server.requests("list", "pods")) == 1
    assert lab.pauses.none


def test_a_watch_asks_for_bookmarks_and_a_timeout(lab: KubeLab, server: ApiServer) -> None:
    lab.watch_pods(KubeTimings(watch_min_s=240, watch_max_s=300))
    (request,) = server.wait_requests(1, verb="watch", resource="pods")
    assert request.query["allowWatchBookmarks"] == "true"
    assert 240 <= int(request.query["timeoutSeconds"]) <= 300


def test_an_error_event_410_leads_to_a_new_list(lab: KubeLab, server: ApiServer) -> None:
    """P34 a: HTTP 200, then the error inside the stream."""
    begin(lab, "a")
    watch, told = lab.watch_pods()
    told.next()
    server.wait_watches(1)
    server.send_event("ERROR", {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"})
    assert 0 < lab.pauses.asked_s() <= 1.5 * BACKOFF.retry_first_s
    trouble = watch.sync.trouble
    assert trouble is not None
    assert trouble.kind is ApiTroubleKind.EXPIRED
    begin(lab, "b")
    lab.pauses.go_on()
    assert names(told.next()) == ["a", "b"]


@pytest.mark.parametrize("code", [429, 500, 504, 0])
def test_an_error_event_of_any_other_code_leads_to_a_new_list_too(lab: KubeLab, server: ApiServer, code: int) -> None:
    """Neighbour of P34: what the stream has left out before it broke off, nobody can tell."""
    begin(lab, "a")
    watch, told = lab.watch_pods()
    told.next()
    server.wait_watches(1)
    server.send_event("ERROR", {"kind": "Status", "code": code, "message": "etcdserver: request timed out"})
    assert lab.pauses.asked_s() > 0
    assert watch.sync.trouble is not None
    assert "etcdserver: request timed out" in watch.sync.trouble.message
    begin(lab, "b")
    lab.pauses.go_on()
    assert names(told.next()) == ["a", "b"]


def test_an_http_410_leads_to_a_new_list(lab: KubeLab, server: ApiServer) -> None:
    """P34 b."""
    begin(lab, "a")
    server.fail_next(Fail(code=410, reason="Expired"), verb="watch")
    _, told = lab.watch_pods()
    told.next()
    lab.pauses.pass_by()
    server.wait_watches(1)
    assert len(server.requests("list", "pods")) == 2


def test_a_page_that_is_too_old_leads_to_a_new_list(lab: KubeLab, server: ApiServer) -> None:
    """P34 b, in the middle of a list."""
    begin(lab, "a", "b", "c")
    server.fail_next(Fail(code=410, reason="Expired"), verb="list", times=1)
    _, told = lab.watch_pods(KubeTimings(page_limit=2))
    lab.pauses.pass_by()
    assert names(told.next()) == ["a", "b", "c"]


def test_410_again_right_after_the_new_list_backs_off_further_and_further(
    lab: KubeLab, server: ApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    """P34 c: no storm, one line in the log."""
    _, told = lab.watch_pods()
    told.next()
    delays_s = []
    for count in range(1, 8):
        server.wait_requests(count, verb="watch", resource="pods")
        server.wait_watches(1)
        server.send_event("ERROR", {"code": 410, "reason": "Expired", "message": "too old"})
        delays_s.append(lab.pauses.asked_s())
        lab.pauses.go_on()
    for index, delay_s in enumerate(delays_s):
        doubled_s = min(BACKOFF.retry_first_s * 2**index, BACKOFF.retry_cap_s)
        assert 0.5 * doubled_s <= delay_s <= 1.5 * doubled_s
    assert len(server.requests("list", "pods")) >= 7
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 1
    assert told.nothing, "nothing changed, so there is nothing to tell"


def test_a_watch_without_a_byte_is_given_up_a_little_after_the_server_s_own_timeout(
    lab: KubeLab, server: ApiServer
) -> None:
    """P34 d: the socket stays open, nothing comes."""
    begin(lab, "a")
    watch, told = lab.watch_pods(KubeTimings(watch_min_s=3, watch_max_s=3, watch_slack_s=0.05))
    told.next()
    server.wait_watches(1)
    server.interrupt_watches(Ending.SILENT)
    begin(lab, "b")
    lab.pauses.asked_s()
    trouble = watch.sync.trouble
    assert trouble is not None
    assert trouble.kind is ApiTroubleKind.UNREACHABLE
    assert "timed out" in trouble.message
    lab.pauses.go_on()
    assert names(told.next()) == ["a", "b"]
    assert len(server.requests("list", "pods")) == 1


def test_a_request_without_an_answer_is_given_up(lab: KubeLab, server: ApiServer) -> None:
    """P34 d, before a watch has begun."""
    server.fail_next(Hang(), verb="watch")
    _, told = lab.watch_pods(KubeTimings(answer_timeout_s=2.0))
    told.next()
    lab.pauses.pass_by()
    server.wait_watches(1)


@pytest.mark.parametrize("ending", [Ending.CUT, Ending.HALF_LINE, Ending.RESET])
def test_a_broken_watch_goes_on_from_the_last_version(lab: KubeLab, server: ApiServer, ending: Ending) -> None:
    """P34 e: half a line is no event."""
    begin(lab, "a")
    watch, told = lab.watch_pods()
    told.next()
    server.wait_watches(1)
    server.interrupt_watches(ending)
    assert lab.pauses.asked_s() <= 1.5 * BACKOFF.retry_first_s
    begin(lab, "b")
    lab.pauses.go_on()
    assert names(told.next()) == ["a", "b"]
    assert watch.sync.trouble is None


def test_a_bookmark_moves_the_version_and_the_age_and_is_not_told(lab: KubeLab, server: ApiServer) -> None:
    """P34 f: a watch that carries nothing but bookmarks."""
    watch, told = lab.watch_pods(SETTLED)
    told.next()
    server.wait_watches(1)
    server.put(POD, pod_object("elsewhere", node="node-2"))
    lab.clock.now_s += 60
    server.send_bookmarks()
    server.interrupt_watches(Ending.CLEAN)
    _, again = server.wait_requests(2, verb="watch", resource="pods")
    assert again.query["resourceVersion"] == str(server.version)
    assert watch.sync.synced_at_s == lab.clock.now_s
    assert told.nothing


def test_a_watch_without_even_a_bookmark_leads_to_a_new_list(lab: KubeLab, server: ApiServer) -> None:
    """Neighbour of P34: a version that the server has not reached yet is silence: an etcd that was restored."""
    _, told = lab.watch_pods(replace(SETTLED, watch_min_s=1, watch_max_s=1))
    told.next()
    server.wait_watches(1)
    server.send_event("BOOKMARK", {"metadata": {"resourceVersion": "999999"}})
    server.interrupt_watches(Ending.CLEAN)
    server.wait_requests(2, verb="list", resource="pods")
    assert server.requests("watch", "pods")[1].query["resourceVersion"] == "999999"
    begin(lab, "a")
    assert names(told.next()) == ["a"]


@pytest.mark.parametrize(
    "line", [b"not json\n", b'{"type":"ADDED"}\n', b'{"type":"ADDED","object":{"metadata":7}}\n', b"\xff\xfe\n"]
)
def test_an_event_that_cannot_be_read_leads_to_a_new_list(lab: KubeLab, server: ApiServer, line: bytes) -> None:
    begin(lab, "a")
    watch, told = lab.watch_pods()
    told.next()
    server.wait_watches(1)
    server.send_line(line)
    lab.pauses.asked_s()
    trouble = watch.sync.trouble
    assert trouble is not None
    assert trouble.kind is ApiTroubleKind.SERVER
    assert "cannot be read" in trouble.message
    lab.pauses.go_on()
    server.wait_requests(2, verb="list", resource="pods")


def test_a_line_beyond_all_measure_is_given_up(lab: KubeLab, server: ApiServer) -> None:
    watch, told = lab.watch_pods()
    told.next()
    server.wait_watches(1)
    server.send_line(b"x" * 9 * 2**20)
    lab.pauses.asked_s()
    trouble = watch.sync.trouble
    assert trouble is not None
    assert "an event of more than" in trouble.message


def test_an_event_of_an_unknown_type_is_skipped(lab: KubeLab, server: ApiServer) -> None:
    _, told = lab.watch_pods()
    told.next()
    server.wait_watches(1)
    server.send_event("SOMETHING", {})
    begin(lab, "a")
    assert names(told.next()) == ["a"]


def test_a_watch_that_ends_at_once_is_not_repeated_at_once(lab: KubeLab, server: ApiServer) -> None:
    """A proxy that closes every stream must not make a storm."""
    _, told = lab.watch_pods()
    told.next()
    delays_s = []
    for _ in range(3):
        server.wait_watches(1)
        server.interrupt_watches(Ending.CLEAN)
        delays_s.append(lab.pauses.asked_s())
        server.wait_watches(0)
        lab.pauses.go_on()
    assert delays_s[-1] >= 0.5 * 4 * BACKOFF.retry_first_s


# ---- P33: a server that is busy or away


def test_a_server_that_may_be_asked_again_at_once_is_given_time_all_the_same(lab: KubeLab, server: ApiServer) -> None:
    """P33: a proxy that throttles with Retry-After 0 would be asked as fast as it can refuse."""
    begin(lab, "a")
    server.fail_next(Fail(code=429, retry_after_s=0), verb="list", times=4)
    _, told = lab.watch_pods()
    paused_s = [lab.pauses.pass_by() for _ in range(4)]
    assert all(pause_s >= BACKOFF.retry_first_s / 2 for pause_s in paused_s)
    assert paused_s[-1] > paused_s[0]
    assert names(told.next()) == ["a"]


def test_a_throttled_list_waits_as_long_as_the_server_says(lab: KubeLab, server: ApiServer) -> None:
    """P33: 429 with Retry-After 2, three times; then 503; then a connection reset. Never an exit."""
    begin(lab, "a")
    server.fail_next(Fail(code=429, retry_after_s=2), verb="list", times=3)
    server.fail_next(Fail(code=503), verb="list")
    server.fail_next(Reset(), verb="list")
    watch, told = lab.watch_pods()
    for _ in range(3):
        assert 2.0 <= lab.pauses.asked_s() <= 3.0
        trouble = watch.sync.trouble
        assert trouble is not None
        assert trouble.kind is ApiTroubleKind.THROTTLED
        lab.pauses.go_on()
    lab.pauses.pass_by()
    lab.pauses.pass_by()
    assert names(told.next()) == ["a"]
    assert len(server.requests("list", "pods")) == 6


def test_a_throttled_watch_waits_as_well_and_does_not_list_again(lab: KubeLab, server: ApiServer) -> None:
    """Neighbour of P33: a 429 for the watch alone."""
    server.fail_next(Fail(code=429, retry_after_s=7), verb="watch")
    lab.watch_pods()
    assert 7.0 <= lab.pauses.pass_by() <= 10.5
    server.wait_watches(1)
    assert len(server.requests("list", "pods")) == 1


def test_a_wish_beyond_all_measure_is_not_granted(lab: KubeLab, server: ApiServer) -> None:
    server.fail_next(Fail(code=503, retry_after_s=10**9), verb="list")
    lab.watch_pods()
    assert lab.pauses.pass_by() <= 1.5 * BACKOFF.retry_after_cap_s


def test_a_load_balancer_s_page_is_an_error_like_any_other(lab: KubeLab, server: ApiServer) -> None:
    begin(lab, "a")
    server.fail_next(Fail(code=502, body="<html>bad gateway</html>"), verb="list")
    server.fail_next(Fail(code=200, body="<html>log in here</html>"), verb="list")
    watch, told = lab.watch_pods()
    for expected in ("502, <html>bad gateway</html>", "cannot be read"):
        lab.pauses.asked_s()
        trouble = watch.sync.trouble
        assert trouble is not None
        assert expected in trouble.message
        lab.pauses.go_on()
    assert names(told.next()) == ["a"]


def test_while_the_api_is_away_the_last_snapshot_stands_with_its_age(
    lab: KubeLab, server: ApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    """No news is not "no pods": nothing is told for hours, and the age is there for everybody to see."""
    caplog.set_level(logging.INFO)
    begin(lab, "a", "b")
    watch, told = lab.watch_pods()
    told.next()
    server.wait_watches(1)
    synced_at_s = lab.clock.now_s
    server.stop()
    for _ in range(20):
        lab.pauses.asked_s()
        lab.clock.now_s += 600
        lab.pauses.go_on()
    lab.pauses.asked_s()
    assert told.nothing
    assert watch.sync.synced_at_s == synced_at_s
    trouble = watch.sync.trouble
    assert trouble is not None
    assert (trouble.kind, trouble.since_s) == (ApiTroubleKind.UNREACHABLE, synced_at_s)
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 1
    server.start()
    server.delete(POD, "a")
    lab.pauses.go_on()
    assert names(told.next()) == ["b"]
    server.wait_watches(1)
    begin(lab, "c")
    assert names(told.next()) == ["b", "c"]
    assert watch.sync.trouble is None
    assert [record.getMessage() for record in caplog.records][-1].startswith("following pods")


# ---- P36: rights that are missing


@pytest.mark.parametrize("verb", ["list", "watch"])
def test_a_missing_right_is_one_clear_line_and_a_later_grant_is_picked_up(
    lab: KubeLab, server: ApiServer, verb: str, caplog: pytest.LogCaptureFixture
) -> None:
    """P36: verb, resource, scope and the rule; slow retries that say nothing new; then all is well by itself."""
    begin(lab, "a")
    server.forbid(verb, "pods")
    watch, told = lab.watch_pods()
    for _ in range(3):
        assert BACKOFF.slow_retry_s <= lab.pauses.pass_by() <= 1.5 * BACKOFF.slow_retry_s
    lab.pauses.asked_s()
    (line,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert f"may not {verb} pods in the whole cluster" in line
    assert '{apiGroups: [""], resources: [pods], verbs: [list, watch]} in a ClusterRole' in line
    assert f'cannot {verb} resource "pods"' in line
    assert "slices come back on the kubelet's and the cgroups' word" in line
    trouble = watch.sync.trouble
    assert trouble is not None
    assert trouble.kind is ApiTroubleKind.FORBIDDEN
    server.allow(verb, "pods")
    lab.pauses.go_on()
    assert names(told.next()) == ["a"]
    server.wait_watches(1)
    begin(lab, "b")
    assert names(told.next()) == ["a", "b"]
    assert watch.sync.trouble is None


def test_a_forbidden_watch_is_not_made_up_for_by_lists(lab: KubeLab, server: ApiServer) -> None:
    """Neighbour of P36 and P33: 5,000 nodes with a wrong role must not list every minute."""
    server.forbid("watch", "pods")
    lab.watch_pods()
    for _ in range(3):
        lab.pauses.pass_by()
    assert len(server.requests("list", "pods")) == 1


# ---- our own mistakes, and the end


def test_a_listener_that_fails_is_reported_and_the_watch_goes_on(
    lab: KubeLab, server: ApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[PodsSeen] = []
    heard = threading.Event()

    def changed(seen: PodsSeen) -> None:
        told.append(seen)
        if len(told) == 1:
            raise ValueError("broken listener")
        heard.set()

    lab.watch_pods(changed=changed)
    lab.pauses.pass_by()
    server.wait_watches(1)
    begin(lab, "a")
    assert heard.wait(PATIENCE_S)
    assert "broken listener" in caplog.text


def test_a_watch_can_be_stopped_in_the_middle_of_anything(lab: KubeLab, server: ApiServer) -> None:
    following, told = lab.watch_pods()
    told.next()
    server.wait_watches(1)
    following.stop()
    server.wait_watches(0)
    server.fail_next(Fail(code=503), verb="list")
    pausing, _ = lab.watch_pods()
    lab.pauses.asked_s()
    lab.pauses.end()
    pausing.stop()
    for thread in threading.enumerate():
        if thread.name == "kube-pods":  # `stop` does not wait for it for ever
            thread.join(PATIENCE_S)
            assert not thread.is_alive()


def test_a_watch_that_never_started_can_be_stopped(lab: KubeLab) -> None:
    watch_pods(lab.client(), NODE_NAME, lambda _: None).stop()
