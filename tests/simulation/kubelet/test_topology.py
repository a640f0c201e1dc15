"""The fake kubelet's topology manager: hints, refusals, and the crashes they bring (kubelet-contract §3, §6, §14)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest

from sharer.kubeletapi import deviceplugin_pb2 as pb
from sharer.simulation.kubelet import (
    ContainerSpec,
    KubeletPanic,
    KubeletSettings,
    Phase,
    TopologyPolicy,
)
from tests.fakes.bare_plugin import allocation, device_list, preference
from tests.simulation.kubelet.node import FAST, GPU, fake_node

OTHER = "example.com/other"


def numa(**nodes: str) -> bytes:
    """A list with `n0="ab"` on NUMA node 0 and so on; `minus` is node -1."""
    at = {"n0": 0, "n1": 1, "minus": -1}
    return b"".join(device_list(ids, numa_node=at[name]) for name, ids in nodes.items())


def two_sockets(policy: TopologyPolicy) -> KubeletSettings:
    return dataclasses.replace(FAST, topology_policy=policy, numa_nodes=(0, 1))


def test_devices_of_one_node_are_given_together_and_preferences_asked_among_them() -> None:
    """§6: rows with a hint."""
    with fake_node(two_sockets(TopologyPolicy.RESTRICTED)) as node:
        requests: list[pb.ContainerPreferredAllocationRequest] = []
        plugin = node.plugin(numa(n0="ab", n1="xyz"))
        plugin.options = pb.DevicePluginOptions(get_preferred_allocation_available=True)

        def prefer(request: pb.ContainerPreferredAllocationRequest) -> bytes:
            requests.append(request)
            return preference("yz")

        plugin.on_prefer = prefer
        node.register(plugin)
        three = node.kubelet.start_pod("p", {GPU: 3})
        assert three.ids(GPU) == ("x", "y", "z")
        assert requests == []  # needed == aligned: not asked
        node.kubelet.delete_pod("p")
        assert node.kubelet.start_pod("q", {GPU: 1}).ids(GPU) in {("a",), ("b",), ("y",), ("z",)}
        assert sorted(requests[0].available_deviceIDs) in (["a", "b"], ["x", "y", "z"])


def test_a_request_that_no_single_node_can_hold_is_refused_by_policy() -> None:
    with fake_node(two_sockets(TopologyPolicy.SINGLE_NUMA_NODE)) as node:
        node.registered(numa(n0="ab", n1="xy"))
        pod = node.kubelet.start_pod("p", {GPU: 3})
        assert (pod.reason, pod.message) == (
            "TopologyAffinityError",
            "Pod was rejected: Resources cannot be allocated with Topology locality",
        )
    with fake_node(two_sockets(TopologyPolicy.BEST_EFFORT)) as node:
        node.registered(numa(n0="ab", n1="xy"))
        assert node.kubelet.start_pod("p", {GPU: 3}).phase is Phase.RUNNING


def test_restricted_refuses_what_fits_one_node_but_finds_it_half_taken() -> None:
    """Preferred is as few nodes as the devices would allow if all were free."""
    with fake_node(two_sockets(TopologyPolicy.RESTRICTED)) as node:
        node.registered(numa(n0="ab", n1="xy"))
        held = [node.kubelet.start_pod(name, {GPU: 1}).ids(GPU)[0] for name in ("p", "q", "r")]
        for name, device_id in zip(("p", "q", "r"), held, strict=True):
            if sum((other in "ab") == (device_id in "ab") for other in held) == 2:
                node.kubelet.delete_pod(name)
                break
        assert node.kubelet.start_pod("t", {GPU: 2}).reason == "TopologyAffinityError"
        assert node.kubelet.start_pod("u", {GPU: 1}).phase is Phase.RUNNING


@pytest.mark.parametrize("policy", [TopologyPolicy.RESTRICTED, TopologyPolicy.SINGLE_NUMA_NODE])
def test_numa_node_minus_one_can_never_be_placed(policy: TopologyPolicy) -> None:
    """§14"""
    with fake_node(two_sockets(policy)) as node:
        node.registered(numa(minus="ab"))
        assert node.kubelet.start_pod("p", {GPU: 1}).reason == "TopologyAffinityError"


def test_without_topology_every_policy_admits() -> None:
    with fake_node(two_sockets(TopologyPolicy.SINGLE_NUMA_NODE)) as node:
        node.registered("ab")
        assert node.kubelet.start_pod("p", {GPU: 2}).phase is Phase.RUNNING


def test_with_topology_a_dropped_held_id_crashes_the_kubelet_at_a_resize_and_again_at_each_start() -> None:
    """§3: a crash loop, as long as pod and list stay so."""
    settings = dataclasses.replace(two_sockets(TopologyPolicy.BEST_EFFORT), sources_ready_after_s=None)
    with fake_node(settings) as node:
        plugin = node.registered(numa(n0="a"))
        node.kubelet.start_pod("p", {GPU: 1})
        plugin.send(numa(n0="b"))
        node.kubelet.wait_for(lambda: node.kubelet.healthy(GPU) == {"b"})
        with pytest.raises(KubeletPanic, match="device a is held and not in the list"):
            node.kubelet.resize_pod("p")
        for _ in range(2):
            node.kubelet.start()
            plugin.stop()
            plugin.serve()
            node.register(plugin)
            node.kubelet.sources_become_ready()
            node.kubelet.wait_for(lambda: not node.kubelet.running)
        assert len(node.kubelet.take_panics()) == 3


def test_with_topology_an_init_containers_id_dropped_before_the_next_container_crashes_it() -> None:
    """§3"""
    with fake_node(two_sockets(TopologyPolicy.BEST_EFFORT)) as node:
        plugin = node.registered(numa(n0="a"), endpoint="g.sock")
        other = node.registered("o", OTHER, "o.sock")

        def drop(ids: Sequence[str]) -> bytes:
            plugin.send(numa(n0="b"))
            node.kubelet.wait_for(lambda: node.kubelet.healthy(GPU) == {"b"})
            return allocation()

        other.on_allocate = drop
        inits = [ContainerSpec(name="i1", limits={GPU: 1}), ContainerSpec(name="i2", limits={OTHER: 1})]
        with pytest.raises(KubeletPanic, match="device a is held and not in the list"):
            node.kubelet.start_pod("p", {GPU: 1}, init_containers=inits)
        node.kubelet.take_panics()
