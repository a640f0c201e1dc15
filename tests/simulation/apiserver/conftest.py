"""A simulated API server that runs, and a client of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sharer.simulation.apiserver import ApiServer
from tests.simulation.apiserver.http import Http


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer().start() as server:
        yield server


@pytest.fixture
def http(server: ApiServer) -> Http:
    return Http(server)
