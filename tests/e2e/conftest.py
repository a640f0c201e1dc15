"""What the tests of the agent as a process are given."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Protocol

import pytest

from sharer.simulation.hardware import SimulatedGpu
from sharer.simulation.kubelet import KubeletSettings
from tests.e2e.api import Api, open_api
from tests.e2e.gpus import A, B
from tests.e2e.node import Node, open_node


class MakeNode(Protocol):
    """Makes a node with these GPUs; nothing runs on it yet. See `open_node`."""

    def __call__(
        self,
        *gpus: SimulatedGpu,
        settings: KubeletSettings | None = None,
        driver_installed: bool = True,
    ) -> Node: ...


@pytest.fixture
def make_node() -> Iterator[MakeNode]:
    with contextlib.ExitStack() as closing:

        def make(*gpus: SimulatedGpu, settings: KubeletSettings | None = None, driver_installed: bool = True) -> Node:
            return closing.enter_context(open_node(*gpus, settings=settings, driver_installed=driver_installed))

        yield make


@pytest.fixture
def node(make_node: MakeNode) -> Node:
    """Two GPUs in four slices each. The kubelet runs, no agent does."""
    made = make_node(A, B)
    made.kubelet.start()
    return made


@pytest.fixture
def api(node: Node) -> Iterator[Api]:
    """The API server of that node's cluster. No agent asks it that is not given its flags."""
    with open_api(node.root, node.kubelet.settings.node_name) as made:
        yield made
