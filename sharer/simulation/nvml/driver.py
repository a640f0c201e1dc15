"""What the library asks of the driver below it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from sharer.simulation.hardware import SimulatedGpu
from sharer.simulation.steering import SimulatedXid


class SimulatedDriver(Protocol):
    """What the Python library shows to one process: `SimulatedGpus` answers."""

    @property
    def gpus(self) -> tuple[SimulatedGpu, ...]:
        """The GPUs that exist."""
        ...

    @property
    def driver_version(self) -> str | None:
        """What the driver says it is; None: it does not say."""
        ...

    def enter(self, function: str, uuids: Sequence[str]) -> int:
        """Count a call and let faults work on it. Returns 0, or the error that it has to answer."""
        ...

    def set_limit(self, gpu: SimulatedGpu, path: str, soft_bytes: int, hard_bytes: int) -> int:
        """Set a cgroup's limit. Returns NVML's code."""
        ...

    def get_limit(self, gpu: SimulatedGpu, path: str) -> tuple[int, int, int, int]:
        """NVML's code; a cgroup's soft limit, hard limit and use."""
        ...

    def compute_mode(self, uuid: str) -> int:
        """Who may have a context on a GPU (nvmlComputeMode_t)."""
        ...

    def set_compute_mode(self, uuid: str, mode: int) -> None:
        """Change that."""
        ...

    def event_count(self) -> int:
        """How many events there were so far."""
        ...

    def next_event(self, seen: int, since: Mapping[str, int], timeout_s: float) -> tuple[int, SimulatedXid] | None:
        """The first event after the `seen` first ones, and its number from 1; None after the timeout.

        Only events of the GPUs in `since` count, for each only those after so many.
        """
        ...
