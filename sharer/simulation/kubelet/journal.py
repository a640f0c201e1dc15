"""What tests look at afterwards: every Register call and every stream, over all restarts; and the faults to come."""

from __future__ import annotations

import dataclasses
import itertools
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from sharer.simulation.kubelet.records import ListMessage, RegisterCall, Stream

_LOOK_S = 0.02  # between two looks whether the kubelet has died


@dataclass(frozen=True, slots=True)
class Refuse:
    """Answer UNKNOWN with this text at once, touching nothing else."""

    text: str


@dataclass(frozen=True, slots=True)
class Block:
    """Do nothing for a while, or until `over` is set, or until the kubelet dies; then go on as usual."""

    seconds: float
    over: threading.Event = field(default_factory=threading.Event, compare=False)

    def wait(self, dead: threading.Event) -> None:
        """Return when it is time to go on."""
        until_s = time.monotonic() + self.seconds
        while not dead.is_set() and (left_s := until_s - time.monotonic()) > 0:
            if self.over.wait(min(left_s, _LOOK_S)):
                return


@dataclass(frozen=True, slots=True)
class Ignore:
    """Answer OK and forget it: no dial, no ListAndWatch."""


@dataclass(frozen=True, slots=True)
class Die:
    """Accept, answer OK, and die before ListAndWatch; with `answer=False` die instead of answering."""

    answer: bool = True


RegisterFault = Refuse | Block | Ignore | Die


@dataclass(slots=True)
class _StreamLog:
    number: int
    resource: str
    endpoint: str
    opened_at_s: float
    messages: list[ListMessage] = field(default_factory=list)
    ended_at_s: float | None = None
    end_reason: str | None = None


class Journal:
    """The log of registrations and streams. Safe from any thread; each entry wakes those who wait on `changed`."""

    def __init__(self, changed: threading.Condition) -> None:
        self._changed = changed
        self._call_numbers, self._stream_numbers = itertools.count(), itertools.count()
        self._calls: dict[int, RegisterCall] = {}  # by number, as the streams
        self._streams: dict[int, _StreamLog] = {}
        self._faults: list[tuple[str | None, RegisterFault]] = []

    # -- Register

    def plan(self, resource: str | None, faults: Sequence[RegisterFault]) -> None:
        """Meet the next Register calls (of one resource, or of any) with these faults, one each."""
        with self._changed:
            self._faults.extend((resource, fault) for fault in faults)

    def next_fault(self, resource: str) -> RegisterFault | None:
        """Take the fault planned for this call, if any."""
        with self._changed:
            for index, (wanted, fault) in enumerate(self._faults):
                if wanted in (None, resource):
                    del self._faults[index]
                    return fault
            return None

    def arrived(self, call: RegisterCall) -> int:
        """Log a call with the state it found. Returns its number, for `answered`."""
        with self._changed:
            logs, calls = self._streams.values(), self._calls.values()
            live = sum(log.resource == call.resource and log.ended_at_s is None for log in logs)
            waiting = sum(other.resource == call.resource and other.took_s is None for other in calls)
            number = next(self._call_numbers)
            self._calls[number] = dataclasses.replace(call, live_streams=live, calls_in_progress=waiting)
            self._changed.notify_all()
            return number

    def update(self, number: int, **changes: object) -> None:
        """Fill in what became known about a call."""
        with self._changed:
            self._calls[number] = dataclasses.replace(self._calls[number], **changes)  # type: ignore[arg-type]
            self._changed.notify_all()

    def calls(self, resource: str | None) -> list[RegisterCall]:
        """The calls so far, of one resource or of all, in the order of arrival."""
        with self._changed:
            return [call for call in self._calls.values() if resource in (None, call.resource)]

    # -- ListAndWatch

    def opened(self, resource: str, endpoint: str, at_s: float) -> int:
        """Log a new stream. Returns its number."""
        with self._changed:
            number = next(self._stream_numbers)
            self._streams[number] = _StreamLog(number, resource, endpoint, at_s)
            self._changed.notify_all()
            return number

    def received(self, number: int, message: ListMessage) -> None:
        """Log a message."""
        with self._changed:
            self._streams[number].messages.append(message)
            self._changed.notify_all()

    def ended(self, number: int, reason: str, at_s: float) -> None:
        """Log a stream's end."""
        with self._changed:
            self._streams[number].ended_at_s = at_s
            self._streams[number].end_reason = reason
            self._changed.notify_all()

    def streams(self, resource: str | None) -> list[Stream]:
        """The streams so far, of one resource or of all, in the order of opening."""
        with self._changed:
            return [
                Stream(
                    number=log.number,
                    resource=log.resource,
                    endpoint=log.endpoint,
                    opened_at_s=log.opened_at_s,
                    messages=tuple(log.messages),
                    ended_at_s=log.ended_at_s,
                    end_reason=log.end_reason,
                )
                for log in self._streams.values()
                if resource in (None, log.resource)
            ]

    # -- what is over

    def forget(self) -> None:
        """Drop calls that were answered, streams that have ended, and all but the last list of those that live."""
        with self._changed:
            self._calls = {number: call for number, call in self._calls.items() if call.took_s is None}
            self._streams = {number: log for number, log in self._streams.items() if log.ended_at_s is None}
            for log in self._streams.values():
                del log.messages[:-1]
