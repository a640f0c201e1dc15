"""Allocate, GetPreferredAllocation, PreStartContainer and options, over real gRPC on a real socket."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharer.adapters.kubelet.counters import Tally
from sharer.adapters.kubelet.feed import DeviceFeed
from sharer.adapters.kubelet.server import PluginServer
from sharer.adapters.kubelet.wire import prefer_any
from sharer.core.edits import ContainerEdits
from sharer.core.errors import NodeError, RequestError
from sharer.core.ports.kubelet import ResourceOptions
from sharer.kubeletapi import deviceplugin_pb2 as api
from tests.adapters.kubelet.node import PATIENCE_S, Answers, Node, preferred_request


def test_each_container_request_gets_one_response_in_order(node: Node) -> None:
    """Contract row 31: with fewer, the kubelet leaks the IDs."""
    asked = [["c"], ["a", "b"], ["d"]]
    answer = node.allocate(*asked)
    assert [r.envs["SHARER_DEVICE_IDS"] for r in answer.container_responses] == ["c", "a,b", "d"]
    assert len(node.allocate(["a"]).container_responses) == 1


def test_a_response_carries_every_part_of_the_edits(node: Node) -> None:
    [response] = node.allocate(["a"]).container_responses
    assert dict(response.envs) == {"SHARER_DEVICE_IDS": "a", "Z": "1"}
    assert [(m.container_path, m.host_path, m.read_only) for m in response.mounts] == [
        ("/run/inside", "/run/outside", True),
        ("/scratch", "/scratch", False),
    ]
    assert [(d.container_path, d.host_path, d.permissions) for d in response.devices] == [
        ("/dev/nvidia0", "/dev/nvidia0", "rwm")
    ]
    assert [c.name for c in response.cdi_devices] == ["nvidia.com/gpu=0"]
    assert not response.annotations


def test_the_order_of_ids_in_a_request_does_not_change_the_answer(node: Node) -> None:
    """Contract row 31."""
    assert node.allocate(["a", "b"]) == node.allocate(["b", "a"])


def test_the_same_id_may_be_allocated_again_and_again(node: Node) -> None:
    """Contract rows 33 and 34: init container, sidecar, app container; a lost checkpoint."""
    assert node.allocate(["a"]) == node.allocate(["a"]) == node.allocate(["a"])


def test_what_cannot_run_is_refused_in_words_that_the_pods_author_reads(node: Node) -> None:
    """Contract row 32: an error naming the ID, never an empty answer; and nothing is left behind."""
    with pytest.raises(grpc.RpcError) as refused:
        node.allocate(["a"], ["bad"])
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert refused.value.details() == (
        "device ID 'bad' cannot run: its GPU is at fault; delete the pod to get another GPU"
    )
    assert len(node.allocate(["a"]).container_responses) == 1


def test_a_failure_of_ours_is_an_internal_error_and_one_traceback_in_the_log(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise KeyError("a bug")

    assert isinstance(node.answers, Answers)
    node.answers.before_answering = fail
    for _ in range(3):
        with pytest.raises(grpc.RpcError) as failed:
            node.allocate(["a"])
        assert failed.value.code() is grpc.StatusCode.INTERNAL
        assert failed.value.details() == "sharer failed to answer Allocate (KeyError: 'a bug'); its log says more"
    errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(errors) == 1
    assert errors[0].exc_info is not None


def test_answers_can_be_replaced_while_the_server_runs(node: Node) -> None:
    class Others(Answers):
        def allocate(self, ids: Sequence[str]) -> ContainerEdits:
            return ContainerEdits(env=(("NEW", "yes"),))

    node.allocate(["a"])
    node.answers = Others()
    [response] = node.allocate(["a"]).container_responses
    assert dict(response.envs) == {"NEW": "yes"}


def test_a_preference_is_what_the_answers_say(node: Node) -> None:
    """Contract row 28."""
    assert node.prefer(["a", "b", "c"], ["a"], 2) == ["a", "c"]


def test_a_preference_never_fails(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    """Contract row 29: an error here rejects the pod."""

    def fail() -> None:
        raise RequestError("no advice")

    assert isinstance(node.answers, Answers)
    node.answers.before_answering = fail
    assert node.prefer(["c", "b", "a"], ["c"], 2) == ["c", "a"]
    assert node.prefer(["a"], [], 3) == ["a"]
    assert node.prefer(["a"], ["x"], 2) == ["x", "a"]
    assert node.prefer([], [], 0) == []
    assert "GetPreferredAllocation failed" in caplog.text


IDS = st.lists(st.sampled_from([f"GPU-{gpu}::ts-{number}" for gpu in range(2) for number in range(6)]))


@given(available=IDS, must=IDS, size=st.integers(-2, 15))
def test_the_preference_of_last_resort_is_lawful(available: list[str], must: list[str], size: int) -> None:
    """Contract rows 28 and 29: of the right size, unique, must-includes first, nothing unheard of, deterministic."""
    [answer] = prefer_any(preferred_request(available, must, size)).container_responses
    chosen = list(answer.deviceIDs)
    everything = set(available) | set(must)
    assert len(chosen) == len(set(chosen)) == min(max(size, 0), len(everything))
    assert set(chosen) <= everything
    assert set(must) <= set(chosen) or set(chosen) <= set(must)
    [again] = prefer_any(preferred_request(available[::-1], must, size)).container_responses
    assert list(again.deviceIDs) == chosen


def test_a_request_of_65000_ids_and_six_mib_is_received(node: Node) -> None:
    """Contract row 30, P04: gRPC's own limit of 4 MiB does not apply."""
    ids = [f"GPU-5a3f8e1c-0000-4000-8000-{'0' * 40}::ts-{number}-20480" for number in range(65_000)]
    assert sum(map(len, ids)) > 4 << 20
    assert preferred_request(ids, [], 1).ByteSize() > 4 << 20
    assert len(node.prefer(ids, [], 8)) == 8


