"""The agent of one node: runs the flows in their order, on what `outside` opens, and stops in order.

One thread, this one, changes the node's state; every other one only reads it or leaves something in the inbox.
Order matters twice. At start: the lock first, then policy and driver; nothing is registered before the first list is
known. At the end: streams, then the driver, then the lock (kubelet-contract §17.47).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, ParamSpec

from sharer.adapters.lock import AgentLock
from sharer.adapters.nvml import LibrarySource
from sharer.adapters.yaml_text import read_policy_text
from sharer.core.errors import FinalError, SharerError
from sharer.core.policy.model import Policy
from sharer.core.ports import PolicyText, XidEvent
from sharer.enforcers import ENFORCERS
from sharer.flows.hold.enforce import Enforcing
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
from sharer.flows.state import NodeState
from sharer.flows.tell.told import Told
from sharer.outside import Outside, open_outside
from sharer.published import answer_reports, in_background, start_announcing, start_pages
from sharer.settings import Settings

if TYPE_CHECKING:  # imported after the kubelet has registered us
    from sharer.flows.tell.announce import Announcing
    from sharer.pages import PageServer

CYCLE_S = 3.0  # a changed policy, a driver that came late, a GPU that does not answer are noticed within this time
REFRESH_S = 10.0  # between two full looks at a driver that answers
API_AFTER_S = 10.0  # at the latest: the official client is imported after the kubelet has registered us (DESIGN §10)
REGISTERING_S = 0.05  # a registration takes some 20 ms, and longer if `List` and all else is asked at the same time
ENFORCER_END_S = 2.0  # for the enforcing thread to let go of the driver before that is closed

P = ParamSpec("P")

log = logging.getLogger(__name__)


def run(
    settings: Settings, stop: threading.Event, *, library: LibrarySource | None = None, cycle_s: float = CYCLE_S
) -> None:
    """Share this node's GPUs until told to stop.

    On a simulated node `library` stands in for the driver's library, and a shorter `cycle_s` makes a demo shorter.
    Raises NodeError if RUN_DIR cannot be used, and FinalError if only another process can go on.
    """
    lock = AgentLock(settings.run_dir / "agent.lock")
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
    """Go round: read what is wanted, look at what exists, offer what follows. A failed step is tried next time."""
    inbox, said = Inbox(), Sayings(stop)

    def wake_at_the_end() -> None:
        stop.wait()
        outside.slow.interrupt()
        inbox.ring()
        enforcing.wake("")
        if announcing is not None:
            announcing.end()
        if pages is not None:
            pages.end()

    def answers_for(resource: str) -> Answers:
        return Answers(state, resource, ENFORCERS, inbox.put, pre_start)

    means, mps, displaced = AvailabilityCheck(outside.enforcers), MpsWatch(outside.open_mps), Displaced()
    pre_start = PreStart(state, outside.enforcers, outside.containers, outside.new_checkpoint())
    enforcing = Enforcing(state, outside.enforcers, outside.containers, outside.new_checkpoint())
    enforcer: threading.Thread | None = None
    announcing: Announcing | None = None
    pages: PageServer | None = None
    told = Told(has_api=outside.api is not None)
    links = LinkReader(outside.topology, inbox.ring)
    in_background("stop", wake_at_the_end)
    in_background("xids", partial(watch_xids, outside.health, inbox, stop, lambda: state.view.driver_problem))
    follow(outside.sources, inbox)
    news: list[News] = []
    refreshed_s = looked_s = -REFRESH_S
    started_s, registering = time.monotonic(), True
    while not stop.is_set():
        now_s = state.went_round_s = time.monotonic()
        is_due = now_s - looked_s >= cycle_s  # the inbox wakes us more often
        is_steered = is_due or Hint.STEERING in news
        if is_steered:
            said.attempt("pause", pause, state, outside.pausable, outside.all_labels(), settings.pause_label)
        looks_at_driver = is_due and not state.view.let_go
        if looks_at_driver and (
            now_s - refreshed_s >= REFRESH_S or state.view.driver_problem is not None or disagrees(state)
        ):
            said.attempt("driver", refresh, state, outside.driver, outside.facts)
            refreshed_s = now_s
        if is_steered:  # after the driver: whether the kubelet can receive a policy's lists depends on the GPUs
            said.attempt(
                "policy", reload, state, outside.policy_source, outside.policy_memory, read_policy,
                node_name=outside.node_name, labels=outside.labels(), now_s=now_s,
            )  # fmt: skip
        if looks_at_driver:
            said.attempt("health", look, state, outside.health, now_s)
        if is_due:
            looked_s = now_s
        if state.view.paused is None:
            said.attempt("mps", mps, state, now_s)
        said.attempt("means", means, state, now_s)
        enforcing.notice(state.view)
        state.change(enforcement=enforcing.found.enforcement, excesses=enforcing.found.excesses)
        said.attempt("told", told.take_over, state)
        said.attempt("xids", take_xids, state, [one for one in news if isinstance(one, XidEvent)], now_s)
        said.attempt("recover", recover, state, outside.annotations(), now_s, time.time())
        said.attempt("links", read_links, state, links)
        said.attempt("observe", observe, state, outside.sources, now_s, news)
        # At its own time: how long a list has been shown is counted from here, and those who were asked may have hung.
        said.attempt("offer", offer, state, outside.kubelet, outside.specs, answers_for, time.monotonic())
        said.attempt("displaced", displaced, state, outside.kubelet)
        said.attempt("findings", look_for_findings, state, now_s)
        follow_holders(state, outside.sources, inbox)
        if announcing is not None:
            announcing.look_at(state.view)
        if registering and not is_registering(outside, state, now_s - started_s):
            registering = False
            enforcer = in_background("enforce", partial(enforcing.run, stop))
            if settings.http is not None:
                pages = start_pages(settings.http, settings, outside, state, stop)
            if outside.api is not None:
                outside.api.start(inbox.put, partial(inbox.put, Hint.STEERING))
                announcing = start_announcing(settings, outside, outside.api, told, stop)
        wait_s = min(looked_s + cycle_s, next_look_s(state.view)) - time.monotonic()
        news = inbox.wait(max(wait_s, REGISTERING_S) if registering else wait_s)
    if enforcer is not None:
        enforcer.join(ENFORCER_END_S)


def is_registering(outside: Outside, state: NodeState, running_s: float) -> bool:
    """Whether the rest should still wait for the kubelet: not if nothing can be registered without the API's word."""
    registered = outside.kubelet.registered()
    return state.view.policy.policy is not None and not all(registered.values()) and running_s < API_AFTER_S


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
