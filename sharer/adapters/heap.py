"""How the C library keeps what is freed, so that little of an agent's start stays with it for life.

An agent needs most memory while it starts: on a dozen threads it imports the official client, reads 250 pods and
writes a first report. glibc makes an arena for each thread that allocates, and returns its parts that are free again
to no other thread and hardly to the system: 3.5 MiB of an agent with 2,000 slices and 250 pods (measured).
"""

from __future__ import annotations

import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # mallopt(3)
_TRIM_BYTES = 128 * 2**10
_OWN_PAGES_BYTES = 16 * 2**10


def keep_little() -> None:
    """Tell glibc to. Before the first thread is started; another C library has no such calls and is left alone.

    * One arena for all threads. Several are for threads that allocate at once; Python's hold its lock when they do.
    * Free memory at the end of the heap is returned when it is more than 128 KiB, as at first. Otherwise each large
      block that is freed raises that to twice its size.
    * A block of 16 KiB or more has pages of its own, which are returned when it is freed; from 128 KiB on at first. The
      kubelet's list is read every 5 seconds, in blocks of 32 KiB: 0.6 MiB that stayed in the heap. Making such a block
      takes some microseconds longer, in which nothing of ours is to be noticed (a reconcile: 0.2 ms of 10).
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    mallopt(_M_ARENA_MAX, 1)
    mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES)
    mallopt(_M_MMAP_THRESHOLD, _OWN_PAGES_BYTES)


def give_back() -> None:
    """Return to the system whatever is free, also between blocks in use: up to 3 MiB after a start. It takes 1 ms."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)
