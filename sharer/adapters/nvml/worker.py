"""The one thread that calls NVML, and the patience of those who wait for it.

A call into the driver can hang for ever: then it hangs here, in a daemon thread that holds up neither a caller nor the
end of the process. Whoever waits gives up at the call's deadline; whoever comes later is told at once; when the call
returns after all, everything works again. The deadline is that of a single NVML call, because the number of calls in a
job follows from the number of GPUs.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import field
from typing import Generic, TypeVar

from sharer.core.errors import NodeError
from sharer.core.values import dataclass

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Call:
    """An NVML call in progress."""

    function: str
    begun_s: float
    deadline_s: float

    def seconds_left(self, now_s: float) -> float:
        return self.begun_s + self.deadline_s - now_s


@dataclass(slots=True)
class _Job(Generic[T]):
    """Work for the thread, and its outcome."""

    work: Callable[[], T]
    given_up: bool = False
    outcome: list[T] = field(default_factory=list)
    error: BaseException | None = None

    @property
    def done(self) -> bool:
        return bool(self.outcome) or self.error is not None


class _GivenUpError(Exception):
    """Nobody waits for this job any more: it ends at its next call."""


class Worker:
    """Runs jobs one after the other in a thread of its own, which starts with the first job and ends at `stop`."""

    def __init__(self, *, deadline_s: float) -> None:
        """`deadline_s` is what a single NVML call may take, where `calling` is not told otherwise."""
        self._deadline_s = deadline_s
        self._changed = threading.Condition()
        self._jobs: deque[_Job[object]] = deque()
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._job: _Job[object] | None = None
        self._call: _Call | None = None
        self._interrupted = False

    def run(self, work: Callable[[], T], *, within_s: float | None = None) -> T:
        """Do `work` in the thread, give back what it gives, raise what it raises.

        Raises NodeError while NVML does not answer: at the deadline of the call that hangs, or at once; and, with
        `within_s`, when all of it, with the jobs before it, takes longer than that.
        """
        job = _Job(work)
        end_s = None if within_s is None else time.monotonic() + within_s
        with self._changed:
            self._refuse_if_hanging()  # before: the queue must not grow for as long as NVML hangs
            self._jobs.append(job)  # type: ignore[arg-type]  # a queue of jobs with any outcome
            self._start_thread()
            self._changed.notify_all()
            try:
                while not job.done:
                    call = self._call
                    left_s = self._deadline_s if call is None else call.seconds_left(time.monotonic())
                    if end_s is not None:
                        left_s = min(left_s, end_s - time.monotonic())
                    self._changed.wait(max(left_s, 0.0))
                    if not job.done:
                        self._refuse_if_hanging()
                        self._refuse_if_late(end_s, within_s)
            except BaseException:
                job.given_up = True
                raise
        if job.error is not None:
            raise job.error
        return job.outcome[0]

    def calling(self, function: str, deadline_s: float | None = None) -> None:
        """In the thread, before each NVML call: the deadline runs from now. Ends the job if nobody waits for it."""
        if self._job is not None and self._job.given_up:
            raise _GivenUpError(function)
        self._call = _Call(function, time.monotonic(), self._deadline_s if deadline_s is None else deadline_s)

    def called(self) -> None:
        """In the thread, after each NVML call."""
        self._call = None

    def hanging(self) -> str | None:
        """Why NVML cannot be asked now: a call is past its deadline. None: it can.

        The same words for as long as it hangs: they are logged, and published, when they change.
        """
        call = self._call
        if call is None or call.seconds_left(time.monotonic()) > 0:
            return None
        return (
            f"NVML does not answer: {call.function} has been running for more than {call.deadline_s:g} s. The driver or"
            " a GPU hangs: look for Xid lines in the kernel log; a reset of the GPU or a reboot may be needed. It is"
            " asked again when the call returns"
        )

    def interrupt(self) -> None:
        """Let nobody wait any longer: who waits, or comes later, is refused at once. Until `resume`."""
        with self._changed:
            self._interrupted = True
            self._changed.notify_all()

    def resume(self) -> None:
        """Let jobs be done again."""
        with self._changed:
            self._interrupted = False

    def stop(self) -> None:
        """Let the thread end after the jobs it has. Does not wait for it. The next job starts another."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    def _refuse_if_hanging(self) -> None:
        reason = "NVML is not asked any more: the agent is stopping" if self._interrupted else self.hanging()
        if reason is not None:
            raise NodeError(reason)

    def _refuse_if_late(self, end_s: float | None, within_s: float | None) -> None:
        if end_s is not None and time.monotonic() >= end_s:
            call = self._call
            busy = "it is between two calls" if call is None else f"{call.function} is running"
            raise NodeError(f"NVML did not answer within {within_s:g} s; {busy}. It goes on, and can be asked again")

    def _start_thread(self) -> None:
        self._stopping = False
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="nvml", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._job = None
                self._changed.wait_for(lambda: self._jobs or self._stopping)
                if not self._jobs:
                    self._thread = None
                    return
                job = self._job = self._jobs.popleft()
            if not job.given_up:
                self._do(job)

    def _do(self, job: _Job[object]) -> None:
        try:
            outcome = job.work()
        except BaseException as error:  # noqa: BLE001 - a thread's boundary: the one who waits raises it
            with self._changed:
                self._call, job.error = None, error
                self._changed.notify_all()
        else:
            with self._changed:
                self._call = None
                job.outcome.append(outcome)
                self._changed.notify_all()
