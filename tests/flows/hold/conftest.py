"""Nodes whose limits are looked after, on each library and backend, or on the quickest."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from sharer.simulation.gpus import SimulatedGpus
from sharer.simulation.memory_limits import LimitBackend
from tests.fakes.nvml import InstalledGpus
from tests.flows.limited_node import GPUS, LimitedNode


@pytest.fixture(params=["python-dmem", "python-misc", "c-dmem", "c-misc"])
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LimitedNode]:
    library, _, backend = request.param.partition("-")
    kind = LimitBackend[backend.upper()]
    with contextlib.ExitStack() as closing:
        if library == "c":
            gpus = InstalledGpus(tmp_path / "driver", GPUS, limit_backend=kind)
            closing.callback(gpus.close)
            made = LimitedNode(tmp_path / "node", gpus=gpus)
        else:
            made = LimitedNode(tmp_path / "node", gpus=SimulatedGpus(GPUS, limit_backend=kind))
        closing.callback(made.close)
        yield made


@pytest.fixture
def quick(tmp_path: Path) -> Iterator[LimitedNode]:
    """For rules that do not depend on the library or the backend."""
    with contextlib.closing(LimitedNode(tmp_path / "node")) as made:
        yield made
