"""Looks at the GPUs' health: what each sign may be taken for, and what not."""

from __future__ import annotations

import threading

import pytest

from sharer.core.errors import NodeError
from sharer.core.ports.driver import GpuSigns
from sharer.simulation.hardware import SimulatedGpu
from tests.adapters.nvml.conftest import MakeNode, OpenDriver
from tests.adapters.nvml.gpus import xid

A, B, C = SimulatedGpu(uuid="GPU-a"), SimulatedGpu(uuid="GPU-b"), SimulatedGpu(uuid="GPU-c")
LONG_S = 30.0  # nobody waits that long where the code is right


def fine(uuid: str) -> GpuSigns:
    return GpuSigns(uuid=uuid, lost=None, monitored=True, monitored_problem=None, recovery_action="none")


def test_a_look_tells_the_signs_of_every_gpu(make_node: MakeNode, open_driver: OpenDriver) -> None:
    assert open_driver(make_node(A, B)).signs() == (fine("GPU-a"), fine("GPU-b"))


def test_a_gpu_that_cannot_report_events_is_unmonitored_and_one_that_fails_to_has_a_problem(
    make_node: MakeNode, open_driver: OpenDriver
) -> None:
    """P16"""
    node = make_node(A, B, C)
    node.fail("nvmlDeviceRegisterEvents", 3, uuid="GPU-b")
    node.fail("nvmlDeviceRegisterEvents", 999, uuid="GPU-c")
    good, unable, failing = open_driver(node).signs()
    assert (good.monitored, good.monitored_problem) == (True, None)
    assert (unable.monitored, unable.monitored_problem) == (False, None)
    assert failing.monitored is None
    assert "NVML error 999" in (failing.monitored_problem or "")


def test_a_gpu_that_lists_no_xid_events_is_unmonitored_and_not_registered(
    make_node: MakeNode, open_driver: OpenDriver
) -> None:
    """P16"""
    node = make_node(SimulatedGpu(uuid="GPU-a", reports_events=False))
    assert open_driver(node).signs()[0].monitored is False
    assert node.calls("nvmlDeviceRegisterEvents") == 0


@pytest.mark.parametrize("code", [3, 13])
def test_an_old_card_is_unmonitored(make_node: MakeNode, open_driver: OpenDriver, code: int) -> None:
    """P16"""
    node = make_node(A, B)
    node.fail("nvmlDeviceGetSupportedEventTypes", code, uuid="GPU-a")
    node.fail("nvmlDeviceRegisterEvents", code, uuid="GPU-a")
    assert [sign.monitored for sign in open_driver(node).signs()] == [False, True]


@pytest.mark.parametrize(("code", "monitored", "registrations"), [(3, False, 0), (13, True, 1), (999, True, 1)])
def test_only_a_gpu_that_says_so_is_not_even_registered(
    make_node: MakeNode, open_driver: OpenDriver, code: int, monitored: bool, registrations: int
) -> None:
    """P16"""
    node = make_node(A)
    node.fail("nvmlDeviceGetSupportedEventTypes", code)
    assert open_driver(node).signs()[0].monitored is monitored
    assert node.calls("nvmlDeviceRegisterEvents") == registrations


def test_a_registration_that_failed_is_tried_again(make_node: MakeNode, open_driver: OpenDriver) -> None:
    node = make_node(A)
    node.fail("nvmlDeviceRegisterEvents", 999, times=1)
    driver = open_driver(node)
    assert driver.wait_for_xid(0.0) is None
    assert driver.signs()[0].monitored is True
    node.xid("GPU-a", 79)
    assert driver.wait_for_xid(LONG_S) == xid(79)


@pytest.mark.parametrize("code", [15, 16])
def test_a_gpu_that_says_that_it_is_lost_is_lost(make_node: MakeNode, open_driver: OpenDriver, code: int) -> None:
    """P15"""
    node = make_node(A, B)
    driver = open_driver(node)
    driver.signs()
    fault = node.fail("*", code, uuid="GPU-a")
    lost, whole = driver.signs()
    assert f"NVML error {code}" in (lost.lost or "")
    assert whole == fine("GPU-b")
    node.clear(fault)
    assert driver.signs() == (fine("GPU-a"), fine("GPU-b"))


