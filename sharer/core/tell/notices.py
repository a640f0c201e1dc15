"""Which news is told when: each once, again only if it changed, some day as a reminder, and never too much at a time.

The API server merges nothing by itself and must not be flooded by a node in trouble. So:

* What stays true is told once, and again after REMIND_S, since the API server forgets Events after an hour.
* What changes its words, or ends and begins again, is told AGAIN_S after it was told last, with a count of all times.
* At most BURST at once, and one in EVERY_S in the long run, for everything on this node together. What was never told
  comes before what was, the node before its pods; what is over before its turn came is not told any more.

An agent that has just started tells what is so as if it were new. The Events' names follow from the news alone, so that
this changes those that are there and adds none; only their counts begin anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field

from sharer.core.inventory import Inventory
from sharer.core.tell.news import News, NewsKey, Reason, recovered
from sharer.core.told import EventCounts
from sharer.core.values import dataclass, replace

BURST = 10  # Events at once
EVERY_S = 20.0  # one more after each such time: a fleet of 1,000 nodes in trouble sends 50 a second
AGAIN_S = 300.0
REMIND_S = 1800.0  # the API server keeps Events for an hour, unless it was told otherwise
RETRY_S = 60.0  # after one could not be told; others have their turn before
LATE_S = 600.0  # what has happened so long ago is not told any more
_SAME_S = 1e-3  # a sum of parts of a second may miss the whole by less


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """One thing to tell, and what became of that."""

    news: News
    since_s: float  # when it began, or happened, last
    first_s: float  # when it did for the first time
    times: int = 1  # how often it began or happened, and was reminded of
    is_standing: bool  # it is so now; False: it is over, or has happened at one moment
    told_s: float | None = None  # None: never
    told_times: int = 0  # what `times` was then
    told_message: str | None = None
    not_before_s: float = 0.0  # it could not be told, and is to be tried again then

    @property
    def is_untold(self) -> bool:
        """Whether there is something new about it."""
        return self.told_times < self.times or (self.is_standing and self.told_message != self.news.message)

    def due_s(self) -> float | None:
        """When it is to be told, if nothing is in the way; None: not until it changes."""
        if self.is_untold:
            due_s = self.since_s + self.news.lasting_s
            if self.told_s is not None:
                due_s = max(due_s, self.told_s + AGAIN_S)
        elif self.is_standing and self.told_s is not None:
            due_s = self.told_s + REMIND_S
        else:
            return None
        return max(due_s, self.not_before_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Notices:
    """Everything that is to be told or was told lately."""

    notices: Mapping[NewsKey, Notice] = field(default_factory=dict)
    saved: float = BURST  # how many may be told at once, at `saved_s`
    saved_s: float = 0.0
    counts: EventCounts = field(default_factory=EventCounts)


def heard(
    before: Notices, standing: Iterable[News], happened: Iterable[News], inventory: Inventory | None, now_s: float
) -> Notices:
    """What is to be told after a look at what is so now, and at what has happened since the look before.

    A fault that was told and is over makes a recovery happen.
    """
    now = {news.key: news for news in standing}
    notices: dict[NewsKey, Notice] = {}
    counts, new = before.counts, list(happened)
    for key, old in before.notices.items():
        if key in now:
            continue
        ended = replace(old, is_standing=False)
        if old.is_standing and old.news.reason is Reason.GPU_FAULT and old.told_s is not None:
            new += recovered(old.news.about, inventory)
        is_late = now_s - old.since_s >= LATE_S
        if ended.is_untold and (old.is_standing or is_late):
            counts = replace(counts, suppressed=_plus_one(counts.suppressed, key))
            ended = replace(ended, told_times=ended.times)
        if ended.is_untold or (ended.told_s is not None and now_s - ended.told_s < REMIND_S):
            notices[key] = ended
    for key, news in now.items():
        notices[key] = _stands(before.notices.get(key), news, now_s)
    for news in new:
        notices[news.key] = _happens(notices.get(news.key), news, now_s)
    return replace(before, notices=notices, counts=counts)


def next_notice(notices: Notices, now_s: float) -> tuple[Notice | None, float | None]:
    """What to tell now; and if there is nothing, when there is if nothing changes. None: never."""
    waiting = [(due_s, one) for one in notices.notices.values() if (due_s := one.due_s()) is not None]
    if not waiting:
        return None, None
    if (may_s := _may_s(notices, now_s)) > now_s + _SAME_S:
        return None, max(may_s, min(due_s for due_s, _ in waiting))
    due = [(one.told_s is not None, one.news.pod is not None, due_s, one) for due_s, one in waiting if due_s <= now_s]
    if not due:
        return None, min(due_s for due_s, _ in waiting)
    return min(due, key=lambda entry: entry[:3])[3], now_s


def told(notices: Notices, key: NewsKey, now_s: float) -> Notices:
    """It was told just now. `next_notice` says as what: of a reminder the count is one more."""
    one = notices.notices[key]
    times = one.times if one.is_untold else one.times + 1
    now = replace(one, times=times, told_s=now_s, told_times=times, told_message=one.news.message)
    counts = replace(notices.counts, sent=_plus_one(notices.counts.sent, key))
    return _spent(replace(notices, notices={**notices.notices, key: now}, counts=counts), now_s)


def not_told(notices: Notices, key: NewsKey, now_s: float) -> Notices:
    """It was tried and could not be told."""
    later = replace(notices.notices[key], not_before_s=now_s + RETRY_S)
    counts = replace(notices.counts, failed=_plus_one(notices.counts.failed, key))
    return _spent(replace(notices, notices={**notices.notices, key: later}, counts=counts), now_s)


def _stands(old: Notice | None, news: News, now_s: float) -> Notice:
    if old is None:
        return Notice(news=news, since_s=now_s, first_s=now_s, is_standing=True)
    if old.is_standing:
        return replace(old, news=news)
    return replace(old, news=news, is_standing=True, since_s=now_s, times=old.times + 1)


def _happens(old: Notice | None, news: News, now_s: float) -> Notice:
    if old is None:
        return Notice(news=news, since_s=now_s, first_s=now_s, is_standing=False)
    return replace(old, news=news, since_s=now_s, times=old.times + 1)


def _saved(notices: Notices, now_s: float) -> float:
    return min(BURST, notices.saved + max(0.0, now_s - notices.saved_s) / EVERY_S)


def _may_s(notices: Notices, now_s: float) -> float:
    """When one more may be sent."""
    return now_s + max(0.0, 1.0 - _saved(notices, now_s)) * EVERY_S


def _spent(notices: Notices, now_s: float) -> Notices:
    return replace(notices, saved=_saved(notices, now_s) - 1.0, saved_s=now_s)


def _plus_one(counts: Mapping[str, int], key: NewsKey) -> Mapping[str, int]:
    return {**counts, key[1].value: counts.get(key[1].value, 0) + 1}
