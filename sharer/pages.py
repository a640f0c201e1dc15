"""What the agent serves by HTTP: metrics and two probes. Owners are told by metrics' labels, and by nothing else here.

Nothing here is imported before the kubelet has registered us, and the metrics' library not before the first scrape.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from sharer.adapters.http import HttpServer, Page
from sharer.adapters.kubelet import KubeletCounters
from sharer.adapters.kubelet.counters import BOUNDS_S
from sharer.core.errors import NodeError
from sharer.core.known import About
from sharer.core.tell.figures import Moment, Tallies, figures
from sharer.core.tell.metrics import Durations, Figure, Histogram
from sharer.core.tell.ready import why_not_alive, why_not_ready
from sharer.flows.state import NodeState
from sharer.flows.tell.report import known_of
from sharer.outside import Outside

if TYPE_CHECKING:
    from sharer.adapters.metrics import Exposition

AGAIN_S = 30.0  # until an address that could not be had is tried again

log = logging.getLogger(__name__)


class Pages:
    """Makes the pages from the node's present view."""

    def __init__(self, outside: Outside, state: NodeState, about: Callable[[], About]) -> None:
        """`about` is asked at a scrape: what it needs may be slow to import."""
        self._outside, self._state, self._about = outside, state, about
        self._started_s = time.monotonic()
        self._exposition: Exposition | None = None

    def by_path(self) -> dict[str, Callable[[], Page]]:
        """Every page that there is."""
        return {"/metrics": self.metrics, "/healthz": self.healthz, "/readyz": self.readyz}

    def metrics(self) -> Page:
        """For a scraper."""
        from sharer.adapters.metrics import CONTENT_TYPE, Exposition

        if self._exposition is None:
            self._exposition = Exposition(self._figures)
        return Page(200, self._exposition.text(), CONTENT_TYPE)

    def healthz(self) -> Page:
        """Alive: for a liveness probe."""
        return _verdict(why_not_alive(self._state.went_round_s, time.monotonic()), "alive")

    def readyz(self) -> Page:
        """Registered, with a policy, and up to date: for a readiness probe, and for people."""
        view = self._state.view
        registered = None if view.basis is None else self._outside.kubelet.registered()
        return _verdict(why_not_ready(known_of(view), registered, time.monotonic()), "ready")

    def _figures(self) -> Iterator[Figure | Histogram]:
        api = self._outside.api
        followed = () if api is None else api.followed()
        moment = Moment(
            now_s=time.monotonic(),
            started_s=self._started_s,
            registered=self._outside.kubelet.registered(),
            followed_s={} if api is None else {what: api.sync_of(what).synced_at_s for what in followed},
        )
        client = None if api is None else api.client
        errors = {} if client is None else client.counters().errors
        tallies = _tallies(self._outside.kubelet_counters(), errors)
        yield from figures(known_of(self._state.view), self._about(), tallies, moment)


class PageServer:
    """Serves the pages at an address, as soon as that can be had."""

    def __init__(self, address: tuple[str, int], pages: Pages, stop: threading.Event) -> None:
        self._address, self._pages, self._stop = address, pages, stop
        self._lock = threading.Lock()
        self._server: HttpServer | None = None

    def run(self) -> None:
        """Serve until `end`, once told to stop. For a thread of its own."""
        said = None
        while not self._stop.is_set():
            try:
                server = HttpServer(*self._address, self._pages.by_path())
            except NodeError as error:
                log.log(logging.DEBUG if said == str(error) else logging.WARNING, "%s", error)
                said = str(error)
                self._stop.wait(AGAIN_S)
                continue
            log.info("metrics and probes are served on %s port %d", *server.address)
            with self._lock:
                self._server = server
            if self._stop.is_set():
                server.close()
            server.serve()

    def end(self) -> None:
        """Have `run` look at `stop`."""
        with self._lock:
            if self._server is not None:
                self._server.close()


def _verdict(problem: str | None, good: str) -> Page:
    return Page(200 if problem is None else 503, f"{problem or good}\n".encode())


def _tallies(counters: KubeletCounters, api_errors: Mapping[tuple[str, str], int]) -> Tallies:
    return Tallies(
        requests=counters.requests,
        registrations=counters.registrations,
        bounds_s=BOUNDS_S,
        durations={
            method: Durations(counts=sizes, sum_s=counters.took_s[method])
            for method, sizes in counters.durations.items()
        },
        api_errors=api_errors,
    )
