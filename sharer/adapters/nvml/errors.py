"""What NVML's errors mean: their numbers (nvmlReturn_t), and each in words."""

from __future__ import annotations

UNINITIALIZED = 1
INVALID_ARGUMENT = 2
NOT_SUPPORTED = 3
NO_PERMISSION = 4
NOT_FOUND = 6
DRIVER_NOT_LOADED = 9
TIMEOUT = 10
LIBRARY_NOT_FOUND = 12
FUNCTION_NOT_FOUND = 13
GPU_IS_LOST = 15
RESET_REQUIRED = 16
VERSION_MISMATCH = 18

_MEANINGS = {
    UNINITIALIZED: "NVML is not initialised",
    INVALID_ARGUMENT: "invalid argument",
    NOT_SUPPORTED: "not supported",
    NO_PERMISSION: "no permission",
    NOT_FOUND: "not found",
    7: "insufficient size",
    DRIVER_NOT_LOADED: "driver not loaded",
    TIMEOUT: "timeout",
    11: "interrupts of the GPU do not arrive",
    LIBRARY_NOT_FOUND: "a library of the driver is not found",
    FUNCTION_NOT_FOUND: "this driver has no such function",
    14: "corrupted infoROM",
    GPU_IS_LOST: "the GPU is lost: it has fallen off the bus",
    RESET_REQUIRED: "the GPU needs a reset",
    17: "the operating system refused",
    VERSION_MISMATCH: "driver and library have different versions",
    19: "in use",
    20: "out of memory",
    23: "out of resources",
    25: "the driver does not know this version of the question",
    27: "not ready",
    28: "no GPUs were found",
    29: "invalid state",
    999: "unknown error of the driver",
}


class NvmlCallError(Exception):
    """An NVML call that gave no usable answer. Stays inside this package."""

    def __init__(self, function: str, code: int | None, meaning: str) -> None:
        self.function = function
        self.code = code  # NVML's; None: the call succeeded, but its answer is no answer
        super().__init__(f"{meaning} ({function}" + (")" if code is None else f": NVML error {code})"))

    @property
    def optional(self) -> bool:
        """Whether the driver only says that it has no such thing, which is an answer and not a failure."""
        return self.code in (NOT_SUPPORTED, FUNCTION_NOT_FOUND)

    @property
    def gpu_lost(self) -> bool:
        """Whether the GPU itself is said to be out of reach."""
        return self.code in (GPU_IS_LOST, RESET_REQUIRED)


def error_of(function: str, code: int) -> NvmlCallError:
    """What a function of NVML says by this number."""
    return NvmlCallError(function, code, _MEANINGS.get(code, "an error that this version of sharer does not know"))
