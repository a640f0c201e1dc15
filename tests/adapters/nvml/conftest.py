"""Each test here runs twice: on the Python NVML of `sharer simulate`, and on the C one, a real `libnvidia-ml.so.1`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Protocol

import pytest

from sharer.adapters.nvml import NvmlDriver
from sharer.simulation.gpus import SimulatedGpus
from sharer.simulation.hardware import SimulatedGpu
from sharer.simulation.memory_limits import LimitBackend
from sharer.simulation.steering import GpuSteering
from tests.fakes.nvml import InstalledGpus


class MakeNode(Protocol):
    """Makes a node with these GPUs."""

    def __call__(
        self,
        *gpus: SimulatedGpu,
        driver_version: str | None = "580.95.05",
        missing: Collection[str] = (),
        limit_backend: LimitBackend = LimitBackend.NONE,
    ) -> GpuSteering: ...


class OpenDriver(Protocol):
    """Makes the driver of a node; closed at the end of the test."""

    def __call__(
        self,
        node: GpuSteering,
        *,
        call_deadline_s: float = 10.0,
        open_deadline_s: float = 10.0,
        reopen_after_s: float = 60.0,
        listen_s: float = 0.05,
        now_s: Callable[[], float] = lambda: 0.0,
    ) -> NvmlDriver: ...


@pytest.fixture(params=["python", "c"])
def make_node(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MakeNode]:
    with contextlib.ExitStack() as closing:

        def make(
            *gpus: SimulatedGpu,
            driver_version: str | None = "580.95.05",
            missing: Collection[str] = (),
            limit_backend: LimitBackend = LimitBackend.NONE,
        ) -> GpuSteering:
            if request.param == "python":
                return SimulatedGpus(gpus, driver_version=driver_version, missing=missing, limit_backend=limit_backend)
            node = InstalledGpus(
                tmp_path / "driver", gpus, driver_version=driver_version, missing=missing, limit_backend=limit_backend
            )
            closing.callback(node.close)
            return node

        yield make


@pytest.fixture
def sys_root(tmp_path: Path) -> Path:
    return tmp_path / "sys"


@pytest.fixture
def open_driver(make_node: MakeNode, sys_root: Path) -> Iterator[OpenDriver]:
    opened: list[tuple[GpuSteering, NvmlDriver]] = []

    def open_(
        node: GpuSteering,
        *,
        call_deadline_s: float = 10.0,
        open_deadline_s: float = 10.0,
        reopen_after_s: float = 60.0,
        listen_s: float = 0.05,
        now_s: Callable[[], float] = lambda: 0.0,
    ) -> NvmlDriver:
        driver = NvmlDriver(
            node.library,
            sys_root,
            call_deadline_s=call_deadline_s,
            open_deadline_s=open_deadline_s,
            reopen_after_s=reopen_after_s,
            listen_s=listen_s,
            now_s=now_s,
        )
        opened.append((node, driver))
        return driver

    yield open_
    with ThreadPoolExecutor(1) as pool:
        for node, driver in opened:
            node.clear()
            closing = pool.submit(driver.close)
            while wait([closing], timeout=0.01).not_done:  # an event ends the wait of a listener at once
                for gpu in node.gpus:
                    node.xid(gpu.uuid, 0)
            closing.exception()  # a driver that was replaced cannot be closed, and need not be
