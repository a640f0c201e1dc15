"""Compute modes: who may have a context on a GPU. Under MPS only the daemon's server may (gpu-limits §3)."""

from __future__ import annotations

from typing import Protocol

EXCLUSIVE_PROCESS = 3  # NVML_COMPUTEMODE_EXCLUSIVE_PROCESS: whoever leaves MPS gets no context at all
_MODES = ("default", "exclusive thread", "prohibited", "exclusive process")  # by nvmlComputeMode_t


def mode_name(mode: int) -> str:
    """A compute mode's name, for people."""
    return _MODES[mode] if 0 <= mode < len(_MODES) else f"number {mode}"


class ComputeModes(Protocol):
    """The compute mode of GPUs. Safe to use from any thread."""

    def compute_mode(self, uuid: str) -> int:
        """NVML's number of the mode in force. Raises NodeError."""
        ...

    def set_compute_mode(self, uuid: str, mode: int) -> None:
        """Set it, and read it back. Raises NodeError if it is not in force then."""
        ...
