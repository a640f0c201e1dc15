"""Who is asked who holds what: the kubelet twice, cgroups, and the processes on the GPUs."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Protocol

from sharer.core.holders.evidence import CgroupReading, CheckpointReading, ListReading
from sharer.core.values import dataclass


class ListSource(Protocol):
    """podresources `List`. For one thread."""

    def read(self) -> ListReading:
        """Who holds what now. Raises NodeError if the kubelet does not say: no news, never "nobody"."""
        ...


class CheckpointSource(Protocol):
    """The kubelet's checkpoint file."""

    def read(self) -> CheckpointReading | None:
        """What it says now; cheap if nothing changed, and for any thread.

        None: there is no file, so the kubelet has given nobody anything.

        Raises NodeError if it is damaged or cannot be read: then nothing is known.
        """
        ...

    def follow(self, changed: Callable[[], None]) -> None:
        """Call `changed`, on another thread, soon after the file was written; at the latest a few seconds later."""
        ...


class CgroupSource(Protocol):
    """The pod cgroups of the node."""

    def read(self) -> CgroupReading:
        """Which exist, and which have a process. Raises NodeError if they cannot be read: then nothing is known."""
        ...

    def follow(self, uids: Collection[str], changed: Callable[[], None]) -> None:
        """Call `changed`, on another thread, soon after a container of one of these pods starts or ends.

        It is also called every few seconds, without news. Called again: follow these pods instead.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RawProcess:
    """A process that NVML found on a GPU or MIG device."""

    pid: int | None  # the host's; None: the driver does not say (it answers 0 or 4294967295)
    gpu_uuid: str  # of the MIG device where NVML names one, else of the physical GPU
    used_bytes: int | None
    is_mps_client: bool | None = None  # None: the driver has no list of those


@dataclass(frozen=True, slots=True, kw_only=True)
class RawProcesses:
    """NVML's process lists: compute, graphics and MPS clients, each process once per device."""

    processes: tuple[RawProcess, ...] = ()
    asked: frozenset[str] = frozenset()  # UUIDs of the GPUs and MIG devices whose lists are complete
    lost: frozenset[str] = frozenset()  # UUIDs of the GPUs that said instead that they are lost


class ProcessSource(Protocol):
    """The processes on the GPUs."""

    def processes(self) -> RawProcesses:
        """What runs on the GPUs now. Raises NodeError if the driver does not answer."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessIdentity:
    """Whose process it is."""

    pods: tuple[tuple[str, str | None], ...]  # UID and container ID, outermost first: clusters nest; empty: in no pod
    command: str | None  # the program's name, for people: a process may call itself anything


class ProcessTable(Protocol):
    """Looks processes up by the host's PIDs."""

    def sees_the_host(self) -> bool:
        """Whether PIDs here are the host's. If not, no process can be attributed. Raises NodeError."""
        ...

    def identify(self, pid: int) -> ProcessIdentity | None:
        """Whose process it is; None: there is no such process any more. Raises NodeError if it cannot be read."""
        ...
