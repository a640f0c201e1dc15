"""The one thread that writes to the API server: Events, evictions, the GpuNode, the Lease, the Node's labels.

What is written follows from the node's view, so it is looked at when that changes and not before: the thread sleeps on
a condition, and the daemon's loop rings when something that anybody could tell of is another than before. A change is
given a second of company, another one on every node, so that a burst is one look and the nodes of a fleet do not all
ask in the same moment (bug case P33).

A step may keep the thread waiting for the API server; nothing that a pod waits for runs here. What a step cannot do it
raises: the sentence is logged once for as long as it stays the same, and the step is tried again after a while, which
the API server can set (429). Other steps go on meanwhile.
"""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

from sharer.core.api_error import ApiError
from sharer.core.errors import SharerError
from sharer.core.holders.observations import ApiTroubleKind, NodeSeen
from sharer.core.values import dataclass, field_names
from sharer.flows.state import NodeView

GATHER_S = (0.5, 1.5)  # from a change to the look at it
RETRY_FIRST_S = 1.0
RETRY_CAP_S = 60.0
SLOW_RETRY_S = 300.0  # after a refusal that only a person can cure: 5,000 nodes without a CRD ask 13 times a second
TOLD_CAP_S = 300.0  # a Retry-After beyond this is taken for a mistake
_SLOW = (ApiTroubleKind.FORBIDDEN, ApiTroubleKind.REFUSED)

Step = Callable[[NodeView, float], float | None]
"""Look at a view at a time and tell the API server what it must know. Returns when to be called again although nothing
has changed, on the clock of that time; None: only at a change. Raises SharerError for what could not be told."""

Client = TypeVar("Client", covariant=True)

log = logging.getLogger(__name__)


class Connection(Protocol[Client]):
    """The API server, as it is followed; `Client` is what a step asks of it."""

    @property
    def client(self) -> Client | None:
        """None: not connected yet."""
        ...

    @property
    def node(self) -> NodeSeen | None:
        """This node's object; None: not known."""
        ...


class Announcing:
    """The steps, and when each is due. `look_at` is for the daemon's loop, `end` for any thread."""

    def __init__(
        self,
        api: Connection[object],
        *,
        now_s: Callable[[], float] = time.monotonic,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._api, self._now_s, self._uniform = api, now_s, uniform
        self._changed = threading.Condition()
        self._view: NodeView | None = None  # None: nothing was looked at yet
        self._parts: tuple[object, ...] = ()
        self._changed_s: float | None = None  # when the view first changed since the last round; None: it has not
        self._turns: list[_Turn] = []

    def add(self, name: str, step: Step) -> None:
        """Have this done too, after what was added before. `name` is for the log: "the GpuNode"."""
        self._turns.append(_Turn(name=name, step=step))

    def look_at(self, view: NodeView) -> None:
        """Take note of a view, and wake the thread if it says something new. Cheap where it does not."""
        if self._api.client is None:
            return
        parts = (self._api.node, *_parts(view))
        is_news = self._view is None or any(
            one is not other and one != other for one, other in zip(parts, self._parts, strict=True)
        )
        with self._changed:
            self._view, self._parts = view, parts
            if is_news and self._changed_s is None:
                self._changed_s = self._now_s()
                self._changed.notify_all()

    def run(self, stop: threading.Event) -> None:
        """Call the steps when they are due, until told to stop; `end` after that ends the wait."""
        while self._wait(stop):
            self.round(self._now_s(), stop)

    def end(self) -> None:
        """Have `run` look at `stop`."""
        with self._changed:
            self._changed.notify_all()

    def round(self, now_s: float, stop: threading.Event) -> None:
        """Call every step that is due now, in their order."""
        with self._changed:
            view, is_changed = self._view, self._changed_s is not None
            self._changed_s = None
        if view is None:
            return
        for turn in self._turns:
            if is_changed:
                turn.due_s = max(now_s, turn.not_before_s)
            if turn.due_s <= now_s and not stop.is_set():
                self._take(turn, view, now_s, stop)

    def due_s(self) -> float:
        """When the next round is due if nothing changes until then; infinite: never."""
        return min((turn.due_s for turn in self._turns), default=math.inf)

    def _wait(self, stop: threading.Event) -> bool:
        """Sleep until a round is due. Returns whether there is one; False: it is time to stop."""
        gather_s = self._uniform(*GATHER_S)
        with self._changed:
            while not stop.is_set():
                due_s = self.due_s()
                if self._changed_s is not None:
                    due_s = min(due_s, self._changed_s + gather_s)
                wait_s = due_s - self._now_s()
                if wait_s <= 0:
                    return True
                self._changed.wait(None if math.isinf(wait_s) else wait_s)
        return False

    def _take(self, turn: _Turn, view: NodeView, now_s: float, stop: threading.Event) -> None:
        try:
            again_s = turn.step(view, now_s)
        except SharerError as error:
            quiet = stop.is_set() or turn.said == str(error)
            log.log(logging.DEBUG if quiet else logging.WARNING, "%s: %s", turn.name, error)
            turn.fail(str(error), self._now_s() + self._delay_s(error, turn.failures + 1))
        except Exception as error:  # the thread's boundary: reported in full, and tried again
            log.exception("%s: failed; it is tried again", turn.name)
            turn.fail(str(error), self._now_s() + self._uniform(1.0, 1.5) * SLOW_RETRY_S)
        else:
            if turn.said is not None:
                log.info("%s: works again", turn.name)
            turn.succeed(again_s)

    def _delay_s(self, error: SharerError, failures: int) -> float:
        if isinstance(error, ApiError):
            if error.retry_after_s is not None:
                return min(error.retry_after_s, TOLD_CAP_S) * self._uniform(1.0, 1.5)
            if error.kind in _SLOW:
                return SLOW_RETRY_S * self._uniform(1.0, 1.5)
        doubled_s = min(RETRY_FIRST_S * 2.0 ** min(failures - 1, 16), RETRY_CAP_S)
        return doubled_s * self._uniform(0.5, 1.5)


@dataclass(slots=True, kw_only=True)
class _Turn:
    """One step, and when it is due."""

    name: str
    step: Step
    due_s: float = math.inf
    not_before_s: float = -math.inf  # after a failure
    failures: int = 0  # in a row
    said: str | None = None  # the last failure; None: the last try went well

    def succeed(self, again_s: float | None) -> None:
        self.due_s = math.inf if again_s is None else again_s
        self.not_before_s, self.failures, self.said = -math.inf, 0, None

    def fail(self, sentence: str, again_s: float) -> None:
        self.due_s = self.not_before_s = again_s
        self.failures, self.said = self.failures + 1, sentence


_SILENT = frozenset({"driver_read_s", "pace", "basis", "facts_offered", "events"})
"""What of a view nobody tells of: when something was read, what lists were made from, and how much was told already."""
_TOLD = tuple(name for name in field_names(NodeView) if name not in _SILENT)


def _parts(view: NodeView) -> tuple[object, ...]:
    """Everything of a view that somebody could tell of; not what changes by itself: times of reading, used memory."""
    digests: dict[str, object] = {
        "ledger": (view.ledger.entries, view.ledger.names),
        "findings": [(one.key, one.cure) for one in view.findings.found],
        "enforcement": (
            {key: (hold.by, hold.reason, hold.since_s) for key, hold in view.enforcement.holds.items()},
            view.enforcement.problem,
            view.enforcement.lift_count,
        ),
        "sources": {name: status.problem for name, status in view.sources.items()},
    }
    return tuple(digests.get(name, getattr(view, name)) for name in _TOLD)
