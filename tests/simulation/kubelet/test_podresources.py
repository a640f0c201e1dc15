"""The fake kubelet's podresources socket (kubelet-contract §12, §22)."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import grpc
import pytest

from sharer.kubeletapi import deviceplugin_pb2 as plugin_pb
from sharer.kubeletapi import podresources_pb2 as pb
from sharer.kubeletapi import podresources_pb2_grpc as rpc
from sharer.simulation.kubelet import ContainerSpec, Fail, Hang, Phase
from tests.fakes.bare_plugin import CHANNEL_OPTIONS, allocation, device_list
from tests.fakes.clock import Clock
from tests.simulation.kubelet.node import FAST, GPU, Node, fake_node, status_of


@contextmanager
def client(node: Node) -> Iterator[rpc.PodResourcesListerStub]:
    with grpc.insecure_channel(f"unix:{node.kubelet.podresources_socket}", options=CHANNEL_OPTIONS) as channel:
        yield rpc.PodResourcesListerStub(channel)


def listed(node: Node) -> dict[str, dict[str, list[str]]]:
    """`List`: pod → container → IDs, one a row."""
    with client(node) as stub:
        reply = stub.List(pb.ListPodResourcesRequest(), timeout=30)
    return {
        pod.name: {
            container.name: sorted(i for row in container.devices for i in row.device_ids)
            for container in pod.containers
        }
        for pod in reply.pod_resources
    }


def test_list_names_every_active_pod_sidecars_first_and_init_containers_never() -> None:
    with fake_node() as node:
        node.registered("abc")
        pod = node.kubelet.start_pod(
            "p",
            containers=[ContainerSpec(name="c", limits={GPU: 1})],
            init_containers=[
                ContainerSpec(name="i", limits={GPU: 2}),
                ContainerSpec(name="s", limits={GPU: 1}, sidecar=True),
            ],
        )
        node.kubelet.start_pod("plain")
        with client(node) as stub:
            first, second = stub.List(pb.ListPodResourcesRequest()).pod_resources
        assert (first.name, first.namespace) == ("p", "default")
        assert [container.name for container in first.containers] == ["s", "c"]
        assert [list(row.device_ids) for c in first.containers for row in c.devices] == [
            list(pod.ids(GPU, "s")),
            list(pod.ids(GPU, "c")),
        ]
        assert first.containers[0].devices[0].resource_name == GPU
        assert not first.containers[0].devices[0].HasField("topology")
        assert (second.name, [len(container.devices) for container in second.containers]) == ("plain", [0])


def test_there_is_one_row_for_each_device_and_numa_node() -> None:
    """§12: a device on two nodes appears twice."""
    both = plugin_pb.TopologyInfo(nodes=[plugin_pb.NUMANode(ID=0), plugin_pb.NUMANode(ID=1)])
    devices = [plugin_pb.Device(ID=i, health="Healthy", topology=both) for i in "ab"]
    with fake_node() as node:
        node.registered(plugin_pb.ListAndWatchResponse(devices=devices).SerializeToString())
        node.kubelet.start_pod("p", {GPU: 2})
        with client(node) as stub:
            rows = stub.List(pb.ListPodResourcesRequest()).pod_resources[0].containers[0].devices
        assert sorted((list(row.device_ids), row.topology.nodes[0].ID) for row in rows) == [
            (["a"], 0),
            (["a"], 1),
            (["b"], 0),
            (["b"], 1),
        ]


def test_the_eleventh_call_in_a_row_is_refused_whoever_makes_it() -> None:
    """§12, §22: one bucket of 10 for all methods and clients, 100 a second."""
    clock = Clock()
    with fake_node(dataclasses.replace(FAST, clock=clock)) as node, client(node) as one, client(node) as other:
        for _ in range(5):
            one.List(pb.ListPodResourcesRequest())
            other.GetAllocatableResources(pb.AllocatableResourcesRequest())
        with pytest.raises(grpc.RpcError) as caught:
            other.List(pb.ListPodResourcesRequest())
        assert status_of(caught.value) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
        clock.now_s += 0.011
        one.List(pb.ListPodResourcesRequest())
        assert [call.rejected for call in node.kubelet.podresources_calls()] == [False] * 10 + [True, False]


def test_list_frees_what_ended_pods_held_and_get_does_not() -> None:
    with fake_node() as node:
        node.registered("a")
        node.kubelet.start_pod("p", {GPU: 1})
        node.kubelet.start_pod("plain")
        node.kubelet.end_pod("p")
        with client(node) as stub:
            assert stub.Get(pb.GetPodResourcesRequest(pod_name="plain", pod_namespace="default")).pod_resources.name
        assert node.kubelet.allocated(GPU) == {"a"}
        assert listed(node) == {"plain": {"main": []}}
        assert node.kubelet.allocated(GPU) == frozenset()


def test_get_of_an_absent_or_ended_pod_is_an_error() -> None:
    with fake_node() as node, client(node) as stub:
        node.kubelet.start_pod("p")
        node.kubelet.end_pod("p", Phase.FAILED)
        for name in ("p", "q"):
            with pytest.raises(grpc.RpcError) as caught:
                stub.Get(pb.GetPodResourcesRequest(pod_name=name, pod_namespace="default"))
            assert status_of(caught.value) == (grpc.StatusCode.UNKNOWN, f"pod {name} in namespace default not found")


def test_an_older_kubelet_keeps_finished_pods_in_the_list() -> None:
    """§12: before 1.34; their phase decides. It has no Get."""
    with fake_node(dataclasses.replace(FAST, older=True)) as node, client(node) as stub:
        node.registered("a")
        node.kubelet.start_pod("p", {GPU: 1})
        node.kubelet.end_pod("p")
        assert listed(node) == {"p": {"main": ["a"]}}
        node.kubelet.start_pod("q", {GPU: 1})
        assert listed(node) == {"p": {"main": ["a"]}, "q": {"main": ["a"]}}
        node.kubelet.delete_pod("p")
        assert listed(node) == {"q": {"main": ["a"]}}
        with pytest.raises(grpc.RpcError, match="Get method disabled"):
            stub.Get(pb.GetPodResourcesRequest(pod_name="q", pod_namespace="default"))


def test_allocatable_is_what_is_healthy_and_not_what_is_free() -> None:
    with fake_node() as node, client(node) as stub:
        plugin = node.registered(device_list("ab", unhealthy="c"))
        node.kubelet.start_pod("p", {GPU: 1})

        def ids() -> list[str]:
            reply = stub.GetAllocatableResources(pb.AllocatableResourcesRequest())
            return sorted(i for row in reply.devices for i in row.device_ids)

        assert ids() == ["a", "b"]
        plugin.stop()
        node.kubelet.wait_capacity(GPU, 3, 0)
        assert ids() == []


def test_right_after_a_kubelet_start_the_list_is_empty_though_pods_run() -> None:
    """§22"""
    with fake_node(dataclasses.replace(FAST, sources_ready_after_s=None)) as node:
        node.registered("a")
        node.kubelet.start_pod("p", {GPU: 1})
        node.kubelet.restart()
        assert listed(node) == {}
        node.kubelet.sources_become_ready()
        node.kubelet.wait_for(lambda: node.kubelet.sources_ready)
        assert listed(node) == {"p": {"main": ["a"]}}


def test_inside_allocate_the_list_shows_the_pod_without_the_devices_asked_for() -> None:
    """runtime-facts 54; a call from inside Allocate does not lock up."""
    with fake_node() as node:
        plugin = node.registered("a")
        seen = []

        def look(ids: object) -> bytes:
            seen.append(listed(node))
            return allocation()

        plugin.on_allocate = look
        node.kubelet.start_pod("p", {GPU: 1})
        assert seen == [{"p": {"main": []}}]
        assert listed(node) == {"p": {"main": ["a"]}}


def test_a_static_pod_carries_the_nodes_name_and_a_uid_without_dashes() -> None:
    with fake_node() as node:
        pod = node.kubelet.start_pod("etcd", static=True)
        assert list(listed(node)) == ["etcd-node-1"]
        assert len(pod.uid) == 32
        assert "-" not in pod.uid


def test_faults_on_demand_meet_one_call_each() -> None:
    """§19 row 40"""
    with fake_node() as node, client(node) as stub:
        node.kubelet.start_pod("p")
        node.kubelet.on_next_podresources_call(Fail(grpc.StatusCode.UNAVAILABLE, "gone"), Hang())
        with pytest.raises(grpc.RpcError, match="gone"):
            stub.List(pb.ListPodResourcesRequest())
        with pytest.raises(grpc.RpcError) as caught:
            stub.List(pb.ListPodResourcesRequest(), timeout=2)  # time enough to get there
        assert status_of(caught.value)[0] is grpc.StatusCode.DEADLINE_EXCEEDED
        node.kubelet.hide_from_list("p")
        assert listed(node) == {}
        assert list(listed(node)) == ["p"]


def test_a_hanging_call_ends_with_the_kubelet() -> None:
    with fake_node() as node, client(node) as stub:
        node.kubelet.on_next_podresources_call(Hang())
        failed = threading.Event()

        def ask() -> None:
            with pytest.raises(grpc.RpcError):
                stub.List(pb.ListPodResourcesRequest())
            failed.set()

        asker = threading.Thread(target=ask)
        asker.start()
        node.kubelet.wait_for(lambda: bool(node.kubelet.podresources_calls()))
        node.kubelet.kill()
        assert failed.wait(30)
        asker.join()
