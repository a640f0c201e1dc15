"""The agent of one node: runs the flows in their order, on what `outside` opens, and stops in order.

One thread, this one, changes the node's state; every other one only reads it or leaves something in the inbox.
Order matters twice. At start: the lock first, then policy and driver; nothing is registered before the first list is
known. At the end: streams, then the driver, then the lock (kubelet-contract §17.47).
"""

from __future__ import annotations

import gc
import logging
import math
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, ParamSpec

from sharer.adapters.heap import give_back
from sharer.adapters.lock import AgentLock
from sharer.adapters.nvml import LibrarySource
from sharer.adapters.yaml_text import read_policy_text
from sharer.core.change.transition import CYCLE_S
from sharer.core.errors import FinalError, SharerError
from sharer.core.policy.model import Policy
from sharer.core.ports.driver import XidEvent
from sharer.core.ports.policy import PolicyText
from sharer.enforcers import ENFORCERS
from sharer.flows.hold.prestart import PreStart
from sharer.flows.holders.displaced import Displaced
from sharer.flows.holders.findings import look_for_findings
from sharer.flows.holders.observe import follow, follow_holders, next_look_s, observe
from sharer.flows.inbox import Hint, Inbox, News
from sharer.flows.look.availability import AvailabilityCheck
from sharer.flows.look.health import disagrees, look, take_xids, watch_xids
from sharer.flows.look.links import LinkReader, read_links
from sharer.flows.look.mps import MpsWatch
from sharer.flows.look.pause import pause
from sharer.flows.look.recover import recover
from sharer.flows.look.refresh import refresh
from sharer.flows.look.reload import reload
from sharer.flows.offer.allocate import Answers
from sharer.flows.offer.offer import offer
from sharer.flows.state import NodeState, NodeView
from sharer.flows.tell.told import Told
from sharer.outside import Outside, open_outside
from sharer.published import answer_reports, in_background, start_announcing, start_pages
from sharer.settings import Settings

if TYPE_CHECKING:  # imported after the kubelet has registered us
    from sharer.flows.hold.enforce import Enforcing
    from sharer.flows.tell.announce import Announcing
    from sharer.pages import PageServer

REFRESH_S = 10.0  # between two full looks at a driver that answers
API_AFTER_S = 10.0  # at the latest: the official client is imported after the kubelet has registered us (DESIGN §10)
REGISTERING_S = 0.05  # a registration takes some 20 ms, and longer if `List` and all else is asked at the same time
BLIND_S = 10.0  # after the start without a word about who holds what: then the node is taken for an empty one
GIVE_BACK_AFTER_S = 4.0  # the API server's first list is read, and the first report published; freed memory goes back
GIVE_BACK_EVERY_S = 60.0  # as it does later, after many pods have started or ended at once
ENFORCER_END_S = 2.0  # for the enforcing thread to let go of the driver before that is closed
BLIND = f"nothing is offered before the kubelet's checkpoint or list could be read once, or {BLIND_S:g} s are over"

P = ParamSpec("P")

log = logging.getLogger(__name__)


def run(
    settings: Settings, stop: threading.Event, *, library: LibrarySource | None = None, cycle_s: float = CYCLE_S
) -> None:
    """Share this node's GPUs until told to stop.

    On a simulated node `library` stands in for the driver's library, and a shorter `cycle_s` makes a demo shorter.
    Raises NodeError if RUN_DIR cannot be used, and FinalError if only another process can go on.
    """
    lock = AgentLock(settings.run_dir / "agent.lock", kubelet_dir=settings.device_plugin_dir)
    if not lock.acquire(stop):
        return
    try:
        state = NodeState()
        with open_outside(settings, library) as outside, answer_reports(settings, state):
            try:
                share(settings, outside, state, stop, cycle_s)
            finally:
                stop.set()  # one that ends by itself ends like one that is told to
    finally:
        lock.release()


def share(settings: Settings, outside: Outside, state: NodeState, stop: threading.Event, cycle_s: float) -> None:
    """Go round until told to stop, each time as soon as there is news, or something is due."""
    inbox = Inbox()
    beside = Beside(settings, outside, state, inbox, stop)
    rounds = Rounds(settings, outside, state, inbox, beside, stop, cycle_s)
    in_background("stop", partial(wake_at_the_end, outside, inbox, beside, stop))
    follow(outside.sources, inbox)
    news: list[News] = []
    while not stop.is_set():
        rounds.go(news)
        beside.look_at(state.view)
        wait_s = rounds.next_s() - time.monotonic()
        news = inbox.wait(wait_s if beside.is_running else max(wait_s, REGISTERING_S))
    beside.join()


