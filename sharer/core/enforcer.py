"""What holds a container to its promise, as an interface, and what enforcers and their flow need from outside.

`sharer/enforcers` has one module for each means. Which of them is to hold what, `core/policy/enforcers` chooses; the
flows in `flows/hold` apply and verify, and know none of them by name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from sharer.core.edits import ContainerEdits, NodeFacts
from sharer.core.grant import Grant
from sharer.core.limits.limits import PodCgroup, PromiseKey, Tenant
from sharer.core.limits.usage import Usage
from sharer.core.mps.state import MpsState
from sharer.core.slices.cut import Target
from sharer.core.values import dataclass


class Editor(Protocol):
    """Gives a container what it needs to be held."""

    def edits(self, grant: Grant, facts: NodeFacts) -> ContainerEdits:
        """What the container must be given so that it can be held. Depends on nothing but the two arguments.

        Raises RequestError for a promise that could not even be asked for on this node.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether one promise is kept, by what was seen just now."""

    problem: str | None = None  # why that is not verified; None: it is
    curable: bool = False  # the limit is not what it should be: `apply` can set it


Verdicts = Mapping[PromiseKey, Verdict]


class Enforcer(Editor, Protocol):
    """A means of holding a container to what its slices promise (DESIGN §5).

    It is given tenants with those promises only that it was chosen for. Doing anything twice is doing it once, and
    nothing is remembered that a restart could not find out again. `apply` and `verify` may be called from any thread.
    """

    @property
    def name(self) -> str:
        """As policies write it."""
        ...

    @property
    def escapes(self) -> tuple[str, ...]:
        """The ways out of it that are known, shown beside it."""
        ...

    def available(self, target: Target) -> str | None:
        """Why it cannot hold slices of this GPU or MIG device; None: it was seen to be able to."""
        ...

    def apply(self, tenants: Sequence[Tenant], *, within_s: float | None = None) -> Verdicts:
        """Hold these tenants, pods and containers. Returns what is in force then, whatever use they make of it.

        A promise that is kept by other means than something in force for the tenant is not in it. Raises NodeError if
        nothing could be tried, or not `within_s`.
        """
        ...

    def verify(self, tenants: Sequence[Tenant], usage: Usage) -> Verdicts:
        """What is true now of each promise to each container. Pods as a whole are in it only where it holds those.

        Raises NodeError if nothing could be looked at.
        """
        ...

    def release(self, tenants: Sequence[Tenant]) -> str | None:
        """Let go of tenants that have ended, or are to be held by something else. Returns what was given back.

        Called now and then without any tenant, so that what an earlier run has left behind is found. Raises NodeError.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLimit:
    """The driver's limit for one cgroup on one GPU."""

    hard_bytes: int | None = None  # None: none
    soft_bytes: int = 0  # reserved for it, in all cgroups above it too


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitChange:
    """What a limit is to become."""

    hard_bytes: int | None  # None: none
    up_to_bytes: int | None = None  # a hard limit between the two stays as it is; None: it is set exactly
    soft_bytes: int | None = None  # None: it stays as it is

    def made_of(self, found: MemoryLimit) -> MemoryLimit:
        """The limit that is wanted where this one was found."""
        hard_bytes = found.hard_bytes if self._leaves(found.hard_bytes) else self.hard_bytes
        soft_bytes = found.soft_bytes if self.soft_bytes is None else self.soft_bytes
        return MemoryLimit(hard_bytes=hard_bytes, soft_bytes=soft_bytes)

    def _leaves(self, found_bytes: int | None) -> bool:
        if found_bytes is None or self.hard_bytes is None or self.up_to_bytes is None:
            return False
        return self.hard_bytes <= found_bytes <= self.up_to_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitQuestion:
    """A limit that is to be read, or set and read back."""

    gpu_uuid: str
    cgroup: str  # full path of its directory, as this process sees it
    change: LimitChange | None = None  # None: only read


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitAnswer:
    """What the driver read back."""

    limit: MemoryLimit | None = None  # None: it could not be read
    used_bytes: int | None = None  # by the cgroup, of this GPU; None: the driver does not say
    problem: str | None = None  # why it could not be read, or not be set; None: it could
    gone: bool = False  # there is no such cgroup (any more)


class MemoryLimits(Protocol):
    """The driver's memory limits for cgroups (gpu-limits §2). Safe to use from any thread."""

    def limits(self, questions: Sequence[LimitQuestion], *, within_s: float | None = None) -> list[LimitAnswer]:
        """Answer the questions, in their order. What is already as wanted is not set again.

        Raises NodeError if the driver does not answer, or, with `within_s`, not in that time.
        """
        ...


class ContainerCgroups(Protocol):
    """The cgroups of pods and of their containers. Safe to use from any thread."""

    def read(self, uids: Collection[str] | None = None) -> Mapping[str, PodCgroup]:
        """Those of these pods, as far as they exist; None: of all pods. Raises NodeError if they cannot be read."""
        ...

    def follow(self, changed: Callable[[str], None]) -> None:
        """Call `changed` with a pod's UID, on another thread, soon after its cgroup or a container's comes or goes."""
        ...

    def scratch(self) -> AbstractContextManager[str]:
        """A cgroup beside the pods' to try things on, gone afterwards.

        Raises NodeError where there cannot be one, or where no limit could be held on a pod's.
        """
        ...

    def below(self, path: str) -> tuple[str, ...] | None:
        """The cgroups directly below one; None: there is no such cgroup (any more). Raises NodeError."""
        ...

    def roots(self) -> tuple[str, ...]:
        """The cgroups that all pods are below, and the classes of pods in them, outermost first. Raises NodeError."""
        ...


def no_daemons() -> Mapping[str, MpsState]:
    """What is said of MPS control daemons where nobody speaks of any."""
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """What enforcers may use of the world outside."""

    limits: MemoryLimits
    cgroups: ContainerCgroups
    mps: Callable[[], Mapping[str, MpsState]] = no_daemons  # the last state of each MPS control daemon, by resource
