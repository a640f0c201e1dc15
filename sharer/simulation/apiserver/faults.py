"""What goes wrong on purpose: the next requests that match fail, hang or lose their connection."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from sharer.simulation.apiserver.records import Request
from sharer.simulation.apiserver.statuses import REASONS, Answer, Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class Fail:
    """An HTTP answer instead of the right one."""

    code: int
    retry_after_s: int | None = None
    message: str = "the simulated API server was told to fail"
    reason: str | None = None  # None: the usual one of the code
    body: str | None = None  # instead of a Status: what a load balancer in front sends

    def answer(self) -> Answer:
        """As HTTP."""
        if self.body is not None:
            return Answer(code=self.code, body=self.body.encode(), content_type="text/html")
        reason = REASONS.get(self.code, "") if self.reason is None else self.reason
        return Failure(self.code, self.message, reason=reason, retry_after_s=self.retry_after_s).answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Hang:
    """No answer at all, on an open connection, until the faults are cleared or the server closes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reset:
    """The connection is reset before an answer."""


Fault = Fail | Hang | Reset


@dataclass(slots=True)
class _Planned:
    fault: Fault
    verb: str | None
    resource: str | None
    times: int | None  # None: until cleared


class Faults:
    """The faults that are waiting for their requests, first come first served."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._planned: list[_Planned] = []
        self._cleared = threading.Event()

    def plan(self, fault: Fault, *, verb: str | None, resource: str | None, times: int | None) -> None:
        """Let the next requests that match suffer this."""
        with self._lock:
            self._planned.append(_Planned(fault, verb, resource, times))

    def clear(self) -> None:
        """No more faults; what hangs is let go, without an answer."""
        with self._lock:
            self._planned.clear()
            self._cleared.set()
            self._cleared = threading.Event()

    def take(self, request: Request) -> Fault | None:
        """The fault for this request, if one is planned."""
        with self._lock:
            for planned in self._planned:
                if planned.verb in (None, request.verb) and planned.resource in (None, request.resource):
                    if planned.times is not None:
                        planned.times -= 1
                        if planned.times == 0:
                            self._planned.remove(planned)
                    return planned.fault
            return None

    def hang(self) -> None:
        """Return only when the faults are cleared."""
        with self._lock:
            cleared = self._cleared
        cleared.wait()