def wake_at_the_end(outside: Outside, inbox: Inbox, beside: Beside, stop: threading.Event) -> None:
    """Once it is time to stop, have everybody who waits for something else notice."""
    stop.wait()
    outside.slow.interrupt()
    inbox.ring()
    beside.wake()


class Rounds:
    """The steps of a round, in their order. One that fails says why, and is tried in the next round."""

    def __init__(
        self,
        settings: Settings,
        outside: Outside,
        state: NodeState,
        inbox: Inbox,
        beside: Beside,
        stop: threading.Event,
        cycle_s: float,
    ) -> None:
        self._pause_label, self._cycle_s = settings.pause_label, cycle_s
        self._outside, self._state, self._inbox, self._beside = outside, state, inbox, beside
        self._said = Sayings(stop)
        self._availability = AvailabilityCheck(outside.enforcers)
        self._mps = MpsWatch(outside.open_mps)
        self._displaced = Displaced()
        self._links = LinkReader(outside.topology, inbox.ring)
        self._pre_start = PreStart(state, outside.enforcers, outside.containers, outside.sources.checkpoint)
        self._began_s = time.monotonic()
        self._looked_s = self._refreshed_s = -REFRESH_S  # when the last look at what exists, and the last full one, was

    def go(self, news: list[News]) -> None:
        """One round, with what has arrived since the one before."""
        now_s = self._state.went_round_s = time.monotonic()
        self._look(now_s, is_steered=Hint.STEERING in news)
        self._take_over([one for one in news if isinstance(one, XidEvent)], now_s)
        self._offer(news, now_s)

    def next_s(self) -> float:
        """When the next round is due without any news."""
        return min(self._looked_s + self._cycle_s, next_look_s(self._state.view))

    def _look(self, now_s: float, *, is_steered: bool) -> None:
        """What is wanted and what exists: once a cycle, or as soon as the API server tells of another wish."""
        said, state, outside = self._said, self._state, self._outside
        is_due = now_s - self._looked_s >= self._cycle_s
        is_steered |= is_due
        if is_steered:
            said.attempt("pause", pause, state, outside.pausable, outside.all_labels(), self._pause_label)
        looks_at_driver = is_due and not state.view.let_go
        if looks_at_driver and self._needs_a_full_look(now_s):
            said.attempt("driver", refresh, state, outside.driver, outside.facts)
            self._refreshed_s = now_s
        if is_steered:  # after the driver: whether the kubelet can receive a policy's lists depends on the GPUs
            said.attempt(
                "policy", reload, state, outside.policy_source, outside.policy_memory, read_policy,
                node_name=outside.node_name, labels=outside.labels(), now_s=now_s,
            )  # fmt: skip
        if looks_at_driver:
            said.attempt("health", look, state, outside.health, now_s)
        if is_due:
            self._looked_s = now_s

    def _needs_a_full_look(self, now_s: float) -> bool:
        is_old = now_s - self._refreshed_s >= REFRESH_S
        return is_old or self._state.view.driver_problem is not None or disagrees(self._state)

    def _take_over(self, xids: list[XidEvent], now_s: float) -> None:
        """What other threads, processes and people have found or said meanwhile."""
        said, state, outside = self._said, self._state, self._outside
        if state.view.paused is None:
            said.attempt("mps", self._mps, state, now_s)
        said.attempt("availability", self._availability, state, now_s)
        self._beside.take_over(state)
        said.attempt("told", self._beside.told.take_over, state)
        said.attempt("xids", take_xids, state, xids, now_s)
        said.attempt("recover", recover, state, outside.annotations(), now_s, time.time())
        said.attempt("links", read_links, state, self._links)

    def _offer(self, news: list[News], now_s: float) -> None:
        """Who holds what, and what the kubelet is shown therefore."""
        said, state, outside = self._said, self._state, self._outside
        said.attempt("observe", observe, state, outside.sources, now_s, news)
        if self._is_blind(now_s):
            said.attempt("offer", lambda: BLIND)
        else:
            # At its own time: how long a list was shown is counted from here, and those who were asked may have hung.
            said.attempt("offer", offer, state, outside.kubelet, outside.specs, self._answers_for, time.monotonic())
        said.attempt("displaced", self._displaced, state, outside.kubelet)
        said.attempt("findings", look_for_findings, state, now_s)
        follow_holders(state, outside.sources, self._inbox)

    def _is_blind(self, now_s: float) -> bool:
        """Whether the kubelet has a record that cannot be read, so that any slice may be somebody's.

        No news is not "no pods" (DESIGN §3). Without a file there is no record, unless `List` knows of one.
        """
        view = self._state.view
        evidence, file = view.ledger.evidence, view.sources.get("checkpoint")
        is_unread = evidence.checkpoint is None and evidence.listed is None
        return is_unread and file is not None and file.problem is not None and now_s - self._began_s < BLIND_S

    def _answers_for(self, resource: str) -> Answers:
        return Answers(self._state, resource, ENFORCERS, self._inbox.put, self._pre_start)


