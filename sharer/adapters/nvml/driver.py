"""The driver as the flows see it: what exists, how it is linked, what goes wrong with it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from sharer.adapters.nvml.calls import Calls, NvmlCallError
from sharer.adapters.nvml.discovery import look
from sharer.adapters.nvml.faults import Faults
from sharer.adapters.nvml.library import InstalledLibrary, LibrarySource
from sharer.adapters.nvml.limits import answer_all
from sharer.adapters.nvml.processes import read_processes
from sharer.adapters.nvml.session import Session, explain
from sharer.adapters.nvml.topology import read_topology
from sharer.adapters.nvml.worker import Worker
from sharer.core.enforcer import LimitAnswer, LimitQuestion
from sharer.core.errors import NodeError
from sharer.core.inventory import Inventory, Topology
from sharer.core.ports import GpuSigns, RawProcesses, XidEvent

T = TypeVar("T")

CALL_DEADLINE_S = 10.0  # NVML answers in microseconds to milliseconds; a second where a GPU wakes up or links are asked
OPEN_DEADLINE_S = 90.0  # nvmlInit wakes every GPU, 1 to 4 s each without the persistence daemon; 16 GPUs at most
LISTEN_S = 1.0  # one wait for events, of which an idle agent makes one after the other; closing waits for its end
CLOSE_WITHIN_S = 2.0  # the agent must end within 5 s, whatever NVML does (kubelet-contract §19, row 40)
REOPEN_AFTER_S = 60.0  # how soon a session in doubt is opened anew: see `session`


class NvmlDriver:
    """The node's GPUs through NVML: a `GpuDriver`, `HealthSource` and `ProcessSource` (core.ports). For any thread.

    Nothing is opened before the first question, and a missing driver is looked for anew at each one.
    """

    def __init__(
        self,
        library: LibrarySource | None = None,
        sys_root: Path = Path("/sys"),
        *,
        call_deadline_s: float = CALL_DEADLINE_S,
        open_deadline_s: float = OPEN_DEADLINE_S,
        reopen_after_s: float = REOPEN_AFTER_S,
        listen_s: float = LISTEN_S,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`library` gives the driver's library: an `InstalledLibrary` (default), or `SimulatedGpus.library`."""
        self._source: LibrarySource = InstalledLibrary() if library is None else library
        self._sys_root = sys_root
        self._open_deadline_s, self._reopen_after_s, self._now_s = open_deadline_s, reopen_after_s, now_s
        self._worker = Worker(deadline_s=call_deadline_s)
        self._faults = Faults(listen_s=listen_s, deadline_s=call_deadline_s)
        self._session: Session | None = None  # the worker's

    def discover(self) -> Inventory:
        """Everything that exists now.

        Raises NodeError, with what to do about it, while the driver is missing, late, mismatched or hanging.
        """
        return self._ask(lambda session: look(session, self._sys_root), fresh=True)

    def topology(self) -> Topology:
        """How the GPUs are linked. Slow on some drivers: ask once for a set of GPUs, never while the kubelet waits.

        Raises NodeError as `discover` does.
        """
        return read_topology(self._ask)

    def signs(self) -> tuple[GpuSigns, ...]:
        """One look at every GPU that this session found. Raises NodeError as `discover` does."""
        return self._ask(self._faults.signs)

    def processes(self) -> RawProcesses:
        """What runs on the GPUs now, by the host's PIDs. Raises NodeError as `discover` does."""
        return self._ask(read_processes)

    def limits(self, questions: Sequence[LimitQuestion], *, within_s: float | None = None) -> list[LimitAnswer]:
        """Read memory limits of cgroups, or set them and read them back. See `core.enforcer.MemoryLimits`."""
        return self._ask(lambda session: answer_all(session, questions), within_s=within_s) if questions else []

    def wait_for_xid(self, timeout_s: float) -> XidEvent | None:
        """The next XID; None after the timeout, or when NVML is closed meanwhile. Waits in the caller's thread.

        Raises NodeError, at once, while XIDs cannot be waited for: the caller lets some time pass before it asks again.
        """
        return self._faults.wait(timeout_s, lambda: self._ask(self._faults.start_watch))

    def close(self) -> None:
        """Let go of the driver, so that it can be unloaded or a GPU reset. The next question opens it again.

        Takes up to a second where somebody waits for XIDs. Raises NodeError if NVML does not let go soon.
        """
        self._worker.resume()
        self._worker.run(self._close, within_s=CLOSE_WITHIN_S)
        self._worker.stop()

    def interrupt(self) -> None:
        """Let nobody wait for the driver any longer, also whoever waits now. Until `close`."""
        self._worker.interrupt()

    def _ask(self, question: Callable[[Session], T], *, fresh: bool = False, within_s: float | None = None) -> T:
        return self._worker.run(lambda: self._in_session(question, fresh=fresh), within_s=within_s)

    # All below is done in the worker.

    def _in_session(self, question: Callable[[Session], T], *, fresh: bool) -> T:
        """Ask in the open session; if it turns out to be dead, in a new one. `fresh`: leave one that is in doubt."""
        session = self._session
        if fresh and session is not None and self._should_reopen(session):
            try:
                self._close()
            except NodeError:
                session.opened_s = self._now_s()  # the listener is stuck; what is open still answers, so use it
        try:
            return question(self._open())
        except NvmlCallError:
            self._close()
        try:
            return question(self._open())
        except NvmlCallError as error:
            self._close()
            raise NodeError(explain("NVML does not tell its GPUs", error)) from error

    def _should_reopen(self, session: Session) -> bool:
        return session.empty or (session.doubtful and self._now_s() - session.opened_s >= self._reopen_after_s)

    def _open(self) -> Session:
        if self._session is None:
            self._worker.calling("dlopen", self._open_deadline_s)
            try:
                library = self._source()
            finally:
                self._worker.called()
            calls = Calls(library, before=self._worker.calling, after=self._worker.called)
            self._session = Session(calls, deadline_s=self._open_deadline_s, now_s=self._now_s())
        return self._session

    def _close(self) -> None:
        self._faults.end_watch()
        session, self._session = self._session, None
        if session is not None:
            with contextlib.suppress(NvmlCallError, NodeError):  # dead already, or replaced: why it is closed
                session.calls.shutdown()
