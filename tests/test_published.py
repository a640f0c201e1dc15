"""The local socket of an agent whose RUN_DIR could not be written at the start."""

from __future__ import annotations

import json
import logging
import queue
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from sharer.adapters.local_socket import ask
from sharer.core.errors import NodeError
from sharer.flows.state import NodeState
from sharer.published import answer_reports
from sharer.settings import Settings, read_settings
from tests.fakes.no_descriptor_left import no_descriptor_left

PATIENCE_S = 30.0


@pytest.fixture
def settings() -> Iterator[Settings]:
    with tempfile.TemporaryDirectory(prefix="s-", dir="/tmp") as folder:
        yield read_settings([f"--run-dir={folder}/run", "--node-name=node-7"], {})


class Heard(logging.Handler):
    """What is logged, one line after the other; from which level on is the logger's affair."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: queue.Queue[tuple[int, str]] = queue.Queue()

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.put((record.levelno, record.getMessage()))

    def next(self) -> tuple[int, str]:
        """The next line. Raises queue.Empty if there is none for long."""
        return self._lines.get(timeout=PATIENCE_S)


@contextmanager
def hearing() -> Iterator[Heard]:
    """With every line that is said about the socket."""
    logger, heard = logging.getLogger("sharer.published"), Heard()
    level = logger.level
    logger.setLevel(logging.DEBUG)
    logger.addHandler(heard)
    try:
        yield heard
    finally:
        logger.removeHandler(heard)
        logger.setLevel(level)


def test_a_socket_that_could_not_be_made_is_made_as_soon_as_it_can_be(settings: Settings) -> None:
    """A disk that is full or read-only for a while. Why is said once, and when it works."""
    settings.run_dir.touch()  # a file in the place of the directory
    with hearing() as heard, answer_reports(settings, NodeState(), again_s=0.01):
        level, first = heard.next()
        assert level == logging.WARNING
        assert f"cannot listen on {settings.run_dir}/sharer.sock: File exists; until it can" in first
        assert heard.next() == (logging.DEBUG, first), "the same again is no news"
        settings.run_dir.unlink()
        while (said := heard.next()) == (logging.DEBUG, first):
            pass
        assert said == (logging.INFO, f"reports are answered on {settings.run_dir}/sharer.sock")
        assert json.loads(ask(settings.run_dir, PATIENCE_S))["metadata"]["name"] == "node-7"
    with pytest.raises(NodeError, match="there is no such socket"):
        ask(settings.run_dir)


def test_an_agent_without_a_descriptor_for_its_socket_is_an_agent_all_the_same(settings: Settings) -> None:
    with hearing() as heard, ExitStack() as running:
        with no_descriptor_left():
            running.enter_context(answer_reports(settings, NodeState(), again_s=0.01))
        assert "Too many open files" in heard.next()[1]


def test_the_end_does_not_wait_for_the_next_try(settings: Settings) -> None:
    before = set(threading.enumerate())
    settings.run_dir.touch()
    with hearing() as heard, answer_reports(settings, NodeState(), again_s=3600.0):
        heard.next()
    assert "socket" not in {thread.name for thread in set(threading.enumerate()) - before}
