"""The folders in which the agent and `sharer mps` write, and what follows from one that refuses to be written."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from sharer.adapters.local_socket import ask
from sharer.core.errors import NodeError
from tests.e2e.node import Node
from tests.e2e.process import Agent
from tests.fakes.fast_clock import JumpingClock
from tests.fakes.read_only import ReadOnlyFolders
from tests.faults.steps import Place

RETRY_AT_LEAST_S = 10.0  # a whole look at the node, in which what could not be written is tried again
RETRY_MOST_S = 38.0  # a registration that failed is tried after 1 s, then after twice as long, up to 30 s
END_S = 30.0  # for a process to begin, or to end


class Places:
    """Which of them refuse, and since when; for processes that are started with `variables`."""

    def __init__(self, node: Node, clock: JumpingClock | None = None) -> None:
        """`clock`: those processes' wall clock; None: they have the true one."""
        self._paths: Mapping[Place, Path] = {
            Place.RUN: node.run_dir,
            Place.PLUGINS: node.directory,
            Place.CDI: node.run_cdi,
            Place.STATE: node.root / "state",
        }
        self._folders = ReadOnlyFolders(node.root / "read-only", tuple(self._paths.values()))
        self._clock = {} if clock is None else clock.variables
        self._since_s: dict[Place, float] = {}
        self.settles_s = 0.0  # until when what was not possible may be tried again

    @property
    def variables(self) -> dict[str, str]:
        """For a process of its own."""
        found = self._clock | self._folders.variables
        libraries = [one["LD_PRELOAD"] for one in (self._clock, self._folders.variables) if one]
        return found | {"LD_PRELOAD": ":".join(libraries)}

    @property
    def refusing(self) -> frozenset[Place]:
        """Those that cannot be written now."""
        return frozenset(self._since_s)

    def refuse(self, place: Place, *, refused: bool) -> None:
        """Let this one be read-only, or let it be written again. Twice is once."""
        self._folders.refuse(self._paths[place], refused=refused)
        now_s = time.monotonic()
        if refused:
            self._since_s.setdefault(place, now_s)
        elif (since_s := self._since_s.pop(place, None)) is not None:
            retry_s = min(RETRY_MOST_S, RETRY_AT_LEAST_S + 1.5 * (now_s - since_s))
            self.settles_s = max(self.settles_s, now_s + retry_s)

    def lose_specs(self) -> None:
        """Every file in the CDI dir is gone."""
        for file in self._paths[Place.CDI].iterdir():
            file.unlink(missing_ok=True)
        self.settles_s = max(self.settles_s, time.monotonic() + RETRY_AT_LEAST_S)


def wait_answering(run_dir: Path, agent: Agent) -> None:
    """Until an agent has all that it makes in its run dir, or has ended."""

    def answers() -> bool:
        try:
            return bool(ask(run_dir))
        except NodeError:
            return False

    wait_for(lambda: not agent.running or answers(), "the agent does not begin")


def wait_for(holds: Callable[[], bool], what: str) -> None:
    """Until it is so. Raises AssertionError if it does not come."""
    until_s = time.monotonic() + END_S
    while not holds():
        assert time.monotonic() < until_s, what
        threading.Event().wait(0.01)
