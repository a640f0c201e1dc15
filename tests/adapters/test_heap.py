"""No thread makes itself a heap of its own."""

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


def arenas(*arguments: str) -> int:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    command = [sys.executable, "-c", COUNT_ARENAS, *arguments]
    result = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60, env=environment)
    return int(result.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no arenas")
def test_all_threads_allocate_from_one_arena() -> None:
    assert arenas() > 1  # or the rest shows nothing
    assert arenas("little") == 1
