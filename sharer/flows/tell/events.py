"""Tell Kubernetes by Events what `core/tell/news` finds: for `kubectl describe pod` and `kubectl describe node`.

A step of the announcing thread. Needs the right to create and patch `events`; without it nothing is told, and whoever
runs the step says so. Nothing else depends on it. What is told when is decided in `core/tell/notices`, where
the limits are.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from sharer.core.errors import NodeError
from sharer.core.holders.findings import Finding
from sharer.core.ports.api import ApiEvent, ApiWriter
from sharer.core.tell.news import News, find_news
from sharer.core.tell.notices import Notice, Notices, heard, next_notice, not_told, told
from sharer.core.unchanged import are_same
from sharer.flows.state import NodeView
from sharer.flows.tell.told import Told


class Telling:
    """Remembers what it has told. For one thread."""

    def __init__(
        self,
        writer: Callable[[], ApiWriter | None],
        told: Told,
        node_name: str,
        *,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        """`writer` gives None as long as the API server is not connected."""
        self._writer, self._told, self._node_name, self._wall_s = writer, told, node_name, wall_s
        self._notices = Notices()
        self._happened: list[News] = []
        self._basis: tuple[object, ...] = ()
        self._found: tuple[Finding, ...] = ()  # made anew with each look, mostly equal

    def note(self, news: News) -> None:
        """Tell of something that has just happened, at the next step."""
        self._happened.append(news)

    def step(self, view: NodeView, now_s: float) -> float | None:
        """Tell what is due. Returns when something will be, if nothing changes. Raises NodeError if it cannot be told.

        Then the others have their turn at the next step, and what failed is tried again a minute later.
        """
        self._hear(view, now_s)
        writer = self._writer()
        if writer is None:
            return None
        try:
            while (found := next_notice(self._notices, now_s))[0] is not None:
                self._tell(writer, found[0], now_s)
        finally:
            self._told.events = self._notices.counts
        return found[1]

    def _tell(self, writer: ApiWriter, one: Notice, now_s: float) -> None:
        try:
            writer.tell(self._event(one, now_s))
        except NodeError:
            self._notices = not_told(self._notices, one.news.key, now_s)
            raise
        self._notices = told(self._notices, one.news.key, now_s)

    def _hear(self, view: NodeView, now_s: float) -> None:
        """Work out what is so now. Only what it follows from is looked at if that has not changed."""
        evidence, found = view.ledger.evidence, view.findings.found
        basis = (
            view.inventory, view.policy, view.ledger.entries, evidence.pods, view.faults, view.enforcement.holds,
            view.excesses,
        )  # fmt: skip
        if not self._happened and are_same(self._basis, basis) and self._found == found:
            return
        self._basis, self._found = basis, found
        news = find_news(
            inventory=view.inventory,
            policy=view.policy,
            ledger=view.ledger,
            faults={uuid: why for uuid, why in view.faults.items() if why != view.paused},  # whoever paused us knows
            findings=found,
            enforcement=view.enforcement,
            excesses=view.excesses,
        )
        happened, self._happened = self._happened, []
        self._notices = heard(self._notices, news, happened, view.inventory, now_s)

    def _event(self, one: Notice, now_s: float) -> ApiEvent:
        news, wall_s = one.news, self._wall_s()
        pod = news.pod
        return ApiEvent(
            kind="Node" if pod is None else "Pod",
            namespace=None if pod is None else pod.namespace,
            name=self._node_name if pod is None else pod.name,
            uid=self._node_name if pod is None else pod.uid,  # `kubectl describe node` looks for its name
            reason=news.reason.value,
            message=news.message,
            about=news.about,
            is_warning=news.is_warning,
            count=one.times if one.is_untold else one.times + 1,
            first_s=wall_s - (now_s - one.first_s),
            last_s=wall_s if one.is_standing else wall_s - (now_s - one.since_s),
            node_name=self._node_name,
        )
