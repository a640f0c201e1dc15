"""XID events: how they come, and a driver that gives none."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from ctypes import byref, c_uint
from typing import Any

import pynvml
import pytest

from sharer.adapters.nvml import NvmlDriver
from sharer.core.errors import NodeError
from sharer.core.ports.driver import XidEvent
from sharer.simulation.hardware import SimulatedGpu
from tests.adapters.nvml.conftest import MakeNode, OpenDriver
from tests.adapters.nvml.gpus import xid

A, B, C = SimulatedGpu(uuid="GPU-a"), SimulatedGpu(uuid="GPU-b"), SimulatedGpu(uuid="GPU-c")
LONG_S = 30.0  # nobody waits that long where the code is right


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


# Events.


def test_an_xid_comes_at_once_with_its_gpu(
    make_node: MakeNode, open_driver: OpenDriver, pool: ThreadPoolExecutor
) -> None:
    node = make_node(A, B)
    driver = open_driver(node, listen_s=60.0)
    waiting = pool.submit(driver.wait_for_xid, LONG_S)
    node.wait_for_calls("nvmlEventSetWait_v2", 1)
    node.xid("GPU-b", 79)
    assert waiting.result(timeout=30) == xid(79, "GPU-b"), "the driver wakes the listener: nobody polls"


def test_an_xid_on_a_mig_device_carries_its_instances(make_node: MakeNode, open_driver: OpenDriver) -> None:
    node = make_node(A)
    driver = open_driver(node)
    driver.signs()
    node.xid("GPU-a", 94, gpu_instance_id=7, compute_instance_id=0)
    assert driver.wait_for_xid(LONG_S) == XidEvent(gpu_uuid="GPU-a", gpu_instance_id=7, compute_instance_id=0, xid=94)


def test_an_xid_of_a_gpu_that_nvml_does_not_name_is_not_dropped(make_node: MakeNode, open_driver: OpenDriver) -> None:
    node = make_node(A)
    driver = open_driver(node)
    driver.signs()
    node.xid(None, 79)
    assert driver.wait_for_xid(LONG_S) == xid(79, None)


class OtherHandles:
    """A library whose events carry another handle than the one that was registered: here, that of GPU 1."""

    def __init__(self, library: object) -> None:
        self._library = library

    def __getattr__(self, name: str) -> Callable[..., int]:
        function: Callable[..., int] = getattr(self._library, name)
        return self._wait if name == "nvmlEventSetWait_v2" else function

    def _wait(self, event_set: object, data: Any, timeout_ms: object) -> int:
        code = getattr(self._library, "nvmlEventSetWait_v2")(event_set, data, timeout_ms)  # noqa: B009
        if code == 0:
            device = pynvml.c_nvmlDevice_t()
            getattr(self._library, "nvmlDeviceGetHandleByIndex_v2")(c_uint(1), byref(device))  # noqa: B009
            data._obj.device = device
        return int(code)


def test_an_event_with_a_handle_of_its_own_is_named_by_asking(make_node: MakeNode) -> None:
    node = make_node(A, SimulatedGpu(uuid="GPU-b", reports_events=False))
    with contextlib.closing(NvmlDriver(lambda: OtherHandles(node.library()), listen_s=0.05)) as driver:
        driver.signs()
        node.xid("GPU-a", 79)
        assert driver.wait_for_xid(LONG_S) == xid(79, "GPU-b")


def test_without_an_xid_the_wait_ends_at_its_time(make_node: MakeNode, open_driver: OpenDriver) -> None:
    begun_s = time.monotonic()
    assert open_driver(make_node(A)).wait_for_xid(0.1) is None
    assert time.monotonic() - begun_s >= 0.1


def test_xids_that_nobody_fetched_wait_in_order_and_a_storm_is_one_event(
    make_node: MakeNode, open_driver: OpenDriver
) -> None:
    """Neighbour of P13: many XIDs at once, on several GPUs."""
    node = make_node(A, B)
    driver = open_driver(node)
    driver.signs()
    for _ in range(100):
        node.xid("GPU-a", 31)
    node.xid("GPU-b", 79)
    node.wait_for_calls("nvmlEventSetWait_v2", 102)
    assert [driver.wait_for_xid(LONG_S), driver.wait_for_xid(LONG_S)] == [xid(31), xid(79, "GPU-b")]
    assert driver.wait_for_xid(0.05) is None


def test_each_gpu_is_registered_once(make_node: MakeNode, open_driver: OpenDriver) -> None:
    """P13: not once per slice, per look or per wait."""
    node = make_node(A, B)
    driver = open_driver(node)
    for _ in range(3):
        driver.signs()
        driver.discover()
        driver.wait_for_xid(0.0)
    assert (node.calls("nvmlDeviceRegisterEvents"), node.calls("nvmlEventSetCreate")) == (2, 1)


def test_waiting_for_xids_delays_no_other_question(
    make_node: MakeNode, open_driver: OpenDriver, pool: ThreadPoolExecutor
) -> None:
    node = make_node(A)
    driver = open_driver(node, listen_s=60.0)
    driver.signs()
    waiting = pool.submit(driver.wait_for_xid, LONG_S)
    node.wait_for_calls("nvmlEventSetWait_v2", 1)
    begun_s = time.monotonic()
    driver.discover()
    driver.signs()
    assert time.monotonic() - begun_s < 30.0
    node.xid("GPU-a", 79)
    assert waiting.result(timeout=30) == xid(79)


# Waits that fail.


def test_a_wait_that_fails_is_told_once_and_the_next_one_builds_a_new_event_set(
    make_node: MakeNode, open_driver: OpenDriver
) -> None:
    """Neighbour of P16: monitoring fails later, and comes back."""
    node = make_node(A)
    node.fail("nvmlEventSetWait_v2", 15, times=1)
    driver = open_driver(node)
    with pytest.raises(NodeError, match="XIDs cannot be waited for: the GPU is lost"):
        driver.wait_for_xid(LONG_S)
    assert driver.wait_for_xid(0.0) is None
    node.xid("GPU-a", 79)
    assert driver.wait_for_xid(LONG_S) == xid(79)
    assert (node.calls("nvmlEventSetCreate"), node.calls("nvmlEventSetFree")) == (2, 1)


def test_a_wait_that_does_not_wait_is_a_failure_and_no_busy_loop(make_node: MakeNode, open_driver: OpenDriver) -> None:
    node = make_node(A)
    node.fail("nvmlEventSetWait_v2", 10)
    with pytest.raises(NodeError, match="returns at once without an event"):
        open_driver(node, listen_s=60.0).wait_for_xid(LONG_S)
    assert node.calls("nvmlEventSetWait_v2") == 3


def test_a_driver_without_event_sets_is_told_to_who_waits_and_the_looks_go_on(
    make_node: MakeNode, open_driver: OpenDriver
) -> None:
    """Neighbour of P16: none of the GPUs can be heard of, and all of them work."""
    node = make_node(A)
    node.fail("nvmlEventSetCreate", 999)
    driver = open_driver(node)
    with pytest.raises(NodeError, match="nvmlEventSetCreate"):
        driver.wait_for_xid(LONG_S)
    (sign,) = driver.signs()
    assert (sign.lost, sign.monitored, sign.monitored_problem) == (None, None, None)
    assert node.calls("nvmlInitWithFlags") == 1, "the session itself is fine"


def test_a_wait_that_never_returns_is_told_and_stops_nothing_else(make_node: MakeNode, open_driver: OpenDriver) -> None:
    node = make_node(A)
    fault = node.hang("nvmlEventSetWait_v2", times=1)
    driver = open_driver(node, call_deadline_s=1.0)
    with pytest.raises(NodeError, match="nvmlEventSetWait_v2 has not returned"):
        driver.wait_for_xid(LONG_S)
    assert len(driver.discover().gpus) == 1
    assert driver.signs()[0].lost is None
    with pytest.raises(NodeError, match="nvmlEventSetWait_v2 has not returned"):
        driver.wait_for_xid(LONG_S)
    node.clear(fault)
    node.wait_for_calls("nvmlEventSetWait_v2", 2)
    node.xid("GPU-a", 79)
    assert driver.wait_for_xid(LONG_S) == xid(79)


def test_closing_ends_a_wait_and_nothing_is_opened_again(
    make_node: MakeNode, open_driver: OpenDriver, pool: ThreadPoolExecutor
) -> None:
    node = make_node(A)
    driver = open_driver(node)
    waiting = pool.submit(driver.wait_for_xid, LONG_S)
    node.wait_for_calls("nvmlEventSetWait_v2", 1)
    driver.close()
    assert waiting.result(timeout=30) is None
    assert (node.calls("nvmlEventSetFree"), node.calls("nvmlShutdown"), node.calls("nvmlInitWithFlags")) == (1, 1, 1)


def test_a_new_session_hears_of_its_gpus_again(make_node: MakeNode, open_driver: OpenDriver) -> None:
    node = make_node(A)
    driver = open_driver(node)
    driver.signs()
    node.put(B)
    node.fail("nvmlDeviceGetCount_v2", 1, times=1)
    driver.discover()
    assert driver.wait_for_xid(0.0) is None
    node.xid("GPU-b", 79)
    assert driver.wait_for_xid(LONG_S) == xid(79, "GPU-b")


def test_what_was_heard_before_a_session_ended_is_still_told(make_node: MakeNode, open_driver: OpenDriver) -> None:
    node = make_node(A)
    driver = open_driver(node)
    driver.signs()
    node.xid("GPU-a", 79)
    node.wait_for_calls("nvmlEventSetWait_v2", 2)
    driver.close()
    node.fail("nvmlInitWithFlags", 9)
    assert driver.wait_for_xid(LONG_S) == xid(79)
    with pytest.raises(NodeError, match="driver not loaded"):
        driver.wait_for_xid(LONG_S)


def test_a_node_without_gpus_has_nothing_to_listen_to(make_node: MakeNode, open_driver: OpenDriver) -> None:
    node = make_node()
    driver = open_driver(node)
    assert driver.wait_for_xid(0.05) is None
    assert driver.signs() == ()
    assert node.calls("nvmlEventSetWait_v2") == 0
