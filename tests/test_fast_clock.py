"""The clock that runs faster for one process (tests/fakes/fast_clock.c) does so for all that the agent waits with."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.fakes.fast_clock import JumpingClock, QuickenedClock, fast_clock

RATE, WAIT_S = 200, 60
WAYS = {
    "sleep": f"time.sleep({WAIT_S})",
    "lock": f"lock = threading.Lock(); lock.acquire(); lock.acquire(timeout={WAIT_S})",
    "condition": f"threading.Event().wait({WAIT_S})",
    "queue": f"import queue\ntry: queue.SimpleQueue().get(timeout={WAIT_S})\nexcept queue.Empty: pass",
    "select": f"select.select([], [], [], {WAIT_S})",
    "poll": f"select.poll().poll({WAIT_S * 1000})",
    "epoll": f"select.epoll().poll({WAIT_S})",
    "socket": f"a, b = socket.socketpair(); a.settimeout({WAIT_S})\ntry: a.recv(1)\nexcept TimeoutError: pass",
    "gRPC": "import grpc\nready = grpc.channel_ready_future(grpc.insecure_channel('unix:/nowhere'))\n"
    f"try: ready.result(timeout={WAIT_S})\n"
    "except grpc.FutureTimeoutError: pass",
    "gRPC's deadline": "import grpc\nchannel = grpc.insecure_channel('unix:/nowhere')\n"
    f"try: channel.unary_unary('/a/b')(b'', timeout={WAIT_S}, wait_for_ready=True)\nexcept grpc.RpcError: pass",
}
PROGRAM = """
import select, socket, threading, time
before = time.monotonic(), time.time()
{wait}
print(time.monotonic() - before[0], time.time() - before[1])
"""


@pytest.mark.parametrize("way", WAYS)
def test_every_wait_is_over_at_its_time_on_the_faster_clock(way: str) -> None:
    began_s = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(wait=WAYS[way])],
        env=fast_clock(RATE),
        capture_output=True,
        text=True,
        check=True,
    )
    took_s = time.monotonic() - began_s
    for measured_s in map(float, done.stdout.split()):
        assert measured_s >= WAIT_S - 0.01
        assert measured_s <= took_s * RATE
    assert took_s < WAIT_S


def test_a_wall_clock_that_jumps_takes_no_other_clock_with_it_and_no_wait(tmp_path: Path) -> None:
    """An hour forwards in the middle of a wait."""
    clock = JumpingClock(tmp_path / "clock")
    program = (
        "import sys, threading, time\n"
        "before = time.time(), time.monotonic()\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "print(time.time() - before[0], time.monotonic() - before[1], flush=True)\n"
        "threading.Lock().acquire(timeout=0.05); threading.Event().wait(0.05)\n"
    )
    command = [sys.executable, "-c", program]
    with subprocess.Popen(
        command, env=clock.variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as one:
        assert one.stdin is not None
        assert one.stdout is not None
        one.stdout.readline()
        clock.jump_to(3600.0)
        one.stdin.write("\n")
        one.stdin.flush()
        wall_s, monotonic_s = map(float, one.stdout.readline().split())
        assert one.wait(30) == 0
    assert 3600.0 <= wall_s < 3620.0
    assert monotonic_s < 20.0


def test_a_clock_that_is_quickened_is_true_until_then_and_runs_on_from_there(tmp_path: Path) -> None:
    """It neither jumps nor stands still at the change, and waits that begin after it are as much shorter."""
    clock = QuickenedClock(tmp_path / "clock")
    program = (
        "import sys, threading, time\n"
        "begun_s = time.monotonic(); threading.Event().wait(0.2); print(time.monotonic() - begun_s, flush=True)\n"
        "sys.stdin.readline()\n"
        f"threading.Event().wait({WAIT_S}); print(time.monotonic() - begun_s, flush=True)\n"
    )
    command = [sys.executable, "-c", program]
    began_s = time.monotonic()
    with subprocess.Popen(
        command, env=clock.variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as one:
        assert one.stdin is not None
        assert one.stdout is not None
        before_s, true_s = float(one.stdout.readline()), time.monotonic() - began_s
        clock.quicken(RATE)
        quickened_s = time.monotonic()
        one.stdin.write("\n")
        one.stdin.flush()
        after_s, took_s = float(one.stdout.readline()), time.monotonic() - quickened_s
        assert one.wait(30) == 0
    assert 0.2 <= before_s <= true_s
    assert WAIT_S <= after_s - before_s <= true_s + RATE * (took_s + 0.1)
    assert took_s < WAIT_S
