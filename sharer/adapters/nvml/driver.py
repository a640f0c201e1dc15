"""The driver as the flows see it: what exists, how it is linked, what goes wrong with it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from sharer.adapters.nvml.calls import Calls
from sharer.adapters.nvml.discovery import at_driver, look
from sharer.adapters.nvml.errors import VERSION_MISMATCH, NvmlCallError
from sharer.adapters.nvml.faults import Faults
from sharer.adapters.nvml.library import InstalledLibrary, LibrarySource, is_given
from sharer.adapters.nvml.session import Session, explain
from sharer.adapters.nvml.worker import Worker
from sharer.core.enforcer import LimitAnswer, LimitQuestion
from sharer.core.errors import AwayError, FinalError, NodeError
from sharer.core.inventory import Inventory, Topology
from sharer.core.ports.driver import GpuSigns, XidEvent
from sharer.core.ports.holders import RawProcesses

T = TypeVar("T")

CALL_DEADLINE_S = 10.0  # NVML answers in microseconds to milliseconds; a second where a GPU wakes up or links are asked
OPEN_DEADLINE_S = 90.0  # nvmlInit wakes every GPU, 1 to 4 s each without the persistence daemon; 16 GPUs at most
LISTEN_S = 1.5  # one wait for events, of which an idle agent makes one after the other; closing waits for its end
CLOSE_WITHIN_S = 2.0  # the agent must end within 5 s, whatever NVML does (kubelet-contract §19, row 40)
REOPEN_AFTER_S = 60.0  # how soon a session in doubt is opened anew: see `session`


class NvmlDriver:
    """The node's GPUs through NVML: a `GpuDriver`, `HealthSource` and `ProcessSource` (core.ports). For any thread.

    Nothing is opened before the first question, and a missing driver is looked for anew at each one. What is asked only
    when the kubelet has registered us is imported then.
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
        is_given: Callable[[object], bool] = is_given,
    ) -> None:
        """`library` gives the driver's library: an `InstalledLibrary` (default), or `SimulatedGpus.library`.

        `is_given`: whether one is the container's own, so that it stays while the host's is replaced.
        """
        self._source: LibrarySource = InstalledLibrary() if library is None else library
        self._sys_root = sys_root
        self._open_deadline_s, self._reopen_after_s, self._now_s = open_deadline_s, reopen_after_s, now_s
        self._worker = Worker(deadline_s=call_deadline_s)
        self._faults = Faults(listen_s=listen_s, deadline_s=call_deadline_s)
        self._session: Session | None = None  # the worker's
        self._is_given, self._has_worked = is_given, False
        self._paused: str | None = None  # why nobody is answered; None: everybody is
        self._going_on = threading.Event()  # set while nobody has to wait for a pause to end
        self._going_on.set()

    def discover(self) -> Inventory:
        """Everything that exists now.

        Raises NodeError, with what to do about it, while the driver is missing, late, mismatched or hanging; and
        FinalError if it was replaced, and the one before is all that this container will ever have.
        """
        return self._ask(lambda session: look(session, self._sys_root), fresh=True)

    def topology(self) -> Topology:
        """How the GPUs are linked. Slow on some drivers: ask once for a set of GPUs, never while the kubelet waits.

        Raises NodeError as `discover` does.
        """
        from sharer.adapters.nvml.topology import read_topology

        return read_topology(self._ask)

    def signs(self) -> tuple[GpuSigns, ...]:
        """One look at every GPU that this session found. Raises NodeError as `discover` does."""
        return self._ask(self._faults.signs)

    def processes(self) -> RawProcesses:
        """What runs on the GPUs now, by the host's PIDs. Raises NodeError as `discover` does."""
        from sharer.adapters.nvml.processes import read_processes

        return self._ask(read_processes)

    def limits(self, questions: Sequence[LimitQuestion], *, within_s: float | None = None) -> list[LimitAnswer]:
        """Read memory limits of cgroups, or set them and read them back. See `core.enforcer.MemoryLimits`."""
        if not questions:
            return []
        from sharer.adapters.nvml.limits import answer_all

        return self._ask(lambda session: answer_all(session, questions), within_s=within_s)

    def compute_mode(self, uuid: str) -> int:
        """The compute mode of a GPU, as NVML numbers it. Raises NodeError as `discover` does."""
        from sharer.adapters.nvml.modes import read_mode

        return self._ask(lambda session: read_mode(session, uuid))

    def set_compute_mode(self, uuid: str, mode: int) -> None:
        """Set the compute mode of a GPU, and read it back. Raises NodeError if it is not in force then."""
        from sharer.adapters.nvml.modes import set_mode

        self._ask(lambda session: set_mode(session, uuid, mode))

    def wait_for_xid(self, timeout_s: float) -> XidEvent | None:
        """The next XID; None after the timeout, or when NVML is closed meanwhile. Waits in the caller's thread.

        Raises NodeError, at once, while XIDs cannot be waited for: the caller lets some time pass before it asks again.
        A pause is no such failure: no XID comes then.
        """
        if self._paused is not None:
            self._going_on.wait(timeout_s)
            return None
        return self._faults.wait(timeout_s, lambda: self._ask(self._faults.start_watch))

    def close(self) -> None:
        """Let go of the driver, so that it can be unloaded or a GPU reset. The next question opens it again.

        Takes LISTEN_S at most where somebody waits for XIDs. Raises NodeError if NVML does not let go soon.
        """
        self._worker.resume()
        self._worker.run(self._close, within_s=CLOSE_WITHIN_S)
        self._worker.stop()

    def pause(self, reason: str) -> None:
        """See `core.ports.driver.Pausable`. Takes LISTEN_S at most where somebody waits for XIDs."""
        self._paused = reason
        self._going_on.clear()
        self._worker.run(self._close, within_s=CLOSE_WITHIN_S)

    def resume(self) -> None:
        """See `core.ports.driver.Pausable`."""
        self._paused = None
        self._going_on.set()

    def interrupt(self) -> None:
        """Let nobody wait for the driver any longer, also whoever waits now. Until `close`."""
        self._going_on.set()
        self._worker.interrupt()

    def _ask(self, question: Callable[[Session], T], *, fresh: bool = False, within_s: float | None = None) -> T:
        self._refuse_if_paused()
        return self._worker.run(lambda: self._in_session(question, fresh=fresh), within_s=within_s)

    def _refuse_if_paused(self) -> None:
        if self._paused is not None:
            raise AwayError(self._paused)

    # All below is done in the worker.

    def _in_session(self, question: Callable[[Session], T], *, fresh: bool) -> T:
        """Ask in the open session; if it turns out to be dead, in a new one. `fresh`: leave one that is in doubt."""
        self._refuse_if_paused()  # once more: what was asked before the pause may come after its closing
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
        if session.empty:
            return True
        is_old = self._now_s() - session.opened_s >= self._reopen_after_s
        return is_old and (session.doubtful or not at_driver(self._sys_root) <= session.at_driver)

    def _open(self) -> Session:
        if self._session is None:
            self._worker.calling("dlopen", self._open_deadline_s)
            try:
                library = self._source()
            finally:
                self._worker.called()
            calls = Calls(library, before=self._worker.calling, after=self._worker.called)
            try:
                known = at_driver(self._sys_root)
                self._session = Session(calls, deadline_s=self._open_deadline_s, now_s=self._now_s(), at_driver=known)
            except NodeError as error:
                self._give_up_if_outdated(library, error)
                raise
            self._has_worked = True
        return self._session

    def _give_up_if_outdated(self, library: object, error: NodeError) -> None:
        """A library that has worked before and does not fit now: the module was replaced under it.

        One that has never worked is as new as a container can have it, and a restart would only be the first of many.
        """
        cause = error.__cause__
        mismatched = isinstance(cause, NvmlCallError) and cause.code == VERSION_MISMATCH
        if mismatched and self._has_worked and self._is_given(library):
            raise FinalError(
                "the NVIDIA driver was replaced by another version, and this container was given the library of the one"
                f" before ({getattr(library, '_name', 'libnvidia-ml.so.1')}): the agent ends, so that it is started in"
                " a container with the new one"
            ) from error

    def _close(self) -> None:
        self._faults.end_watch()
        session, self._session = self._session, None
        if session is not None:
            with contextlib.suppress(NvmlCallError, NodeError):  # dead already, or replaced: why it is closed
                session.calls.shutdown()
