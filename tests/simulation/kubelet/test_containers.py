"""The fake kubelet starts containers and frees devices as the real one (kubelet-contract §7 to §9)."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Sequence

from sharer.kubeletapi import deviceplugin_pb2 as pb
from sharer.simulation.kubelet import (
    ContainerSpec,
    ContainerState,
    Phase,
)
from tests.fakes.bare_plugin import BarePlugin, allocation
from tests.simulation.kubelet.node import FAST, GPU, Node, fake_node

OTHER = "example.com/other"


def test_a_restarted_container_gets_the_stored_answer_without_a_call() -> None:
    """§7"""
    with fake_node() as node:
        plugin = node.registered("a")
        plugin.on_allocate = lambda ids: allocation(envs={"N": "1"})
        node.kubelet.start_pod("p", {GPU: 1})
        plugin.on_allocate = lambda ids: allocation(envs={"N": "2"})
        assert node.kubelet.restart_container("p").starts == 2
        assert node.kubelet.pod("p").env() == {"N": "1"}
        assert len(plugin.calls) == 1


def answering(answer: bytes) -> Callable[[Sequence[str]], bytes]:
    return lambda ids: answer


def pre_starting(node: Node, devices: str) -> BarePlugin:
    plugin = node.plugin(devices)
    plugin.options = pb.DevicePluginOptions(pre_start_required=True)
    node.register(plugin)
    return plugin


def test_pre_start_is_called_at_every_start_with_the_ids_of_that_container() -> None:
    with fake_node() as node:
        plugin = pre_starting(node, "ab")
        ids = node.kubelet.start_pod("p", {GPU: 2}).ids(GPU)
        node.kubelet.restart_container("p")
        assert [(method, tuple(sorted(call))) for method, call in plugin.calls] == [
            ("Allocate", ids),
            ("PreStartContainer", ids),
            ("PreStartContainer", ids),
        ]


def test_a_pre_start_error_or_timeout_keeps_the_container_waiting_and_the_pod_alive() -> None:
    """§8, §22: retried; the IDs stay held."""
    with fake_node(dataclasses.replace(FAST, pre_start_timeout_s=2.0)) as node:
        plugin = pre_starting(node, "a")
        done = threading.Event()

        def refuse(ids: Sequence[str]) -> bytes:
            raise ValueError("later")

        def hang(ids: Sequence[str]) -> bytes:
            done.wait(30)
            return b""

        plugin.on_pre_start = refuse
        pod = node.kubelet.start_pod("p", {GPU: 1})
        waits = pod.container()
        assert (pod.phase, waits.state, waits.reason) == (
            Phase.PENDING,
            ContainerState.WAITING,
            "CreateContainerConfigError",
        )
        failed = "device plugin PreStartContainer rpc failed with err: rpc error: code = "
        assert waits.message == f"{failed}InvalidArgument desc = later"
        plugin.on_pre_start = hang
        slow = node.kubelet.sync_pod("p")
        done.set()
        assert slow.container().message.startswith(f"{failed}DeadlineExceeded")
        plugin.on_pre_start = lambda ids: b""
        assert node.kubelet.sync_pod("p").phase is Phase.RUNNING


def test_with_pre_start_a_container_cannot_restart_while_its_plugin_is_gone() -> None:
    """§2.5: without it the stored answer does."""
    with fake_node() as node:
        plugin = pre_starting(node, "a")
        node.kubelet.start_pod("p", {GPU: 1})
        plugin.stop()
        node.kubelet.wait_capacity(GPU, 1, 0)
        broken = node.kubelet.restart_container("p")
        assert broken.message.startswith("device plugin PreStartContainer rpc failed with err: endpoint ")
        assert broken.message.endswith(" has been stopped")


def test_a_missing_record_makes_the_kubelet_allocate_at_container_start() -> None:
    """§7: the resource was unknown at admission."""
    with fake_node() as node:
        node.kubelet.start_pod("p", {GPU: 1})
        plugin = node.registered("a")
        plugin.on_allocate = lambda ids: allocation(envs={"IDS": ids[0]})
        node.kubelet.restart_container("p")
        assert node.kubelet.pod("p").env() == {"IDS": "a"}
        assert [method for method, _ in plugin.calls] == ["Allocate"]


def test_with_pre_start_a_missing_record_is_never_cured() -> None:
    """§8"""
    with fake_node() as node:
        uid = node.kubelet.start_pod("p", {GPU: 1}).uid
        pre_starting(node, "a")
        assert node.kubelet.restart_container("p").message == (
            f"no devices found allocated in local cache for pod {uid}, container main, resource {GPU}"
        )


def test_of_two_resources_that_give_the_same_name_either_wins_at_random() -> None:
    """§8"""
    with fake_node() as node:
        for resource, endpoint in ((GPU, "g.sock"), (OTHER, "o.sock")):
            plugin = node.registered("a", resource, endpoint)
            plugin.on_allocate = answering(allocation(envs={"WHO": resource, "SAME": "1"}))
        node.kubelet.start_pod("p", {GPU: 1, OTHER: 1})
        winners = set()
        for _ in range(30):
            given = node.kubelet.restart_container("p").given
            assert given is not None
            assert given.conflicts == ("env WHO",)
            winners.add(given.env["WHO"])
        assert winners == {GPU, OTHER}


# -- freeing (§9)


def test_ids_are_freed_only_when_the_kubelet_next_looks() -> None:
    """§9: before an allocation; a pod without devices does not make it look."""
    with fake_node() as node:
        node.registered("a")
        uid = node.kubelet.start_pod("p", {GPU: 1}).uid
        node.kubelet.end_pod("p")
        node.kubelet.start_pod("plain")
        assert node.kubelet.records() == {(uid, "main", GPU): {"a"}}
        assert node.kubelet.start_pod("q", {GPU: 1}).ids(GPU) == ("a",)


def test_a_force_deleted_pods_ids_are_given_on_while_it_still_runs() -> None:
    """§9, §22"""
    with fake_node() as node:
        node.registered("a")
        old = node.kubelet.start_pod("p", {GPU: 1})
        node.kubelet.force_delete_pod("p")
        assert node.kubelet.start_pod("p", {GPU: 1}).ids(GPU) == old.ids(GPU)
        (remnant,) = node.kubelet.remnants()
        assert (remnant.uid, remnant.containers[0].ids) == (old.uid, {GPU: ("a",)})
        node.kubelet.end_remnant(old.uid)
        assert node.kubelet.remnants() == ()


def test_the_scheduler_counts_requests_not_devices() -> None:
    """§4"""
    with fake_node() as node:
        node.registered("abcd")
        init = [ContainerSpec(name="s", limits={GPU: 1}, sidecar=True), ContainerSpec(name="i", limits={GPU: 2})]
        node.kubelet.start_pod("p", {GPU: 1}, init_containers=init)
        assert node.kubelet.unrequested(GPU) == 1
        node.kubelet.end_pod("p")
        assert node.kubelet.unrequested(GPU) == 4
