"""Compute modes, on both simulated libraries."""

from __future__ import annotations

import pytest

from sharer.core.errors import NodeError
from sharer.core.mps.compute_modes import EXCLUSIVE_PROCESS
from tests.adapters.nvml.conftest import MakeNode, OpenDriver
from tests.adapters.nvml.gpus import A, B

NO_PERMISSION, UNKNOWN = 4, 999


def test_a_mode_is_set_and_read_back_for_one_gpu_only(make_node: MakeNode, open_driver: OpenDriver) -> None:
    node = make_node(A, B)
    driver = open_driver(node)
    assert driver.compute_mode(A.uuid) == 0
    driver.set_compute_mode(A.uuid, EXCLUSIVE_PROCESS)
    assert (driver.compute_mode(A.uuid), driver.compute_mode(B.uuid)) == (EXCLUSIVE_PROCESS, 0)
    assert (node.compute_mode(A.uuid), node.compute_mode(B.uuid)) == (EXCLUSIVE_PROCESS, 0)


def test_a_driver_that_does_not_let_us_says_who_may(make_node: MakeNode, open_driver: OpenDriver) -> None:
    node = make_node(A)
    node.fail("nvmlDeviceSetComputeMode", NO_PERMISSION)
    with pytest.raises(NodeError, match="only root may set it"):
        open_driver(node).set_compute_mode(A.uuid, EXCLUSIVE_PROCESS)


def test_a_mode_that_cannot_be_read_back_is_not_taken_for_set(make_node: MakeNode, open_driver: OpenDriver) -> None:
    node = make_node(A)
    node.fail("nvmlDeviceGetComputeMode", UNKNOWN)
    with pytest.raises(NodeError, match="cannot be read"):
        open_driver(node).set_compute_mode(A.uuid, EXCLUSIVE_PROCESS)
    assert node.compute_mode(A.uuid) == EXCLUSIVE_PROCESS


def test_a_gpu_that_is_not_there_is_an_error_and_does_not_cost_the_session(
    make_node: MakeNode, open_driver: OpenDriver
) -> None:
    node = make_node(A)
    driver = open_driver(node)
    driver.compute_mode(A.uuid)
    opened = node.calls("nvmlInitWithFlags")
    with pytest.raises(NodeError, match="GPU-gone"):
        driver.compute_mode("GPU-gone")
    assert node.calls("nvmlInitWithFlags") == opened


def test_modes_that_nvml_does_not_know_are_refused(make_node: MakeNode, open_driver: OpenDriver) -> None:
    with pytest.raises(NodeError, match="invalid argument"):
        open_driver(make_node(A)).set_compute_mode(A.uuid, 4)
