"""How a process that is told to stop takes it, also when it is told twice."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

TIMEOUT_S = 30
FOR_EVER_S = 3600.0

WAITS = """
import sys, threading
from sharer.cli.signals import stop_on_signals
stop = threading.Event()
stop_on_signals(stop, same_wish_s={same_wish_s})
print("ready", flush=True)
stop.wait()
print("stopping", flush=True)
sys.stdin.read()
print("stopped", flush=True)
"""

CLEANS_UP = """
import sys
from sharer.cli.signals import exit_on_sigterm
with exit_on_sigterm(same_wish_s={same_wish_s}):
    try:
        print("ready", flush=True)
        sys.stdin.read()
    finally:
        print("stopping", flush=True)
        sys.stdin.read()
        print("stopped", flush=True)
"""


@contextlib.contextmanager
def told_once(program: str, same_wish_s: float) -> Iterator[subprocess.Popen[str]]:
    """A process that has taken SIGTERM, and has not ended before its standard input does."""
    command = [sys.executable, "-c", program.format(same_wish_s=same_wish_s)]
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            process.terminate()
            assert process.stdout.readline() == "stopping\n"
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize(("program", "status"), [(WAITS, 0), (CLEANS_UP, 128 + signal.SIGTERM)])
def test_one_wish_that_is_told_twice_is_taken_once_and_everything_is_cleaned_up(program: str, status: int) -> None:
    """As by timeout(1), which tells a process, and at once its group."""
    with told_once(program, FOR_EVER_S) as process:
        process.terminate()
        said, _ = process.communicate("", TIMEOUT_S)
    assert (said, process.returncode) == ("stopped\n", status)


@pytest.mark.parametrize("program", [WAITS, CLEANS_UP])
def test_who_is_told_again_later_ends_at_once(program: str) -> None:
    with told_once(program, 0) as process:
        for _ in range(10 * TIMEOUT_S):  # the first of them may come while it is still the same wish
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.1)
                break
    assert process.returncode == -signal.SIGTERM
