"""Supervise this node's MPS control daemons: read what is wanted, hold compute modes, keep each daemon.

One thread for each daemon, so that one which hangs holds up no other and its own state is still told. This thread
reads what is wanted and holds the modes, before a daemon starts and after it has ended.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Protocol

from sharer.core.errors import NodeError
from sharer.core.mps.daemon import MpsDaemon
from sharer.core.mps.state import MpsWanted
from sharer.core.mps.supervision import SETTLE_S
from sharer.flows.supervise.compute_modes import ModeKeeper
from sharer.flows.supervise.keep_daemon import LATER_S, Keeper, StateWriter

CYCLE_S = 2.0
MODES_S, RETRY_S = 30.0, 10.0  # between two looks at compute modes: that should be right, that are not
END_S = 12.0  # for all daemons to end: each is asked, waited for, then killed

log = logging.getLogger(__name__)


class WantedSource(Protocol):
    """What the agent wants of this node's daemons."""

    def read(self) -> Mapping[str, MpsWanted] | None:
        """By resource, the last that was heard; None: nothing ever was. Raises NodeError if it cannot be kept."""
        ...


class Supervisor:
    """Everything that `sharer mps` does, from `run` to its end."""

    def __init__(
        self,
        source: WantedSource,
        states: StateWriter,
        modes: ModeKeeper,
        make_daemon: Callable[[str], MpsDaemon],
        *,
        earlier: Collection[str] = (),
        warnings: tuple[str, ...] = (),
        settle_s: float = SETTLE_S,
    ) -> None:
        """`earlier`: resources that an earlier run kept a daemon for. `warnings`: what to say of every daemon.

        `settle_s`: how long a server that has come up must stay; a shorter time makes a demo shorter.
        """
        self._source, self._states, self._modes, self._make_daemon = source, states, modes, make_daemon
        self._warnings, self._settle_s = warnings, settle_s
        self._earlier = tuple(earlier)
        self._kept: dict[str, KeptDaemon] = {}
        self._held: Collection[str] | None = None
        self._held_s = 0.0
        self._mode_problems: Mapping[str, str] = {}
        self._said: str | None = None

    def run(self, stop: threading.Event) -> None:
        """Until told to stop; then the daemons are ended, and the compute modes are as they were."""
        try:
            while not stop.is_set():
                self._cycle()
                stop.wait(CYCLE_S)
        finally:
            self._end()

    def _cycle(self) -> None:
        try:
            wanted, trouble = self._source.read(), None
        except NodeError as error:
            wanted, trouble = None, str(error)
        if trouble is not None and trouble != self._said:
            log.warning("%s", trouble)
        self._said = trouble
        if wanted is None:
            return  # no news is not "nothing is wanted"
        self._hold_modes({uuid for one in wanted.values() for uuid in one.slices})
        for resource in {*wanted, *self._earlier} - self._kept.keys():
            keeper = Keeper(resource, self._make_daemon(resource), self._states, settle_s=self._settle_s)
            self._kept[resource] = KeptDaemon(keeper)
        self._earlier = ()
        for resource, kept in list(self._kept.items()):
            one = wanted.get(resource)
            kept.want(one, self._warnings_for(one))
            if kept.gone and one is None:
                del self._kept[resource]
            elif kept.gone:  # wanted again in the moment in which it had ended
                del self._kept[resource]
                self._earlier = (resource,)

    def _hold_modes(self, uuids: Collection[str]) -> None:
        now_s = time.monotonic()
        every_s = MODES_S if not self._mode_problems else RETRY_S
        if uuids == self._held and now_s - self._held_s < every_s:
            return
        problems = self._modes.hold(uuids)
        for uuid, problem in problems.items():
            if self._mode_problems.get(uuid) != problem:
                log.warning("the compute mode of %s is not as it must be: %s", uuid, problem)
        self._held, self._held_s, self._mode_problems = uuids, now_s, problems

    def _warnings_for(self, wanted: MpsWanted | None) -> tuple[str, ...]:
        uuids = () if wanted is None else sorted(wanted.slices.keys() & self._mode_problems.keys())
        return self._warnings + tuple(
            f"{uuid} is not in exclusive compute mode, so a container that leaves MPS is not held by it:"
            f" {self._mode_problems[uuid]}"
            for uuid in uuids
        )

    def _end(self) -> None:
        until_s = time.monotonic() + END_S
        for kept in self._kept.values():
            kept.end()
        for kept in self._kept.values():
            kept.join(max(0.0, until_s - time.monotonic()))
        for uuid, problem in self._modes.hold(()).items():
            log.warning("the compute mode of %s is not put back: %s; a later run tries again", uuid, problem)


class KeptDaemon:
    """The thread that keeps one daemon."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self._changed = threading.Condition()
        self._wanted: tuple[MpsWanted | None, tuple[str, ...]] | None = None  # None: not told yet
        self._ending = False
        self._untold: str | None = None
        self._thread = threading.Thread(target=self._run, name=f"mps-{keeper.resource}", daemon=True)
        self._thread.start()

    @property
    def gone(self) -> bool:
        """Whether there is nothing left to keep."""
        return not self._thread.is_alive()

    def want(self, wanted: MpsWanted | None, warnings: tuple[str, ...]) -> None:
        """What is wanted of it from now on."""
        with self._changed:
            if self._wanted != (wanted, warnings):
                self._wanted = wanted, warnings
                self._changed.notify_all()

    def end(self) -> None:
        """Have it ended. Does not wait."""
        with self._changed:
            self._ending = True
            self._changed.notify_all()

    def join(self, within_s: float) -> None:
        """Wait for its end."""
        self._thread.join(within_s)

    def _run(self) -> None:
        wait_s: float | None = 0.0
        with self._changed:
            self._changed.wait_for(lambda: self._wanted is not None or self._ending)
        while wait_s is not None:
            with self._changed:
                wanted = self._wanted
                if self._ending or wanted is None:
                    break
            wait_s = self._step(*wanted)
            with self._changed:
                self._changed.wait_for(partial(self._has_news, wanted), wait_s)
        if wait_s is not None:  # it is told to end before it is gone
            try:
                self._keeper.end(wall_s=time.time())
            except NodeError as error:
                log.warning("%s: %s", self._keeper.resource, error)

    def _has_news(self, known: object) -> bool:
        return self._ending or self._wanted != known

    def _step(self, wanted: MpsWanted | None, warnings: tuple[str, ...]) -> float | None:
        try:
            wait_s = self._keeper.step(wanted, warnings, now_s=time.monotonic(), wall_s=time.time())
            self._untold = None
            return wait_s
        except NodeError as error:  # the state cannot be told; once is enough
            if str(error) != self._untold:
                log.warning("%s: %s", self._keeper.resource, error)
            self._untold = str(error)
        except Exception:  # a thread's boundary: the next step may fare better, and its neighbours must not suffer
            log.exception("%s: a step failed", self._keeper.resource)
        return LATER_S
