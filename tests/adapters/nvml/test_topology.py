"""How GPUs are linked, as far as the driver tells."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from sharer.core.errors import NodeError
from sharer.core.inventory import GpuLink, PcieDistance, Topology
from sharer.simulation.hardware import SimulatedGpu
from sharer.simulation.products import parse_gpus
from tests.adapters.nvml.conftest import MakeNode, OpenDriver

A = SimulatedGpu(uuid="GPU-a", pci_bus_id="00000000:10:00.0", pcie_switch=0, numa_node=0)
B = SimulatedGpu(uuid="GPU-b", pci_bus_id="00000000:11:00.0", pcie_switch=0, numa_node=0)
C = SimulatedGpu(uuid="GPU-c", pci_bus_id="00000000:20:00.0", pcie_switch=1, numa_node=0)
D = SimulatedGpu(uuid="GPU-d", pci_bus_id="00000000:30:00.0", pcie_switch=2, numa_node=1)


def by_pair(topology: Topology) -> dict[tuple[str, str], GpuLink]:
    return {link.uuids: link for link in topology.links}


def test_every_pair_has_its_distance_on_pcie(make_node: MakeNode, open_driver: OpenDriver) -> None:
    links = open_driver(make_node(A, B, C, D)).topology().links
    assert [(link.uuids, link.pcie) for link in links] == [
        (("GPU-a", "GPU-b"), PcieDistance.ONE_SWITCH),
        (("GPU-a", "GPU-c"), PcieDistance.NUMA_NODE),
        (("GPU-a", "GPU-d"), PcieDistance.SYSTEM),
        (("GPU-b", "GPU-c"), PcieDistance.NUMA_NODE),
        (("GPU-b", "GPU-d"), PcieDistance.SYSTEM),
        (("GPU-c", "GPU-d"), PcieDistance.SYSTEM),
    ]
    assert {(link.nvlinks, link.unknown) for link in links} == {(0, ())}


def test_direct_nvlinks_are_counted_per_pair_and_those_that_are_down_are_not(
    make_node: MakeNode, open_driver: OpenDriver
) -> None:
    node = make_node(
        replace(A, nvlinks=("GPU-b", "GPU-b", "", "GPU-c")),
        replace(B, nvlinks=("GPU-a", "GPU-a")),
        replace(C, nvlinks=("", "GPU-a")),
    )
    links = by_pair(open_driver(node).topology())
    assert {pair: link.nvlinks for pair, link in links.items()} == {
        ("GPU-a", "GPU-b"): 2,
        ("GPU-a", "GPU-c"): 1,
        ("GPU-b", "GPU-c"): 0,
    }


def test_over_switches_every_pair_has_as_many_nvlinks_as_the_poorer_one(
    make_node: MakeNode, open_driver: OpenDriver
) -> None:
    node = make_node(replace(A, nvlinks=("switch",) * 18), replace(B, nvlinks=("switch",) * 12), C)
    links = by_pair(open_driver(node).topology())
    assert [links[pair].nvlinks for pair in (("GPU-a", "GPU-b"), ("GPU-a", "GPU-c"))] == [12, 0]


def test_without_the_query_for_the_other_ends_kind_direct_links_are_still_counted(
    make_node: MakeNode, open_driver: OpenDriver
) -> None:
    node = make_node(
        replace(A, nvlinks=("GPU-b",)), replace(B, nvlinks=("GPU-a",)), missing=["nvmlDeviceGetNvLinkRemoteDeviceType"]
    )
    assert open_driver(node).topology().links[0].nvlinks == 1


@pytest.mark.parametrize("function", ["nvmlDeviceGetNvLinkState", "nvmlDeviceGetNvLinkRemotePciInfo_v2"])
def test_links_that_cannot_be_read_are_unknown_for_the_pairs_of_that_gpu(
    make_node: MakeNode, open_driver: OpenDriver, function: str
) -> None:
    """P15: no single GPU spoils the topology."""
    node = make_node(replace(A, nvlinks=("GPU-b",)), replace(B, nvlinks=("GPU-a",)), C)
    node.fail(function, 999, uuid="GPU-a")
    links = by_pair(open_driver(node).topology())
    assert (links["GPU-a", "GPU-b"].nvlinks, links["GPU-b", "GPU-c"].nvlinks) == (None, 0)
    assert "999" in dict(links["GPU-a", "GPU-b"].unknown)["nvlinks"]


@pytest.mark.parametrize("code", [3, 13, 999])
def test_a_distance_that_cannot_be_read_is_unknown(make_node: MakeNode, open_driver: OpenDriver, code: int) -> None:
    node = make_node(A, B)
    node.fail("nvmlDeviceGetTopologyCommonAncestor", code)
    (link,) = open_driver(node).topology().links
    assert (link.pcie, link.nvlinks) == (None, 0)
    assert "pcie" in dict(link.unknown)


def test_a_lost_gpu_is_in_no_pair(make_node: MakeNode, open_driver: OpenDriver) -> None:
    """P15"""
    node = make_node(A, B, C)
    node.lose("GPU-b")
    assert list(by_pair(open_driver(node).topology())) == [("GPU-a", "GPU-c")]
    assert node.calls("nvmlInitWithFlags") == 1


def test_a_gpu_that_gets_lost_while_its_links_are_read_is_unknown(make_node: MakeNode, open_driver: OpenDriver) -> None:
    node = make_node(replace(A, nvlinks=("switch",)), B, C)
    node.fail("nvmlDeviceGetNvLinkState", 15, uuid="GPU-a")
    links = by_pair(open_driver(node).topology())
    assert links["GPU-a", "GPU-b"].nvlinks is None
    assert links["GPU-b", "GPU-c"].nvlinks == 0


def test_slow_link_queries_delay_nobody_else(make_node: MakeNode, open_driver: OpenDriver) -> None:
    """P12: each link query takes long; a look at the GPUs comes in between."""
    node = make_node(*(replace(gpu, nvlinks=("switch",) * 4) for gpu in (A, B, C)))
    driver = open_driver(node)
    driver.discover()
    slow = node.delay("nvmlDeviceGetNvLinkState", 1.0)
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(driver.topology)
        node.wait_for_calls("nvmlDeviceGetNvLinkState", 1)
        begun_s = time.monotonic()
        driver.discover()
        assert time.monotonic() - begun_s < 8.0, "12 queries take 12 s"
        assert not reading.done()
        node.clear(slow)
        assert [link.nvlinks for link in reading.result(timeout=30).links] == [4, 4, 4]


def test_a_topology_that_hangs_is_an_error(make_node: MakeNode, open_driver: OpenDriver) -> None:
    node = make_node(A, B)
    node.hang("nvmlDeviceGetTopologyCommonAncestor")
    with pytest.raises(NodeError, match="NVML does not answer"):
        open_driver(node, call_deadline_s=0.3).topology()


def test_a_session_that_is_replaced_meanwhile_does_not_matter(make_node: MakeNode, open_driver: OpenDriver) -> None:
    node = make_node(A, B)
    driver = open_driver(node)
    slow = node.hang("nvmlDeviceGetTopologyCommonAncestor")
    with ThreadPoolExecutor(2) as pool:
        reading = pool.submit(driver.topology)
        node.wait_for_calls("nvmlDeviceGetTopologyCommonAncestor", 1)
        closing = pool.submit(driver.close)
        threading.Event().wait(0.05)
        node.clear(slow)
        closing.result(timeout=30)
        assert reading.result(timeout=30).links[0].pcie is PcieDistance.ONE_SWITCH


def test_eight_gpus_of_one_board_reach_each_other_over_their_switches(
    make_node: MakeNode, open_driver: OpenDriver
) -> None:
    links = open_driver(make_node(*parse_gpus("8xH100-80GB"))).topology().links
    assert [link.nvlinks for link in links] == [18] * 28
