"""No thread makes itself a heap of its own, and what is free does not stay with the process."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

COUNT_ARENAS = """
import ctypes, re, sys, tempfile, threading
from sharer.adapters.heap import keep_little

def allocate():
    block = bytes(1000)  # too large for Python's own allocator
    all_here.wait(60)

if sys.argv[1:]:
    keep_little()
all_here = threading.Barrier(4)
threads = [threading.Thread(target=allocate) for _ in range(4)]
for one in threads:
    one.start()
for one in threads:
    one.join()
libc = ctypes.CDLL(None)
libc.fopen.restype = ctypes.c_void_p
with tempfile.NamedTemporaryFile() as file:
    stream = ctypes.c_void_p(libc.fopen(file.name.encode(), b"w"))
    libc.malloc_info(0, stream)
    libc.fclose(stream)
    print(len(re.findall("<heap nr", file.read().decode())))
"""

FREE_HOLES = """
from pathlib import Path
from sharer.adapters.heap import give_back

def resident_mib():
    return int(Path("/proc/self/status").read_text().split("VmRSS:")[1].split()[0]) / 1024

blocks = [bytes(2000) for _ in range(20_000)]
kept = blocks[::100] + blocks[-1:]
del blocks
before_mib = resident_mib()
give_back()
print(round(before_mib - resident_mib()))
"""

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no such calls")


def printed(program: str, *arguments: str) -> int:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    command = [sys.executable, "-c", program, *arguments]
    result = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60, env=environment)
    return int(result.stdout)


def test_all_threads_allocate_from_one_arena() -> None:
    assert printed(COUNT_ARENAS) > 1  # or the rest shows nothing
    assert printed(COUNT_ARENAS, "little") == 1


def test_what_is_free_between_blocks_in_use_is_given_back() -> None:
    assert printed(FREE_HOLES) > 20  # of some 38 MiB
