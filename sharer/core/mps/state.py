"""What the agent asks of an MPS control daemon, and what its supervisor says of it: the two never share a lifetime.

`sharer mps` runs one daemon for each MPS resource. It learns from the agent's report what is wanted, and writes what
became of it to a file beside the daemon's pipes. The agent believes that file for a short while only: a supervisor
that has stopped writing can say nothing about its daemons (gpu-limits §3).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum
from typing import Protocol

from sharer.core.values import dataclass

TRUST_S = 15.0  # how long a state is believed after it was written

SHARED_MEMORY = "/dev/shm"
"""On the host: daemon and clients of the legacy interface meet there, so both must have it (gpu-limits §3). With
MPS v3, from r615 on, containers were seen to work without (measured elsewhere), and keep their own."""


class MpsInterface(StrEnum):
    """How a control daemon is spoken to, and with it what its limits are."""

    LEGACY = "v2"  # one default for each device, counted per process
    NAMESPACES = "v3"  # a namespace for each slice, with shares of its own


@dataclass(frozen=True, slots=True, kw_only=True)
class MpsWanted:
    """What one daemon is to serve."""

    resource: str
    slices: Mapping[str, tuple[str, ...]]  # UUID of a GPU -> device IDs that are listed or held, in listed order
    limits_memory: bool  # False: something stronger holds memory, and the daemon only shares SMs
    user_id: int | None = None  # the only user whose processes will come; None: those of any user


@dataclass(frozen=True, slots=True, kw_only=True)
class MpsGpu:
    """One GPU of a daemon."""

    problem: str | None = None  # why no further client can be served on it, and what to do; None: it can
    clients: int | None = None  # processes connected now; None: not known


@dataclass(frozen=True, slots=True, kw_only=True)
class MpsState:
    """What was seen of one daemon."""

    resource: str
    written_at_s: float  # Unix time
    problem: str | None  # why it serves nobody, and what to do; None: it answered, and serves
    interface: MpsInterface | None = None  # None: it has not answered yet
    interface_reason: str | None = None  # why not the better one
    gpus: Mapping[str, MpsGpu] = field(default_factory=dict)  # by UUID
    namespaces: Mapping[str, str] = field(default_factory=dict)  # device ID -> host directory with its socket alone
    shared_memory: str | None = None  # host directory that clients need as their /dev/shm; None: they keep their own
    warnings: tuple[str, ...] = ()  # signs of a wedge and their cure, and their like


class MpsPlaces(Protocol):
    """The directories of the host by which containers find MPS control daemons. The host's path is this process's."""

    def pipe(self, resource: str) -> str:
        """The directory that clients of a daemon's legacy interface mount, made if it is missing; cheap if it is there.

        It is kept for good, and any user may enter it. Raises NodeError.
        """
        ...

    def is_there(self, path: str) -> bool:
        """Whether a directory exists, so that it can be mounted."""
        ...


class MpsStates(Protocol):
    """What the supervisor of MPS control daemons says of them. Safe to use from any thread."""

    def read(self) -> Mapping[str, MpsState]:
        """The last state of each daemon, by resource; cheap. What is missing or damaged is left out, never raised.

        How old one is, is in it: see `why_not_served`.
        """
        ...


def folder_name(resource: str) -> str:
    """Of the folder below `--mps-dir` in which everything about one daemon is: `pipe`, `log`, `state.json`.

    >>> folder_name("nvidia.com/gpu.mps")
    'nvidia.com_gpu.mps'
    """
    return resource.replace("/", "_")


def why_not_served(state: MpsState | None, uuid: str, now_s: float) -> str | None:
    """Why no client can be served on this GPU at this Unix time; None: one can.

    `state`: the last that was written; None: none was. The words stay the same for as long as the reason does.
    """
    if state is None:
        return "no MPS control daemon has served it yet; run sharer mps on this node"
    if abs(now_s - state.written_at_s) > TRUST_S:
        return f"nothing was heard of its MPS control daemon for {TRUST_S:g} s; see whether sharer mps runs"
    if state.problem is not None:
        return state.problem
    gpu = state.gpus.get(uuid)
    return "its MPS control daemon does not serve this GPU yet" if gpu is None else gpu.problem