@pytest.mark.parametrize("function", ["*", "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetMemoryInfo_v2"])
def test_an_unclear_answer_makes_a_gpu_neither_lost_nor_found(
    make_node: MakeNode, open_driver: OpenDriver, function: str
) -> None:
    """A GPU that was lost and is back counts as reset: no mere error may look like that."""
    node = make_node(A)
    driver = open_driver(node)
    driver.signs()
    unclear = node.fail(function, 999, uuid="GPU-a")
    node.fail("nvmlDeviceGetMemoryInfo", 999, uuid="GPU-a")
    assert driver.signs()[0].lost is None
    node.clear()
    loss = node.lose("GPU-a")
    assert driver.signs()[0].lost is not None
    node.clear(loss)
    unclear = node.fail(function, 999, uuid="GPU-a")
    node.fail("nvmlDeviceGetMemoryInfo", 999, uuid="GPU-a")
    driver.discover()  # which looks for its handle again
    assert driver.signs()[0].lost is not None
    node.clear(unclear)


def test_a_look_asks_the_gpus_that_are_known_without_looking_for_them_again(
    make_node: MakeNode, open_driver: OpenDriver
) -> None:
    """There are twenty looks a minute; who exists is asked by the full ones."""
    node = make_node(A, B)
    driver = open_driver(node)
    assert driver.signs() == (fine("GPU-a"), fine("GPU-b"))
    node.fail("nvmlDeviceGetHandleByIndex_v2", 999)
    node.fail("nvmlDeviceGetUUID", 999)
    assert driver.signs() == (fine("GPU-a"), fine("GPU-b"))


def test_a_driver_that_is_gone_is_found_out_by_the_second_look(make_node: MakeNode, open_driver: OpenDriver) -> None:
    """One GPU's error may be its own; then the GPUs are counted again, which a dead driver refuses."""
    node = make_node(A)
    driver = open_driver(node)
    driver.signs()
    node.fail("*", 999)
    driver.signs()
    with pytest.raises(NodeError, match="999"):
        driver.signs()
    node.clear()
    assert driver.signs() == (fine("GPU-a"),)


def test_a_gpu_without_memory_figures_answers_all_the_same(make_node: MakeNode, open_driver: OpenDriver) -> None:
    """P25: that it has none is an answer, so it is back after a loss."""
    node = make_node(SimulatedGpu(uuid="GPU-a", memory_bytes=None))
    driver = open_driver(node)
    assert driver.signs() == (fine("GPU-a"),)
    loss = node.lose("GPU-a")
    assert driver.signs()[0].lost is not None
    node.clear(loss)
    assert driver.signs() == (fine("GPU-a"),)


@pytest.mark.parametrize(
    ("action", "words"), [(0, "none"), (1, "GPU reset"), (2, "node reboot"), (9, "action 9"), (None, None)]
)
def test_the_recovery_action_is_told_in_words(
    make_node: MakeNode, open_driver: OpenDriver, action: int | None, words: str | None
) -> None:
    (sign,) = open_driver(make_node(SimulatedGpu(uuid="GPU-a", recovery_action=action))).signs()
    assert sign.recovery_action == words


def test_a_driver_without_field_values_tells_no_recovery_action(make_node: MakeNode, open_driver: OpenDriver) -> None:
    (sign,) = open_driver(make_node(A, missing=["nvmlDeviceGetFieldValues"])).signs()
    assert (sign.recovery_action, sign.lost, sign.monitored) == (None, None, True)


def test_a_look_at_a_driver_that_hangs_is_an_error_and_no_sign(make_node: MakeNode, open_driver: OpenDriver) -> None:
    node = make_node(A)
    driver = open_driver(node, call_deadline_s=1.0)
    driver.signs()
    node.hang("nvmlDeviceGetMemoryInfo_v2")
    with pytest.raises(NodeError, match="NVML does not answer"):
        driver.signs()


def test_both_threads_end_with_the_driver(make_node: MakeNode, open_driver: OpenDriver) -> None:
    before = set(threading.enumerate())
    driver = open_driver(make_node(A))
    driver.signs()
    threads = set(threading.enumerate()) - before
    assert {thread.name for thread in threads} == {"nvml", "nvml-events"}
    driver.close()
    for thread in threads:
        thread.join(timeout=30)
    assert not any(thread.is_alive() for thread in threads)
