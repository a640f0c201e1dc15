"""The driver let go of for a while: whoever manages it must find nothing of ours open."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from sharer.core.errors import NodeError
from sharer.simulation.hardware import SimulatedGpu
from sharer.simulation.steering import GpuSteering
from tests.adapters.nvml.conftest import MakeNode, OpenDriver

A = SimulatedGpu(uuid="GPU-a")
WHY = "paused by the node's label a=b"
PATIENCE_S = 30.0


def is_open(node: GpuSteering) -> bool:
    return node.calls("nvmlInitWithFlags") > node.calls("nvmlShutdown")


def test_a_paused_driver_is_closed_and_answers_nobody_but_with_the_reason(
    make_node: MakeNode, open_driver: OpenDriver
) -> None:
    node = make_node(A)
    driver = open_driver(node)
    driver.discover()
    driver.signs()
    assert is_open(node)
    driver.pause(WHY)
    assert not is_open(node)
    for question in (driver.discover, driver.signs, driver.processes, driver.topology):
        with pytest.raises(NodeError, match=WHY):
            question()
    driver.pause(WHY)
    assert not is_open(node)


def test_who_waits_for_xids_waits_out_the_pause_without_an_error_and_hears_of_the_next_one(
    make_node: MakeNode, open_driver: OpenDriver
) -> None:
    node = make_node(A)
    driver = open_driver(node)
    driver.discover()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(driver.wait_for_xid, PATIENCE_S)
        node.wait_for_calls("nvmlEventSetWait_v2", 1)
        driver.pause(WHY)
        assert waiting.result(PATIENCE_S) is None
        assert driver.wait_for_xid(0.01) is None
        assert not is_open(node)
        driver.resume()
        heard = pool.submit(driver.wait_for_xid, PATIENCE_S)
        node.wait_for_calls("nvmlEventSetWait_v2", node.calls("nvmlEventSetWait_v2") + 1)
        node.xid(A.uuid, 79)
        event = heard.result(PATIENCE_S)
    assert event is not None
    assert event.xid == 79


def test_a_question_that_was_asked_before_the_pause_does_not_open_nvml_again(
    make_node: MakeNode, open_driver: OpenDriver
) -> None:
    """Questions from many threads while it is paused: whatever their order, nothing is open afterwards."""
    node = make_node(A)
    driver = open_driver(node)
    begin = threading.Barrier(9)

    def ask() -> None:
        begin.wait(PATIENCE_S)
        try:
            driver.discover()
        except NodeError:
            return

    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(ask) for _ in range(8)]
        begin.wait(PATIENCE_S)
        driver.pause(WHY)
        assert [one.result(PATIENCE_S) for one in asked] == [None] * 8
    assert not is_open(node)


def test_after_the_pause_the_next_question_opens_it_anew(make_node: MakeNode, open_driver: OpenDriver) -> None:
    node = make_node(A)
    driver = open_driver(node)
    driver.discover()
    driver.pause(WHY)
    driver.resume()
    assert not is_open(node), "nobody has asked yet"
    assert [gpu.uuid for gpu in driver.discover().gpus] == ["GPU-a"]
