"""How well a watch goes: what is in the way, since when, how long to wait, and what is worth a line in the log."""

from __future__ import annotations

import logging
from collections.abc import Callable

from sharer.adapters.kube.errors import ApiError
from sharer.adapters.kube.timings import KubeTimings
from sharer.core.holders.observations import ApiSync, ApiTrouble, ApiTroubleKind

_ORDINARY = (ApiTroubleKind.EXPIRED, ApiTroubleKind.UNREACHABLE, ApiTroubleKind.SERVER)  # worth a line if they repeat
_SLOW = (ApiTroubleKind.FORBIDDEN, ApiTroubleKind.REFUSED)  # only a person can help

log = logging.getLogger(__name__)


class Standing:
    """Written by the watch's thread; `sync` is for any thread."""

    def __init__(self, what: str, missed: str, timings: KubeTimings, clock: Callable[[], float]) -> None:
        self.sync = ApiSync(synced_at_s=None, trouble=None)
        self._what = what
        self._missed = missed
        self._timings = timings
        self._clock = clock
        self._failures = 0
        self._opened_s: float | None = None  # of the watch in progress
        self._failed_in_stream = False  # the last failure ended a watch that had begun well
        self._said: set[tuple[ApiTroubleKind, int | None]] = set()

    def confirmed(self) -> None:
        """The API server has told us something."""
        self.sync = ApiSync(synced_at_s=self._clock(), trouble=self.sync.trouble)

    def opened(self) -> None:
        """A watch has begun well. That cures what kept it from beginning, or broke the connection of the one before."""
        self._opened_s = self._clock()
        if self._failed_in_stream:
            trouble = self.sync.trouble
            if trouble is not None and trouble.kind is ApiTroubleKind.UNREACHABLE:
                self.recovered()
        else:
            self._settled()

    def recovered(self) -> None:
        """Events arrive: nothing is in the way now. Whether that lasts, `ended` and `failed` find out."""
        if self.sync.trouble is not None:
            self.sync = ApiSync(synced_at_s=self.sync.synced_at_s, trouble=None)

    def ended(self) -> float:
        """A watch has ended as it should. Returns how long it lasted, in seconds; the caller judges that."""
        assert self._opened_s is not None
        lasted_s = self._clock() - self._opened_s
        if lasted_s >= self._timings.settled_s:
            self._opened_s, self._failed_in_stream = None, False
            self._settled()
        return lasted_s

    def failed(self, error: ApiError) -> float:
        """Something went wrong. Returns how long to wait before the next try, in seconds."""
        self._failed_in_stream = self._opened_s is not None
        if self._opened_s is not None and self._clock() - self._opened_s >= self._timings.settled_s:
            self._settled()
        self._opened_s = None
        self._failures += 1
        before = self.sync.trouble
        since_s = self._clock() if before is None else before.since_s
        self.sync = ApiSync(
            synced_at_s=self.sync.synced_at_s,
            trouble=ApiTrouble(kind=error.kind, message=str(error), since_s=since_s),
        )
        delay_s = self._delay_s(error)
        known = (error.kind, error.code)
        quiet = known in self._said or (error.kind in _ORDINARY and self._failures == 1)
        log.log(
            logging.DEBUG if quiet else logging.WARNING,
            "%s. Until then %s; trying again in %.0f s",
            error,
            self._missed,
            delay_s,
        )
        if not quiet:
            self._said.add(known)
        return delay_s

    def _settled(self) -> None:
        """All is well: the next failure is the first one, and news."""
        self._failures = 0
        if self._said:
            log.info("following %s again", self._what)
        self._said.clear()
        self.recovered()

    def _delay_s(self, error: ApiError) -> float:
        if error.kind in _SLOW:
            return self._timings.slow_s()
        if error.retry_after_s is not None:
            return self._timings.told_s(error.retry_after_s)
        return self._timings.backoff_s(self._failures)
