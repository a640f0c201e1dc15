"""What can happen to a node's MPS control daemon and its supervisor, as values."""

from __future__ import annotations

from dataclasses import dataclass

from tests.faults.telling import Told


@dataclass(frozen=True, slots=True)
class KillDaemon(Told):
    """SIGKILL. `crashes`: so many of the next ones end at once."""

    crashes: int = 0


@dataclass(frozen=True, slots=True)
class HangDaemon(Told):
    """It takes questions and answers none."""


@dataclass(frozen=True, slots=True)
class FreeDaemon(Told):
    """It answers again."""


@dataclass(frozen=True, slots=True)
class TakeControl(Told):
    """The driver's control executable is gone, or there again, as while a driver is upgraded."""

    away: bool


@dataclass(frozen=True, slots=True)
class JoinDaemon(Told):
    """A process of a pod becomes the daemon's client."""

    name: str


@dataclass(frozen=True, slots=True)
class KillSupervisor(Told):
    """SIGKILL of `sharer mps`."""


@dataclass(frozen=True, slots=True)
class StopSupervisor(Told):
    """SIGTERM: the end of MPS on the node."""


@dataclass(frozen=True, slots=True)
class StartSupervisor(Told):
    """The next one starts."""


MpsStep = (
    KillDaemon | HangDaemon | FreeDaemon | TakeControl | JoinDaemon | KillSupervisor | StopSupervisor | StartSupervisor
)
