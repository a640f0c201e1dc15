"""What the tests of the kubelet link are given."""

from __future__ import annotations

import logging
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sharer.core.ports.kubelet import ResourceOptions
from sharer.simulation.kubelet import SocketState
from tests.adapters.kubelet.node import Node
from tests.adapters.kubelet.rig import Rig, eventually, threads_named


@pytest.fixture
def start() -> Iterator[Callable[..., Node]]:
    with tempfile.TemporaryDirectory(prefix="s-") as folder:
        started: list[Node] = []

        def start_node(**options: bool) -> Node:
            started.append(Node(Path(folder), ResourceOptions(**options)))
            return started[-1]

        yield start_node
        for node in started:
            node.close()


@pytest.fixture
def node(start: Callable[..., Node]) -> Node:
    return start()


@pytest.fixture
def open_rig() -> Iterator[Rig]:
    """A kubelet that is not started yet."""
    before = threads_named("sharer-")  # of other tests in this process
    with tempfile.TemporaryDirectory(prefix="s-") as folder:
        made = Rig(Path(folder))
        log = logging.getLogger("sharer.adapters.kubelet")
        log.addHandler(made.heard)
        log.setLevel(logging.INFO)
        yield made
        made.close()
        log.removeHandler(made.heard)
        log.setLevel(logging.NOTSET)
        assert made.our_sockets() == []
        eventually(lambda: threads_named("sharer-") <= before)


@pytest.fixture
def rig(open_rig: Rig) -> Iterator[Rig]:
    """The same; at its end, every Register call it ever got must have been a lawful one."""
    yield open_rig
    for call in open_rig.kubelet.register_calls():
        assert call.version == "v1beta1"
        assert re.fullmatch(r"[^/]+\.sock", call.endpoint)
        assert call.socket is SocketState.SERVING
        assert call.deadline_s is not None
        assert call.deadline_s > 15
        assert call.live_streams == 0, "contract row 14, §2.4: two streams of one resource"
        assert call.calls_in_progress == 0


@pytest.fixture
def started(rig: Rig) -> Rig:
    rig.kubelet.start()
    return rig