@pytest.mark.parametrize("required", [False, True])
@pytest.mark.parametrize("preferred", [False, True])
def test_options_are_those_of_the_resource(start: Callable[..., Node], required: bool, preferred: bool) -> None:
    """Contract row 3."""
    options = start(pre_start_required=required, preferred_allocation=preferred).stub.GetDevicePluginOptions(
        api.Empty()
    )
    assert options.pre_start_required is required
    assert options.get_preferred_allocation_available is preferred


def test_a_start_that_must_wait_is_a_failed_precondition(start: Callable[..., Node]) -> None:
    """Contract row 39: the kubelet keeps the pod and tries again."""
    node = start(pre_start_required=True)
    node.pre_start("a", "b")
    with pytest.raises(grpc.RpcError) as delayed:
        node.pre_start("bad")
    assert delayed.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert delayed.value.details() == "the limit of 'bad' does not hold yet; the start is tried again"
    assert isinstance(node.answers, Answers)
    assert node.answers.started == [["a", "b"]]


def test_a_start_that_was_not_asked_for_is_harmless(node: Node) -> None:
    """Contract row 3: an unflagged call is answered, and does nothing."""
    node.pre_start("bad")
    assert isinstance(node.answers, Answers)
    assert node.answers.started == []


def test_a_call_in_flight_is_answered_before_the_server_ends(node: Node) -> None:
    called, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        called.set()
        go_on.wait(PATIENCE_S)

    assert isinstance(node.answers, Answers)
    node.answers.before_answering = wait
    with ThreadPoolExecutor() as threads:
        answer = threads.submit(node.allocate, ["a"])
        assert called.wait(PATIENCE_S)
        ended = threads.submit(node.server.end, PATIENCE_S)
        go_on.set()
        assert len(answer.result(PATIENCE_S).container_responses) == 1
        ended.result(PATIENCE_S)


def test_sixteen_calls_run_at_once_beside_two_streams(start: Callable[..., Node]) -> None:
    """Contract row 37: an open stream holds a thread, and no call waits for one."""
    node = start(pre_start_required=True)
    for _ in range(2):
        node.watch().next()
    all_inside = threading.Barrier(16)

    def wait_for_the_others() -> None:
        all_inside.wait(PATIENCE_S)

    assert isinstance(node.answers, Answers)
    node.answers.before_answering = wait_for_the_others
    with ThreadPoolExecutor(16) as callers:
        calls = [callers.submit(node.allocate, ["a"]) for _ in range(8)]
        calls += [callers.submit(node.pre_start, "a") for _ in range(8)]  # type: ignore[arg-type]  # only waited for
        for call in calls:
            call.result(PATIENCE_S)


def test_requests_are_counted_by_method_and_code(node: Node) -> None:
    node.allocate(["a"])
    for _ in range(2):
        with pytest.raises(grpc.RpcError):
            node.allocate(["bad"])
    node.prefer(["a"], [], 1)
    node.watch().next()
    assert node.tally.snapshot().requests == {
        ("Allocate", "OK"): 1,
        ("Allocate", "INVALID_ARGUMENT"): 2,
        ("GetPreferredAllocation", "OK"): 1,
        ("ListAndWatch", "OK"): 1,
    }


def test_a_socket_that_cannot_be_made_is_an_error_that_names_it(tmp_path: Path) -> None:
    """Contract rows 16 and 17: what is at that path already is not ours, and stays."""
    (tmp_path / "s.sock").touch()
    server = PluginServer(
        path=tmp_path / "s.sock",
        options=ResourceOptions(),
        feed=DeviceFeed((), burst_s=0),
        answers=Answers,
        tally=Tally(),
        stream_changed=lambda: None,
    )
    with pytest.raises(NodeError, match=r"cannot make the socket .*s\.sock"):
        server.start()
    server.end(grace_s=1)
    assert (tmp_path / "s.sock").is_file()
