from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sharer.adapters.mps import process
from sharer.core.errors import NodeError

PATIENCE_S = 30.0
DAEMON = "trap '' HUP; echo out; while :; do sleep 0.05; done"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str], process.Found]]:
    """Starts a script as a daemon with tmp_path as its pipe directory; ended after the test."""
    started: list[process.Found] = []

    def begin(script: str = DAEMON) -> process.Found:
        executable = tmp_path / "control"
        executable.write_text(f"#!/bin/sh\n{script}\n")
        executable.chmod(0o755)
        environment = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(tmp_path), "CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"}
        started.append(process.spawn(executable, ["-f"], environment, tmp_path / "output"))
        return started[-1]

    yield begin
    for found in started:
        process.kill(found)


def wait(holds: Callable[[], bool]) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end_s, f"not within {PATIENCE_S:g} s"
        threading.Event().wait(0.02)


def test_a_daemon_has_a_session_of_its_own_and_signals_that_reach_it(
    start: Callable[[], process.Found], tmp_path: Path
) -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM,))
    try:
        found = start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    wait(lambda: (tmp_path / "output").read_text() == "out\n")
    assert os.getsid(found.pid) == found.pid
    os.kill(found.pid, signal.SIGTERM)
    wait(lambda: not process.lives(found))


def test_it_is_found_again_by_its_number_its_directory_and_its_options(
    start: Callable[[], process.Found], tmp_path: Path
) -> None:
    started = start()
    (tmp_path / process.PID_FILE).write_text(f"{started.pid}\n")
    pid = process.from_pid_file(tmp_path)
    assert pid == started.pid
    wait(lambda: process.find(started.pid, tmp_path) is not None)  # the kernel shows its environment a moment later
    found = process.find(pid, tmp_path)
    assert found is not None
    assert (found.began, found.gpus) == (started.began, ("GPU-a", "GPU-b"))
    assert process.find(pid, tmp_path / "other") is None


def test_another_process_that_was_given_the_number_is_not_taken_for_it(
    start: Callable[[], process.Found], tmp_path: Path
) -> None:
    assert process.find(os.getpid(), tmp_path) is None
    front_end = subprocess.Popen(["sleep", "60"], env={"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)})
    try:
        assert process.find(front_end.pid, tmp_path) is None
    finally:
        front_end.kill()
        front_end.wait()
    found = start()
    later = process.Found(pid=found.pid, began=found.began + 1, arguments=(), gpus=())
    assert not process.lives(later)


@pytest.mark.parametrize("text", ["", "x", "1\n2", "-1", "9" * 40])
def test_a_damaged_pid_file_names_nobody(tmp_path: Path, text: str) -> None:
    assert process.from_pid_file(tmp_path) is None
    (tmp_path / process.PID_FILE).write_text(text)
    pid = process.from_pid_file(tmp_path)
    assert pid is None or process.find(pid, tmp_path) is None


def test_one_that_ended_does_not_live_nor_stay_as_a_zombie(start: Callable[[str], process.Found]) -> None:
    found = start("exit 3")
    wait(lambda: not process.lives(found))
    assert not Path(f"/proc/{found.pid}").exists()


def test_killing_it_ends_what_it_has_started_too(start: Callable[[str], process.Found], tmp_path: Path) -> None:
    found = start(f"sleep 60 & echo $! > {tmp_path}/server; wait")
    wait(lambda: (tmp_path / "server").exists() and (tmp_path / "server").read_text() != "")
    server = int((tmp_path / "server").read_text())
    process.kill(found)
    assert not process.lives(found)
    wait(lambda: not process.is_alive(server))


def test_a_server_that_outlives_its_daemon_is_ended_and_no_other_process(
    start: Callable[[str], process.Found], tmp_path: Path
) -> None:
    """It would keep the next daemon off a GPU in exclusive compute mode."""
    (tmp_path / process.SERVER).symlink_to(shutil.which("sleep") or "")
    server = f"PATH={tmp_path}:$PATH; {process.SERVER} 60 & echo $! > {tmp_path}/server"
    found = start(f"{server}; sleep 60 & echo $! > {tmp_path}/other; wait")
    wait(lambda: (tmp_path / "other").exists() and (tmp_path / "other").read_text() != "")
    begun = Path("/proc", (tmp_path / "server").read_text().strip(), "cmdline")
    wait(lambda: begun.read_bytes().startswith(process.SERVER.encode()))  # before that it is a copy of the shell
    other = int((tmp_path / "other").read_text())
    os.kill(found.pid, signal.SIGKILL)
    wait(lambda: not process.lives(found))
    (ended,) = process.end_servers(found.pid)
    assert not process.is_alive(ended)
    assert process.is_alive(other)
    assert process.end_servers(found.pid) == process.end_servers(os.getsid(0)) == ()
    os.kill(other, signal.SIGKILL)


def test_a_program_that_cannot_be_run_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(NodeError, match="--mps-control"):
        process.spawn(tmp_path / "none", ["-f"], {}, tmp_path / "output")
