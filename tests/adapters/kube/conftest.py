"""The lab that every test of the API client works in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sharer.simulation.apiserver import ApiServer
from tests.adapters.kube.lab import KubeLab


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer().start() as server:
        yield server


@pytest.fixture
def lab(tmp_path: Path, server: ApiServer) -> Iterator[KubeLab]:
    lab = KubeLab(tmp_path, server)
    yield lab
    lab.close()
