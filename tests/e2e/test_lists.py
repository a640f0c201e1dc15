"""What the agent lists, and when it lists again (kubelet-contract §3, §19 rows 15 to 27, §22)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from itertools import count

from sharer.core.policy.list_size import MAX_LIST_BYTES, most_numbered_ids
from sharer.kubeletapi import deviceplugin_pb2 as api
from sharer.simulation.kubelet import Phase
from tests.e2e.conftest import MakeNode
from tests.e2e.gpus import GPU, WHOLE, A, B, gpu, policy, shared, slices
from tests.e2e.node import Node, Plugin
from tests.e2e.process import PATIENCE_S, quickest_s

FATAL_XID = 79


def test_two_resources_list_only_their_own_slices(node: Node) -> None:
    """Contract row 15."""
    node.write_policy(policy(f"{{match: {{uuid: [{A.uuid}]}}, strategy: exclusive}}", shared(4)))
    node.start_agent()
    node.wait_listed(1, WHOLE)
    node.wait_listed(4, GPU)
    assert node.ids(WHOLE) == (f"{A.uuid}::ex-0",)
    assert list(node.ids(GPU)) == slices(B, 4, 20480)


def test_every_open_stream_gets_the_list_and_every_change(node: Node) -> None:
    """Contract row 24."""
    node.start_agent()
    node.wait_listed(8)
    with node.plugin() as plugin, opened_stream(plugin) as stream:
        assert [device.ID for device in next(stream).devices] == list(node.ids())
        node.gpus.xid(A.uuid, FATAL_XID)
        after = next(stream).devices
    assert {device.ID for device in after if device.health == "Unhealthy"} == set(slices(A, 4, 20480))
    node.wait_unhealthy(slices(A, 4, 20480))


def test_the_largest_list_that_is_accepted_arrives_also_when_every_slice_of_it_is_unhealthy(node: Node) -> None:
    """Contract rows 26 and 30, pitfall 25, P04: one slice more is refused, and changes nothing."""
    one = replace(A, numa_node=1)
    node.write_device_files([one])
    most = most_numbered_ids(len(f"{one.uuid}::ts-"))
    rule = f"match: {{uuid: [{one.uuid}]}}, strategy: time-slicing, memory: {{limit: none}}"
    node.write_policy(policy(f"{{{rule}, slices: {most}}}"))
    agent = node.start_agent()
    node.wait_listed(most)
    names = count()

    def start_pod() -> None:
        assert node.kubelet.start_pod(f"p{next(names)}", {GPU: 1}).phase is Phase.RUNNING  # preferred among all of them

    assert quickest_s(start_pod, tries=3) < 2
    node.write_policy(policy(f"{{{rule}, slices: {most + 1}}}"))
    node.wake(one)
    agent.wait_log(f"rules[0].slices: {most + 1} slices of one GPU make a device list of")
    node.gpus.xid(one.uuid, FATAL_XID)
    largest = node.wait_unhealthy(slices(one, most))
    assert MAX_LIST_BYTES - 100 < largest.size_bytes <= MAX_LIST_BYTES
    assert len(node.lists()) == 2
    node.kubelet.wait_capacity(GPU, most, allocatable=0)


def test_numa_nodes_are_told_for_every_slice_of_a_resource_or_for_none(make_node: MakeNode) -> None:
    """Contract row 27, pitfall 42. sysfs says -1 where there is no affinity."""
    whole = [gpu(0, numa_node=0), gpu(1, numa_node=1)]
    node = make_node(*whole, gpu(2, numa_node=1), gpu(3, numa_node=None))
    node.kubelet.start()
    uuids = ", ".join(one.uuid for one in whole)
    node.write_policy(policy(f"{{match: {{uuid: [{uuids}]}}, strategy: exclusive}}", shared(2)))
    node.start_agent()
    node.wait_listed(2, WHOLE)
    node.wait_listed(4, GPU)
    assert [device.numa_nodes for device in node.lists(WHOLE)[-1].devices] == [(0,), (1,)]
    assert {device.numa_nodes for device in node.lists(GPU)[-1].devices} == {()}


@contextlib.contextmanager
def opened_stream(plugin: Plugin) -> Iterator[Iterator[api.ListAndWatchResponse]]:
    """A ListAndWatch of our own."""
    call = plugin.stub.ListAndWatch(api.Empty(), timeout=PATIENCE_S)
    try:
        yield iter(call)
    finally:
        call.cancel()
