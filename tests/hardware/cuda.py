"""A program that uses a GPU as it is told on its standard input, a command a line: run in a cgroup by `tests.hardware`.

context          make a CUDA context                 -> ok
info             what the program is shown           -> <free bytes> <total bytes>
fill STEP        allocate in steps until it fails    -> <bytes allocated> <error of CUDA>
alloc BYTES      allocate                            -> ok | error <number>
managed BYTES    allocate managed memory, touch it   -> ok | error <number>
touch            write to everything allocated       -> ok | error <number>
free             free everything allocated           -> ok
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable

LIBRARY = "libcuda.so.1"
_ATTACH_GLOBAL = 1


class CudaError(Exception):
    """A call that failed, with CUDA's number."""


class Cuda:
    """The few functions of the driver's API that are needed."""

    def __init__(self, ordinal: int) -> None:
        self._library = ctypes.CDLL(LIBRARY)
        self._ordinal = ordinal
        self._pointers: list[tuple[int, int]] = []

    def context(self) -> str:
        """Make a context on the GPU."""
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self._call("cuInit", 0)
        self._call("cuDeviceGet", ctypes.byref(device), self._ordinal)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._call("cuCtxSetCurrent", context)
        return "ok"

    def info(self) -> str:
        """Free and total memory as a program sees them."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return f"{free.value} {total.value}"

    def fill(self, step: int) -> str:
        """Allocate until it fails."""
        allocated = 0
        while True:
            try:
                self.alloc(step)
            except CudaError as error:
                return f"{allocated} {error}"
            allocated += step

    def alloc(self, amount: int) -> str:
        """Allocate device memory."""
        pointer = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(amount))
        self._pointers.append((pointer.value, amount))
        return "ok"

    def managed(self, amount: int) -> str:
        """Allocate managed memory and have the GPU write to it."""
        pointer = ctypes.c_uint64()
        self._call("cuMemAllocManaged", ctypes.byref(pointer), ctypes.c_size_t(amount), _ATTACH_GLOBAL)
        self._pointers.append((pointer.value, amount))
        return self.touch()

    def touch(self) -> str:
        """Write to all of it on the GPU."""
        for pointer, amount in self._pointers:
            self._call("cuMemsetD8_v2", ctypes.c_uint64(pointer), ctypes.c_ubyte(1), ctypes.c_size_t(amount))
        self._call("cuCtxSynchronize")
        return "ok"

    def free(self) -> str:
        """Free everything."""
        for pointer, _ in self._pointers:
            self._call("cuMemFree_v2", ctypes.c_uint64(pointer))
        self._pointers.clear()
        return "ok"

    def _call(self, function: str, *arguments: object) -> None:
        code = getattr(self._library, function)(*arguments)
        if code != 0:
            raise CudaError(f"error {code}")


def main() -> None:
    """Read commands, answer each with a line. A first line moves the program into a cgroup before CUDA is loaded."""
    cgroup, ordinal = sys.argv[1], int(sys.argv[2])
    with open(f"{cgroup}/cgroup.procs", "w") as procs:
        procs.write(str(os.getpid()))
    cuda = Cuda(ordinal)
    commands: dict[str, Callable[..., str]] = {
        name: getattr(cuda, name) for name in ("context", "info", "fill", "alloc", "managed", "touch", "free")
    }
    for line in sys.stdin:
        name, *arguments = line.split()
        try:
            print(commands[name](*map(int, arguments)), flush=True)
        except CudaError as error:
            print(error, flush=True)


if __name__ == "__main__":
    main()
