"""The fake kubelet registers, re-registers and loses plugins as the real one does (kubelet-contract §2, §3)."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from sharer.kubeletapi import deviceplugin_pb2 as pb
from sharer.simulation.kubelet import Block, Capacity, Die, Ignore, Phase, Refuse, SocketState
from tests.fakes.bare_plugin import BarePlugin, device_list
from tests.fakes.clock import Clock
from tests.simulation.kubelet.node import FAST, GPU, IMPATIENT, Node, fake_node, refusal

UNKNOWN = grpc.StatusCode.UNKNOWN


def test_a_registered_plugin_is_asked_for_options_and_its_list_becomes_the_capacity() -> None:
    """§2.1, §4: healthy and unhealthy count, only healthy is allocatable."""
    with fake_node() as node:
        node.registered(device_list("abc", unhealthy="d"))
        node.kubelet.wait_capacity(GPU, 4, 3)
        (call,) = node.kubelet.register_calls(GPU)
        assert (call.error, call.socket, call.live_streams, call.calls_in_progress) == (None, SocketState.SERVING, 0, 0)
        assert call.deadline_s is not None
        assert 5 < call.deadline_s <= 15  # what is left of 15 s when it arrives
        (stream,) = node.kubelet.live_streams(GPU)
        assert stream.messages[0].ids == ("a", "b", "c", "d")
        assert stream.messages[0].size_bytes == len(device_list("abc", unhealthy="d"))


def test_another_version_is_refused() -> None:
    """§2.2"""
    with fake_node() as node:
        plugin = node.plugin("a")
        assert refusal(plugin, version="v1alpha") == (
            UNKNOWN,
            'requested API version "v1alpha" is not supported by kubelet. Supported version is ["v1beta1"]',
        )
        assert node.kubelet.capacity(GPU) is None


@pytest.mark.parametrize(
    "name",
    [
        "gpu",
        "kubernetes.io/gpu",
        "foo.kubernetes.io/gpu",
        "requests.foo/gpu",
        "Foo.io/gpu",
        "a.io/b/c",
        "a.io/-g",
        "/g",
        "a.io/" + "g" * 64,
        "a" * 245 + "/gpu",
    ],
)
def test_a_name_the_kubelet_does_not_like_is_refused(name: str) -> None:
    """§2.3"""
    with fake_node() as node:
        assert refusal(node.plugin("a", name)) == (UNKNOWN, f'the ResourceName "{name}" is invalid')


@pytest.mark.parametrize("name", ["a.io/g_p.u", "a.io/" + "g" * 63, "a" * 244 + "/gpu"])
def test_a_name_at_the_edge_is_accepted(name: str) -> None:
    """§2.3"""
    with fake_node() as node:
        node.registered("a", name)
        node.kubelet.wait_capacity(name, 1)


def test_an_endpoint_that_does_not_serve_fails_after_the_dial_time() -> None:
    """§2.1 step 5: absent, dead, or merely listening without HTTP/2 settings are all the same."""
    with fake_node(IMPATIENT) as node:
        folder = node.kubelet.device_plugin_dir
        plugin = node.plugin("a")
        os.rename(folder / "bare.sock", folder / "elsewhere.sock")
        failed = (UNKNOWN, "failed to dial device plugin: context deadline exceeded")
        assert refusal(plugin) == failed
        with socket.socket(socket.AF_UNIX) as mute:
            mute.bind(str(folder / "bare.sock"))
            assert refusal(plugin) == failed
            mute.listen()
            assert refusal(plugin) == failed
        states = [call.socket for call in node.kubelet.register_calls()]
        assert states == [SocketState.ABSENT, SocketState.DEAD, SocketState.SERVING]


def test_an_endpoint_that_speaks_another_protocol_fails_too() -> None:
    """§2.1 step 5"""
    with fake_node(IMPATIENT) as node, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(node.kubelet.device_plugin_dir / "mail.sock"))
        listener.listen()

        def greet() -> None:
            with contextlib.suppress(OSError):  # the listener is shut down below
                while True:
                    connection, _ = listener.accept()
                    with connection, contextlib.suppress(BrokenPipeError):  # a probe that has gone already
                        connection.sendall(b"220 mail.example.com ESMTP\r\n")

        greeter = threading.Thread(target=greet)
        greeter.start()
        plugin = node.plugin("a")
        plugin.endpoint = "mail.sock"
        try:
            assert refusal(plugin)[1] == "failed to dial device plugin: context deadline exceeded"
        finally:
            plugin.endpoint = "bare.sock"
            listener.shutdown(socket.SHUT_RDWR)
            greeter.join()


def test_a_register_deadline_shorter_than_the_dial_hides_the_cause() -> None:
    """§2.2"""
    with fake_node() as node:
        plugin = node.plugin("a")
        plugin.endpoint = "nowhere.sock"
        assert refusal(plugin, timeout_s=0.1)[0] is grpc.StatusCode.DEADLINE_EXCEEDED
        plugin.endpoint = "bare.sock"


def test_a_plugin_without_options_is_refused() -> None:
    """§2.2: GetDevicePluginOptions is mandatory."""
    with fake_node() as node:
        plugin = node.plugin("a")
        server = grpc.server(ThreadPoolExecutor(1))
        server.add_insecure_port(f"unix:{node.kubelet.device_plugin_dir}/empty.sock")
        server.start()
        plugin.endpoint = "empty.sock"
        code, text = refusal(plugin)
        server.stop(0).wait()
        plugin.endpoint = "bare.sock"
        assert code is UNKNOWN
        assert text.startswith("failed to get device plugin options: rpc error: code = Unimplemented desc = ")


def test_the_endpoint_is_only_joined_to_the_folder() -> None:
    """§2.1: a sub-path works, an absolute path lands under the folder, where nothing is."""
    with fake_node(IMPATIENT) as node:
        (node.kubelet.device_plugin_dir / "sub").mkdir()
        node.registered("ab", endpoint="sub/a.sock")
        node.kubelet.wait_capacity(GPU, 2)
        plugin = node.plugin("a")
        plugin.endpoint = str(node.kubelet.device_plugin_dir / "bare.sock")
        assert refusal(plugin)[1] == "failed to dial device plugin: context deadline exceeded"
        plugin.endpoint = "bare.sock"


def test_only_the_options_that_the_plugin_answers_count() -> None:
    """§2.1: those in the request are ignored."""
    with fake_node() as node:
        plugin = node.plugin("ab")
        plugin.options = pb.DevicePluginOptions(get_preferred_allocation_available=True)
        node.register(plugin)
        (call,) = node.kubelet.register_calls(GPU)
        assert call.options == pb.DevicePluginOptions()
        assert call.answered_options == plugin.options
        node.kubelet.start_pod("p", {GPU: 1})
        assert [method for method, _ in plugin.calls] == ["GetPreferredAllocation", "Allocate"]


def test_each_message_is_the_whole_truth() -> None:
    """§3: duplicates, a wrong-case health, an empty list."""
    with fake_node() as node:
        plugin = node.registered("abc")
        plugin.send(device_list("aab"))
        node.kubelet.wait_capacity(GPU, 2)
        plugin.send(device_list("ab", unhealthy="a"))
        node.kubelet.wait_capacity(GPU, 3, 2)
        sick = pb.ListAndWatchResponse(devices=[pb.Device(ID="a", health="healthy"), pb.Device(ID="b", health="")])
        plugin.send(sick.SerializeToString())
        node.kubelet.wait_capacity(GPU, 2, 0)
        plugin.send(device_list(""))
        node.kubelet.wait_capacity(GPU, 0)
        assert node.kubelet.live_streams(GPU)


def test_a_list_over_four_mebibytes_ends_the_stream() -> None:
    """§3: capacity keeps the previous number, nothing is allocatable; one that fits is read."""
    with fake_node() as node:
        plugin = node.registered("ab")
        fits = device_list(f"{n:047d}" for n in range(65_535))
        plugin.send(fits)
        node.kubelet.wait_capacity(GPU, 65_535)
        plugin.send(device_list(f"{n:047d}" for n in range(70_000)))
        node.kubelet.wait_capacity(GPU, 65_535, 0)
        (stream,) = node.kubelet.streams(GPU)
        assert stream.messages[-1].size_bytes == len(fits)
        assert "code = ResourceExhausted" in str(stream.end_reason)


# -- the end of a stream


def test_a_stream_that_ends_leaves_all_devices_unhealthy_and_is_never_opened_again() -> None:
    """§2.5"""
    with fake_node() as node:
        plugin = node.registered("ab")
        plugin.stop()
        node.kubelet.wait_capacity(GPU, 2, 0)
        plugin.serve()
        pod = node.kubelet.start_pod("p", {GPU: 1})
        assert pod.message.endswith(
            f"no healthy devices present; cannot allocate unhealthy devices {GPU}, which is unexpected"
        )
        assert len(node.kubelet.streams(GPU)) == 1
        node.register(plugin)
        node.kubelet.wait_capacity(GPU, 2)
        assert [call.live_streams for call in node.kubelet.register_calls(GPU)] == [0, 0]


def test_after_the_grace_the_resource_is_forgotten_and_reads_zero() -> None:
    """§2.5: then a restart of a holding container fails too, until the plugin is back."""
    clock = Clock()
    with fake_node(dataclasses.replace(FAST, clock=clock)) as node:
        plugin = node.registered("ab")
        node.kubelet.start_pod("p", {GPU: 1})
        plugin.stop()
        node.kubelet.wait_capacity(GPU, 2, 0)
        assert node.kubelet.restart_container("p").message == ""
        clock.now_s += 301
        assert node.kubelet.capacity(GPU) == Capacity(0, 0)
        broken = node.kubelet.restart_container("p")
        assert broken.reason == "CreateContainerConfigError"
        assert broken.message == f"endpoint not found in cache for a registered resource: {GPU}"
        plugin.serve()
        node.register(plugin)
        assert node.kubelet.capacity(GPU) == Capacity(2, 2)
        assert node.kubelet.restart_container("p").starts == 3


def test_a_stream_cut_by_the_kubelet_is_like_any_other_end() -> None:
    """§19 row 13"""
    with fake_node() as node:
        plugin = node.registered("a")
        node.kubelet.cut_stream(GPU)
        node.kubelet.wait_capacity(GPU, 1, 0)
        node.register(plugin)
        node.kubelet.wait_capacity(GPU, 1)


# -- re-registration, the most dangerous behaviour (§2.4)


def two_registrations(node: Node) -> tuple[BarePlugin, BarePlugin]:
    old = node.registered("abc", endpoint="old.sock")
    new = node.registered("ab", endpoint="new.sock")
    node.kubelet.wait_capacity(GPU, 2)
    assert [call.live_streams for call in node.kubelet.register_calls(GPU)] == [0, 1]
    return old, new


def test_both_streams_of_a_resource_write_the_same_list() -> None:
    """§2.4"""
    with fake_node() as node:
        old, new = two_registrations(node)
        old.send(device_list("x"))
        node.kubelet.wait_capacity(GPU, 1)
        new.send(device_list("xyz"))
        node.kubelet.wait_capacity(GPU, 3)


def test_the_end_of_the_old_stream_closes_the_new_client() -> None:
    """§2.4, P11"""
    with fake_node() as node:
        old, new = two_registrations(node)
        old.stop()
        node.kubelet.wait_capacity(GPU, 2, 0)
        node.kubelet.wait_for(lambda: not node.kubelet.live_streams(GPU))
        new.send(device_list("abcd"))
        assert node.kubelet.capacity(GPU) == Capacity(2, 0)


def test_the_end_of_the_new_stream_leaves_devices_that_cannot_be_allocated() -> None:
    """§2.4"""
    with fake_node() as node:
        old, new = two_registrations(node)
        new.stop()
        node.kubelet.wait_capacity(GPU, 2, 0)
        old.send(device_list("ab"))
        node.kubelet.wait_capacity(GPU, 2, 2)
        pod = node.kubelet.start_pod("p", {GPU: 1})
        assert pod.phase is Phase.FAILED
        assert pod.message.endswith("has been stopped, which is unexpected")


def test_a_failed_registration_makes_the_kubelet_forget_the_good_plugin() -> None:
    """§2.4: when that plugin dies later, its devices are advertised for good."""
    with fake_node(IMPATIENT) as node:
        plugin = node.registered("ab")
        plugin.endpoint = "nowhere.sock"
        refusal(plugin)
        plugin.endpoint = "bare.sock"
        plugin.stop()
        node.kubelet.wait_for(lambda: not node.kubelet.live_streams(GPU))
        assert node.kubelet.capacity(GPU) == Capacity(2, 2)
        pod = node.kubelet.start_pod("p", {GPU: 1})
        assert pod.message.startswith("Pod was rejected: Allocate failed due to rpc error: code = Unavailable")
        plugin.serve()
        node.register(plugin)
        assert node.kubelet.start_pod("q", {GPU: 1}).phase is Phase.RUNNING


# -- trouble on demand


def test_planned_refusals_meet_one_call_each() -> None:
    """§19 row 5"""
    with fake_node() as node:
        plugin = node.plugin("a")
        node.kubelet.on_next_register(Refuse("not now"), Refuse("nor now"), resource=GPU)
        assert refusal(plugin) == (UNKNOWN, "not now")
        assert refusal(plugin) == (UNKNOWN, "nor now")
        node.register(plugin)
        assert [call.error for call in node.kubelet.register_calls()] == ["not now", "nor now", None]


def test_a_blocked_register_goes_on_when_it_may_and_shows_a_second_attempt() -> None:
    """§19 row 6"""
    with fake_node() as node:
        plugin = node.plugin("a")
        block = Block(3600)
        node.kubelet.on_next_register(block)
        first = threading.Thread(target=plugin.register)
        first.start()
        node.kubelet.wait_for(lambda: len(node.kubelet.register_calls()) == 1)
        plugin.register()
        block.over.set()
        first.join()
        assert [call.calls_in_progress for call in node.kubelet.register_calls()] == [0, 1]


def test_a_register_that_nobody_lets_go_on_does_so_after_its_time() -> None:
    with fake_node() as node:
        plugin = node.plugin("a")
        node.kubelet.on_next_register(Block(0.1))
        plugin.register()
        [call] = node.kubelet.register_calls()
        assert (call.took_s or 0) >= 0.1


def test_an_ignored_register_is_answered_and_nothing_follows() -> None:
    with fake_node() as node:
        plugin = node.plugin("a")
        node.kubelet.on_next_register(Ignore())
        plugin.register()
        assert node.kubelet.capacity(GPU) is None
        assert node.kubelet.streams() == []


@pytest.mark.parametrize("answer", [True, False])
def test_the_kubelet_can_die_between_register_and_the_list(answer: bool) -> None:
    """P09 (d)"""
    with fake_node() as node:
        plugin = node.plugin("a")
        node.kubelet.on_next_register(Die(answer=answer))
        if answer:
            plugin.register()
        else:
            assert refusal(plugin)[0] in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
        node.kubelet.wait_for(lambda: not node.kubelet.running)
        assert node.kubelet.streams() == []
        node.kubelet.start()
        plugin.stop()
        plugin.serve()
        node.register(plugin)
        node.kubelet.wait_capacity(GPU, 1)
