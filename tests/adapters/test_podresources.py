"""The kubelet's list of who holds what: read whole, from the kubelet that runs now, and never mistaken for silence."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path

import grpc
import pytest

from sharer.adapters.podresources import PodResources
from sharer.core.errors import NodeError
from sharer.kubeletapi import deviceplugin_pb2 as plugin_pb
from sharer.kubeletapi import podresources_pb2 as pb
from sharer.simulation.kubelet import ContainerSpec, Fail, Hang
from tests.core.evidence import named
from tests.fakes.clock import Clock
from tests.simulation.kubelet.node import GPU, Node, fake_node


@pytest.fixture
def node() -> Iterator[Node]:
    with fake_node() as node:
        node.registered("abcd")
        yield node


@pytest.fixture
def podresources(node: Node) -> PodResources:
    return PodResources(node.kubelet.podresources_socket)


def test_each_slice_has_the_container_that_holds_it_and_every_pod_is_named(
    node: Node, podresources: PodResources
) -> None:
    pod = node.kubelet.start_pod(
        "p",
        containers=[ContainerSpec(name="c", limits={GPU: 1})],
        init_containers=[
            ContainerSpec(name="i", limits={GPU: 2}),
            ContainerSpec(name="s", limits={GPU: 1}, sidecar=True),
        ],
    )
    node.kubelet.start_pod("plain")
    found = podresources.read()
    assert found.holders == {
        (GPU, device_id): named("p", container=name) for name in ("s", "c") for device_id in pod.ids(GPU, name)
    }
    assert found.pods == {("default", "p"), ("default", "plain")}


def test_a_device_on_two_numa_nodes_has_two_rows_and_one_holder(node: Node, podresources: PodResources) -> None:
    """Contract §12."""
    both = plugin_pb.TopologyInfo(nodes=[plugin_pb.NUMANode(ID=0), plugin_pb.NUMANode(ID=1)])
    devices = [plugin_pb.Device(ID=i, health="Healthy", topology=both) for i in "xy"]
    node.registered(
        plugin_pb.ListAndWatchResponse(devices=devices).SerializeToString(), "example.com/numa", "numa.sock"
    )
    node.kubelet.start_pod("p", {"example.com/numa": 2})
    assert podresources.read().holders == {("example.com/numa", i): named("p", container="main") for i in "xy"}


def test_answers_are_counted(podresources: PodResources) -> None:
    assert [podresources.read().serial for _ in range(3)] == [1, 2, 3]


def test_the_rate_limit_is_no_news_and_costs_nothing_but_the_call(node: Node, podresources: PodResources) -> None:
    """Contract §12: other clients may use it up."""
    podresources.read()
    node.kubelet.on_next_podresources_call(Fail(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit"))
    with pytest.raises(NodeError, match="other clients use up its rate limit"):
        podresources.read()
    assert podresources.read().serial == 2


def test_an_error_of_the_kubelet_is_no_news(node: Node, podresources: PodResources) -> None:
    node.kubelet.on_next_podresources_call(Fail(grpc.StatusCode.INTERNAL, "the pod manager is gone"))
    with pytest.raises(NodeError, match=f"{node.kubelet.podresources_socket}: the pod manager is gone"):
        podresources.read()
    assert podresources.read().serial == 1


def test_a_kubelet_that_does_not_answer_is_left_alone_after_the_deadline(node: Node) -> None:
    node.kubelet.on_next_podresources_call(Hang())
    podresources = PodResources(node.kubelet.podresources_socket, deadline_s=2.0)
    with pytest.raises(NodeError, match="Deadline Exceeded"):
        podresources.read()
    assert podresources.read().serial == 1


def test_without_a_kubelet_there_is_no_news_and_the_place_is_named(tmp_path: Path) -> None:
    with pytest.raises(NodeError, match=r"kubelet\.sock is not there .*--pod-resources-socket"):
        PodResources(tmp_path / "kubelet.sock").read()


def test_a_dead_kubelets_socket_is_no_news_and_the_next_kubelet_is_asked(
    node: Node, podresources: PodResources
) -> None:
    """Contract §12: the socket is made anew at every start; the old file stays behind until then."""
    node.kubelet.start_pod("p", {GPU: 1})
    podresources.read()
    node.kubelet.kill()
    with pytest.raises(NodeError):
        podresources.read()
    node.kubelet.start()
    node.kubelet.wait_for(lambda: node.kubelet.sources_ready)
    assert set(podresources.read().holders.values()) == {named("p", container="main")}


def test_a_new_kubelet_is_asked_even_while_the_old_one_would_still_answer() -> None:
    """A connection outlives the name of its socket."""
    old, new = pb.ListPodResourcesResponse(), pb.ListPodResourcesResponse()
    old.pod_resources.add(name="old", namespace="d")
    new.pod_resources.add(name="new", namespace="d")
    with serving(old) as socket, serving(new) as other:
        podresources = PodResources(socket)
        assert podresources.read().pods == {("d", "old")}
        os.replace(other, socket)
        assert podresources.read().pods == {("d", "new")}


def test_an_answer_above_grpcs_own_limit_is_read() -> None:
    """gRPC refuses more than 4 MiB unless told otherwise."""
    answer = pb.ListPodResourcesResponse()
    container = answer.pod_resources.add(name="p", namespace="d").containers.add(name="c")
    for number in range(60_000):
        device_id = f"GPU-5a3fc4a0-1f0e-4c5e-9d2b-6c3c3f1c1c1c::ts-{number}-1024"
        container.devices.add(resource_name=GPU, device_ids=[device_id])
    assert answer.ByteSize() > 4 * 2**20
    with serving(answer) as socket:
        assert len(PodResources(socket).read().holders) == 60_000


def test_a_pod_that_is_named_twice_is_one() -> None:
    answer = pb.ListPodResourcesResponse()
    for name in ("p", "p"):
        container = answer.pod_resources.add(name=name, namespace="d").containers.add(name="c")
        container.devices.add(resource_name=GPU, device_ids=["a"])
    with serving(answer) as socket:
        found = PodResources(socket).read()
    assert found.pods == {("d", "p")}
    assert list(found.holders) == [(GPU, "a")]


def test_the_age_of_the_kubelet_is_that_of_its_socket_and_then_our_own_clocks() -> None:
    """Contract §22: in its first second it lists nothing. A wall clock that is set must not make it young again."""
    clock, wall = Clock(), Clock()
    with serving(pb.ListPodResourcesResponse()) as socket:
        wall.now_s = os.stat(socket).st_mtime + 3.0
        podresources = PodResources(socket, clock=clock, wall_clock=wall)
        assert podresources.read().kubelet_age_s == pytest.approx(3.0, abs=1e-3)
        clock.now_s += 4.0
        wall.now_s -= 1e6
        assert podresources.read().kubelet_age_s == pytest.approx(7.0, abs=1e-3)


def test_a_kubelet_whose_socket_is_from_the_future_has_just_started() -> None:
    wall = Clock()
    with serving(pb.ListPodResourcesResponse()) as socket:
        wall.now_s = os.stat(socket).st_mtime - 3600.0
        podresources = PodResources(socket, clock=Clock(), wall_clock=wall)
        assert podresources.read().kubelet_age_s == 0.0


def test_a_restarted_kubelet_is_young_again(node: Node) -> None:
    clock = Clock()
    podresources = PodResources(node.kubelet.podresources_socket, clock=clock)
    podresources.read()
    clock.now_s += 3600.0
    assert (podresources.read().kubelet_age_s or 0.0) >= 3600.0
    node.kubelet.restart(same_inode=True)
    found = podresources.read()
    assert found.kubelet_age_s is not None
    assert found.kubelet_age_s < 60.0


@contextlib.contextmanager
def serving(answer: pb.ListPodResourcesResponse) -> Iterator[Path]:
    """The socket of a kubelet with one answer."""
    handler = grpc.unary_unary_rpc_method_handler(
        lambda _request, _context: answer,
        pb.ListPodResourcesRequest.FromString,
        pb.ListPodResourcesResponse.SerializeToString,
    )
    with tempfile.TemporaryDirectory(prefix="s-") as folder:
        server = grpc.server(futures.ThreadPoolExecutor(2))
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("v1.PodResourcesLister", {"List": handler}),)
        )
        socket = Path(folder) / "kubelet.sock"
        server.add_insecure_port(f"unix:{socket}")
        server.start()
        try:
            yield socket
        finally:
            server.stop(None).wait()
