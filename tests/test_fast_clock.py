"""The clock that runs faster for one process (tests/fakes/fast_clock.c) does so for all that the agent waits with."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.fakes.fast_clock import JumpingClock, fast_clock

RATE, WAIT_S = 30, 3.0
WAYS = {
    "sleep": "time.sleep(3)",
    "lock": "lock = threading.Lock(); lock.acquire(); lock.acquire(timeout=3)",
    "condition": "threading.Event().wait(3)",
    "queue": "import queue\ntry: queue.SimpleQueue().get(timeout=3)\nexcept queue.Empty: pass",
    "select": "select.select([], [], [], 3)",
    "poll": "select.poll().poll(3000)",
    "epoll": "select.epoll().poll(3)",
    "socket": "a, b = socket.socketpair(); a.settimeout(3)\ntry: a.recv(1)\nexcept TimeoutError: pass",
    "gRPC": "import grpc\ntry: grpc.channel_ready_future(grpc.insecure_channel('unix:/nowhere')).result(timeout=3)\n"
    "except grpc.FutureTimeoutError: pass",
    "gRPC's deadline": "import grpc\nchannel = grpc.insecure_channel('unix:/nowhere')\n"
    "try: channel.unary_unary('/a/b')(b'', timeout=3, wait_for_ready=True)\nexcept grpc.RpcError: pass",
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
        assert one.wait(10) == 0
    assert 3600.0 <= wall_s < 3620.0
    assert monotonic_s < 20.0
