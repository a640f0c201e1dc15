"""The sources' answers in one pass, and what becomes known about the sources by them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from sharer.core.errors import AwayError, NodeError
from sharer.core.holders.evidence import Reading, SourceStatus
from sharer.core.holders.observations import ApiSync

T = TypeVar("T")

log = logging.getLogger(__name__)


class RoundTable:
    """Collects readings. A source that does not answer has none, and is remembered with the reason."""

    def __init__(self, statuses: Mapping[str, SourceStatus], now_s: float) -> None:
        self.readings: list[Reading] = []
        self.statuses = dict(statuses)
        self._before = statuses
        self._now_s = now_s
        self._away: set[str] = set()  # sources that are expected back
        self._followed: set[str] = set()

    def ask(self, source: str, question: Callable[[], T]) -> T | None:
        """The answer; None: there was none."""
        try:
            answer = question()
        except NodeError as error:
            if isinstance(error, AwayError):
                self._away.add(source)
            read_s = self.statuses[source].read_s if source in self.statuses else None
            self.statuses[source] = SourceStatus(read_s=read_s, problem=str(error))
            return None
        self.statuses[source] = SourceStatus(read_s=self._now_s)
        return answer

    def hear(self, reading: Reading | None) -> None:
        """Count a reading, if there is one."""
        if reading is not None:
            self.readings.append(reading)

    def complain(self, source: str, problem: str | None) -> None:
        """Note why an answer was not the whole truth; None: it was."""
        self.statuses[source] = SourceStatus(read_s=self._now_s, problem=problem)

    def note(self, source: str, sync: ApiSync) -> None:
        """Note how current something is that comes by itself; who follows it logs what is in the way."""
        self._followed.add(source)
        problem = None if sync.trouble is None else sync.trouble.message
        self.statuses[source] = SourceStatus(read_s=sync.synced_at_s, problem=problem)

    def news(self) -> Iterator[str]:
        """A sentence for each source that is well again. Those that are not are told of, once for each reason."""
        for source, status in self.statuses.items():
            before = self._before.get(source, SourceStatus()).problem
            if source in self._followed:
                continue
            if status.problem is not None and status.problem != before:
                log.log(logging.INFO if source in self._away else logging.WARNING, "%s", status.problem)
            elif status.problem is None and before is not None:
                yield f"the {_TITLES[source]} can be read again"


_TITLES = {
    "checkpoint": "kubelet's checkpoint",
    "cgroups": "pods' cgroups",
    "processes": "GPUs' process lists",
    "list": "kubelet's list of pod resources",
}