class Beside:
    """What runs beside the rounds on threads of its own: limits, pages, the API server. The kubelet comes first."""

    def __init__(
        self, settings: Settings, outside: Outside, state: NodeState, inbox: Inbox, stop: threading.Event
    ) -> None:
        self._settings, self._outside, self._state, self._inbox, self._stop = settings, outside, state, inbox, stop
        self._created_s = time.monotonic()
        self.told = Told(has_api=outside.api is not None)
        self.is_running = False
        self._enforcing: Enforcing | None = None
        self._enforcer: threading.Thread | None = None
        self._announcing: Announcing | None = None
        self._pages: PageServer | None = None
        self._give_back_s = math.inf

    def look_at(self, view: NodeView) -> None:
        """Begin if it is time, and tell the API server what is new in a view."""
        if self._announcing is not None:
            self._announcing.look_at(view)
        if not self.is_running and not self._is_registering(view):
            self._begin()
        if time.monotonic() >= self._give_back_s:
            self._give_back_s = time.monotonic() + GIVE_BACK_EVERY_S
            give_back()

    def take_over(self, state: NodeState) -> None:
        """Put what was found out about limits into the state."""
        if self._enforcing is not None:
            self._enforcing.exchange(state)

    def wake(self) -> None:
        """Have every thread look whether it is time to stop."""
        if self._enforcing is not None:
            self._enforcing.wake("")
        if self._announcing is not None:
            self._announcing.end()
        if self._pages is not None:
            self._pages.end()

    def join(self) -> None:
        """Wait until nobody uses the driver any more, but not for ever."""
        if self._enforcer is not None:
            self._enforcer.join(ENFORCER_END_S)

    def _is_registering(self, view: NodeView) -> bool:
        """Whether to wait for the kubelet still: not if nothing can be registered without the API's word."""
        is_blind = view.inventory is not None and view.basis is None
        is_accepted = not is_blind and all(self._outside.kubelet.registered().values())
        is_young = time.monotonic() - self._created_s < API_AFTER_S
        return view.policy.policy is not None and not is_accepted and is_young

    def _begin(self) -> None:
        from sharer.flows.hold.enforce import Enforcing

        collect_garbage()
        self.is_running = True
        self._give_back_s = time.monotonic() + GIVE_BACK_AFTER_S
        outside, state = self._outside, self._state
        # The driver notes XIDs from the first look at the GPUs on: what came before this is waited for, too.
        in_background(
            "xids", lambda: watch_xids(outside.health, self._inbox, self._stop, lambda: state.view.driver_problem)
        )
        self._enforcing = Enforcing(self._state, outside.enforcers, outside.containers, outside.sources.checkpoint)
        self._enforcer = in_background("enforce", partial(self._enforcing.run, self._stop))
        if self._settings.http is not None:
            self._pages = start_pages(self._settings.http, self._settings, outside, self._state, self._stop)
        if outside.api is not None:
            outside.api.start(self._inbox.put, partial(self._inbox.put, Hint.STEERING))
            self._announcing = start_announcing(self._settings, outside, outside.api, self.told, self._stop)


def collect_garbage() -> None:
    """From now on, where the command line has put it off until the kubelet has registered us.

    Importing left little, but of each value's class there was another one at first. What is left stays for good, and
    later looks need not go through it: this one takes 15 ms.
    """
    if not gc.isenabled():
        gc.collect()
        gc.freeze()
        gc.enable()


def read_policy(wanted: PolicyText) -> Policy:
    """The one parser, for text from anywhere. Raises PolicyError."""
    return read_policy_text(wanted.text, wanted.source)


class Sayings:
    """Logs what each step of the cycle says, once for as long as it says the same; what fails at the end is no news."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop
        self._last: dict[str, str] = {}

    def attempt(self, name: str, step: Callable[P, str | None], /, *args: P.args, **kwargs: P.kwargs) -> None:
        """Run a step and log its sentence, or its error. Raises FinalError: no next time will be better."""
        try:
            sentence, level = step(*args, **kwargs), logging.INFO
        except FinalError:
            raise
        except SharerError as error:
            sentence, level = str(error), logging.DEBUG if self._stop.is_set() else logging.WARNING
        if sentence is None:
            self._last.pop(name, None)
            return
        log.log(logging.DEBUG if self._last.get(name) == sentence else level, "%s", sentence)
        self._last[name] = sentence
