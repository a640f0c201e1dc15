"""What a demo tells, and to whom: observations in their order, as lines while it runs and as a document afterwards."""

from __future__ import annotations

import queue
import time
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One thing that was seen."""

    at_s: float  # since the node was started
    by: str  # "agent" (its log), "report" (what it answers on its local socket), "kubelet", or the pod that sees it
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """One step, and what was seen in it."""

    title: str
    observations: tuple[Observation, ...]
    failure: str | None  # what was seen instead of what was expected; null: as expected


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSlices:
    """What has become of the slices of one GPU or MIG device that one resource lists with one promise."""

    gpu: int
    product: str
    uuid: str  # of the GPU or MIG device
    resource: str
    slices: int
    promise_bytes: int | None  # of each
    held: int
    draining: int  # of the held ones, those of an earlier cut
    free: int
    unhealthy: int
    held_by: tuple[str, ...]  # what was seen to hold containers to that promise; "nothing": of some, nothing was
    pods: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationReport:
    """A whole demo."""

    kind: ClassVar[str] = "Simulation"
    policy: str
    steps: tuple[StepReport, ...]
    slices: tuple[GpuSlices, ...]

    @property
    def failed(self) -> bool:
        """Whether something else was seen than was expected."""
        return any(step.failure is not None for step in self.steps)


class Audience:
    """Is shown the demo while it runs. This one sees nothing; override what you want to see."""

    def begins(self, title: str) -> None:
        """A step begins."""

    def sees(self, observation: Observation) -> None:
        """Something was observed."""

    def fails(self, failure: str) -> None:
        """The step, and with it the demo, ends here."""


class Story:
    """What was observed, in its order. The agent's threads add to it, and only the demo's own thread tells it."""

    def __init__(self, audience: Audience) -> None:
        self._audience = audience
        self._started_s = time.monotonic()
        self._heard: queue.SimpleQueue[Observation] = queue.SimpleQueue()
        self._told: list[Observation] = []

    def add(self, by: str, text: str) -> None:
        """Note an observation of this moment."""
        self._heard.put(Observation(at_s=time.monotonic() - self._started_s, by=by, text=text))

    def tell(self) -> None:
        """Show the audience what it has not seen yet."""
        while not self._heard.empty():
            self._told.append(self._heard.get())
            self._audience.sees(self._told[-1])

    def end_step(self) -> tuple[Observation, ...]:
        """Everything that was observed since the step before."""
        self.tell()
        told, self._told = self._told, []
        return tuple(told)
