"""What was measured on a real node, or executed on the real device manager, of which a plugin would not think."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import grpc

from sharer.kubeletapi import deviceplugin_pb2 as pb
from sharer.kubeletapi import podresources_pb2, podresources_pb2_grpc
from sharer.simulation.kubelet import Capacity, ContainerSpec, ContainerState, Phase, Repeat, read_checkpoint
from tests.fakes.bare_plugin import CHANNEL_OPTIONS, allocation, device_list
from tests.simulation.kubelet.node import GPU, Node, fake_node


def listed(node: Node) -> list[tuple[str, str, str]]:
    """`List`: pod, container and ID, a row each."""
    with grpc.insecure_channel(f"unix:{node.kubelet.podresources_socket}", options=CHANNEL_OPTIONS) as channel:
        reply = podresources_pb2_grpc.PodResourcesListerStub(channel).List(
            podresources_pb2.ListPodResourcesRequest(), timeout=30
        )
    return [
        (pod.name, container.name, device_id)
        for pod in reply.pod_resources
        for container in pod.containers
        for row in container.devices
        for device_id in row.device_ids
    ]


def test_a_plugin_that_is_gone_leaves_the_last_health_in_its_pods_status() -> None:
    """§13: still Healthy, though nothing is allocatable any more."""
    with fake_node() as node:
        plugin = node.registered("ab")
        (held,) = node.kubelet.start_pod("p", {GPU: 1}).ids(GPU)
        plugin.stop()
        node.kubelet.wait_capacity(GPU, 2, 0)
        assert node.kubelet.resource_health("p") == {held: "Healthy"}


def test_before_the_first_list_after_a_restart_everything_that_is_held_reads_healthy() -> None:
    """§13"""
    with fake_node() as node:
        plugin = node.registered("a")
        node.kubelet.start_pod("p", {GPU: 1})
        plugin.send(device_list("", unhealthy="a"))
        node.kubelet.wait_capacity(GPU, 1, 0)
        assert node.kubelet.resource_health("p") == {"a": "Unhealthy"}
        node.kubelet.restart()
        assert node.kubelet.resource_health("p") == {"a": "Healthy"}


def test_a_node_whose_directory_is_empty_is_taken_for_one_made_anew() -> None:
    """§2.7: then every resource reads 0, and a stray file suppresses that."""
    with fake_node() as node:
        node.registered("ab").stop()
        node.kubelet.wait_capacity(GPU, 2, 0)
        for stray, seen in ((True, Capacity(2, 0)), (False, Capacity(0, 0))):
            node.kubelet.kill()
            for path in node.kubelet.device_plugin_dir.iterdir():
                path.unlink()
            if stray:
                (node.kubelet.device_plugin_dir / "stray").touch()
            node.kubelet.start()
            assert node.kubelet.capacity(GPU) == seen


def test_of_two_plugins_the_last_wins_and_its_end_does_not_bring_the_first_back() -> None:
    """§22: the first gets no signal."""
    with fake_node() as node:
        first = node.registered("ab", endpoint="first.sock")
        ended = threading.Event()
        first.on_stream_end = ended.set
        second = node.registered("x", endpoint="second.sock")
        node.kubelet.wait_capacity(GPU, 1)
        assert node.kubelet.start_pod("p", {GPU: 1}).ids(GPU) == ("x",)
        second.stop()
        node.kubelet.wait_capacity(GPU, 1, 0)
        assert node.kubelet.start_pod("q", {GPU: 1}).phase is Phase.FAILED
        assert not ended.is_set()
        assert [call for call in first.calls if call[0] == "Allocate"] == []


def test_a_container_restarts_on_a_device_that_is_unhealthy() -> None:
    """§8: health is not checked at a restart, and no Allocate is made."""
    with fake_node() as node:
        plugin = node.registered("a")
        node.kubelet.start_pod("p", {GPU: 1})
        plugin.send(device_list("", unhealthy="a"))
        node.kubelet.wait_capacity(GPU, 1, 0)
        assert node.kubelet.restart_container("p").state is ContainerState.RUNNING
        assert len(plugin.calls) == 1


def test_what_an_init_container_leaves_is_taken_though_it_is_unhealthy_by_then() -> None:
    """§5: neither health nor the plugin's preference is asked for."""
    with fake_node() as node:
        plugin = node.plugin("ab")
        plugin.options = pb.DevicePluginOptions(get_preferred_allocation_available=True)
        node.register(plugin)

        def turn_unhealthy(ids: Sequence[str]) -> bytes:
            if len(plugin.calls) == 2:  # after the first container's preference and Allocate
                plugin.send(device_list("ab".replace(ids[0], ""), unhealthy=ids))
                node.kubelet.wait_for(lambda: len(node.kubelet.healthy(GPU)) == 1)
            return allocation()

        plugin.on_allocate = turn_unhealthy
        limits = {GPU: 1}
        pod = node.kubelet.start_pod(
            "p", containers=[ContainerSpec(limits=limits)], init_containers=[ContainerSpec(name="i", limits=limits)]
        )
        assert pod.ids(GPU, "i") == pod.ids(GPU)
        assert [method for method, _ in plugin.calls] == ["GetPreferredAllocation", "Allocate", "Allocate"]


def test_inside_pre_start_list_names_the_pod_and_the_checkpoint_the_container() -> None:
    """§22: of an init container `List` names the app container, the checkpoint it itself, with the pod's UID."""
    with fake_node() as node:
        plugin = node.plugin("a")
        plugin.options = pb.DevicePluginOptions(pre_start_required=True)
        node.register(plugin)
        seen = []

        def look(ids: Sequence[str]) -> bytes:
            entries, _ = read_checkpoint(node.kubelet.checkpoint)
            seen.append((listed(node), sorted((one.pod_uid, one.container) for one in entries)))
            return b""

        plugin.on_pre_start = look
        limits = {GPU: 1}
        pod = node.kubelet.start_pod(
            "p", containers=[ContainerSpec(limits=limits)], init_containers=[ContainerSpec(name="i", limits=limits)]
        )
        assert seen == [([("p", "main", "a")], [(pod.uid, "i"), (pod.uid, "main")])] * 2


def test_an_id_of_a_pod_that_ended_is_given_to_the_next_before_anybody_could_have_asked() -> None:
    """§22: an old ID was allocated again 18 times in 70 s, whatever the plugin prefers, as long as it is Healthy."""
    with fake_node() as node:
        node.registered("a")
        for number in range(5):
            assert node.kubelet.start_pod(f"p{number}", {GPU: 1}).ids(GPU) == ("a",)
            node.kubelet.end_pod(f"p{number}")
        assert node.kubelet.podresources_calls() == []


def test_a_list_can_be_told_to_repeat_its_rows() -> None:
    """§12: as it does for a device on two NUMA nodes."""
    with fake_node() as node:
        node.registered("a")
        node.kubelet.start_pod("p", {GPU: 1})
        node.kubelet.on_next_podresources_call(Repeat())
        assert [len(listed(node)), len(listed(node))] == [2, 1]
