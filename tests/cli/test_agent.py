"""`sharer agent` as a process: how it starts, says what is wrong, and ends."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


@pytest.fixture
def folder() -> Iterator[Path]:
    """With a path short enough for sockets in it."""
    with tempfile.TemporaryDirectory(prefix="s-", dir="/tmp") as name:
        yield Path(name)


@contextlib.contextmanager
def agent(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Killed at the end, whatever happened."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SHARER_")}
    command = [sys.executable, "-m", "sharer", "agent", *arguments]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def flags(folder: Path) -> list[str]:
    """Everything of the host below one folder; there is no driver in it."""
    library = folder / "libnvidia-ml.so.1"
    roots = [f"--{name}={folder / name}" for name in ("run-dir", "state-dir", "device-plugin-dir")]
    return [*roots, f"--driver-library={library}", f"--policy={folder / 'policy.yaml'}"]


def wait_for(predicate: Callable[[], bool]) -> None:
    """Wait for something that nobody announces."""
    deadline_s = time.monotonic() + 30
    while not predicate():
        assert time.monotonic() < deadline_s
        threading.Event().wait(0.01)


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    return process.stderr.readline()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_within_five_seconds_and_it_says_so(folder: Path, number: signal.Signals) -> None:
    with agent(*flags(folder)) as process:
        assert first_line(process) != ""
        process.send_signal(number)
        _, said = process.communicate(timeout=5)
    assert process.returncode == 0
    assert f"stopping: received {number.name}" in said
    assert said.splitlines()[-1].endswith(" INFO stopped")


def test_an_agent_whose_log_nobody_reads_does_as_it_is_told(folder: Path) -> None:
    """Neighbour of P12: the runtime's disk is full, and the pipe with it. Nothing of the agent waits for that."""
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    os.write(writing, b"x" * 4096)
    with subprocess.Popen([sys.executable, "-m", "sharer", "agent", *flags(folder)], stderr=writing) as process:
        try:
            socket = folder / "run-dir/sharer.sock"
            wait_for(socket.exists)
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
        finally:
            process.kill()
            os.close(reading)
            os.close(writing)


def test_as_json_each_line_is_one_event(folder: Path) -> None:
    with agent(*flags(folder), "--log-format=json") as process:
        first = [json.loads(first_line(process)) for _ in range(2)]  # of the driver, and of the policy
        process.terminate()
        _, said = process.communicate(timeout=30)
    events = [*first, *map(json.loads, said.splitlines())]
    assert any(event["level"] == "warning" and f"{folder}/policy.yaml" in event["message"] for event in events)
    assert events[-1]["message"] == "stopped"


def test_a_run_directory_that_cannot_be_used_is_one_sentence_and_status_1(folder: Path) -> None:
    (folder / "run-dir").write_text("a file")
    with agent(*flags(folder)) as process:
        _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert len(said.splitlines()) == 1
    assert f"{folder}/run-dir" in said


def test_a_socket_directory_with_too_long_a_name_is_a_wrong_setting(folder: Path) -> None:
    with agent(*flags(folder), f"--device-plugin-dir={folder / ('x' * 100)}") as process:
        _, said = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "Traceback" not in said


def test_a_wrong_flag_is_wrong_input() -> None:
    with agent("--polcy=x") as process:
        _, said = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "unrecognized arguments: --polcy=x" in said
