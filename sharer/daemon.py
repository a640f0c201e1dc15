"""The agent of one node: builds the adapters, runs the flows in their order, stops in order.

One thread, this one, changes the node's state; every other one only reads it or leaves something in the inbox.
Order matters twice. At start: the lock first, then policy and driver; nothing is registered before the first list is
known. At the end: streams, then the driver, then the lock (kubelet-contract §17.47).
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import ParamSpec

from sharer.adapters.injection import HostPaths, InjectionFacts
from sharer.adapters.kubelet import GrpcKubeletLink
from sharer.adapters.lock import AgentLock
from sharer.adapters.nvml import InstalledLibrary, LibrarySource, NvmlDriver
from sharer.adapters.policy_source import LastGoodPolicy, PolicyFile
from sharer.adapters.watch import DirectoryWatch
from sharer.adapters.yaml_text import read_policy_text
from sharer.core.errors import SharerError
from sharer.core.policy import Policy
from sharer.core.ports import (
    FactsReader,
    GpuDriver,
    HealthSource,
    KubeletLink,
    PolicyMemory,
    PolicySource,
    PolicyText,
    SliceSpecs,
    XidEvent,
)
from sharer.enforcers import ENFORCERS
from sharer.flows.allocate import Answers
from sharer.flows.health import disagrees, look, take_xids, watch_xids
from sharer.flows.inbox import Inbox
from sharer.flows.offer import offer
from sharer.flows.refresh import refresh
from sharer.flows.reload import reload
from sharer.flows.state import NodeState
from sharer.settings import Settings

CYCLE_S = 2.0  # a changed policy, a driver that came late, a GPU that does not answer are noticed within this time
REFRESH_S = 10.0  # between two full looks at a driver that answers

P = ParamSpec("P")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """Everything that the flows talk to."""

    policy_source: PolicySource
    policy_memory: PolicyMemory
    driver: GpuDriver
    health: HealthSource
    facts: FactsReader
    specs: SliceSpecs
    kubelet: KubeletLink


def run(settings: Settings, stop: threading.Event, *, library: LibrarySource | None = None) -> None:
    """Share this node's GPUs until told to stop.

    `library` stands in for the driver's library on a simulated node. Raises NodeError if RUN_DIR cannot be used.
    """
    lock = AgentLock(settings.run_dir / "agent.lock")
    if not lock.acquire(stop):
        return
    try:
        with open_outside(settings, library) as outside:
            share(outside, NodeState(), stop)
    finally:
        lock.release()


def share(outside: Outside, state: NodeState, stop: threading.Event) -> None:
    """Go round: read what is wanted, look at what exists, offer what follows. A failed step is tried next time."""
    inbox, said = Inbox(), Sayings()

    def wake_at_the_end() -> None:
        stop.wait()
        inbox.ring()

    def answers_for(resource: str) -> Answers:
        return Answers(state, resource, ENFORCERS)

    in_background("stop", wake_at_the_end)
    in_background("xids", partial(watch_xids, outside.health, inbox, stop))
    xids: list[XidEvent] = []
    refreshed_s = -REFRESH_S
    while not stop.is_set():
        now_s = time.monotonic()
        said.attempt("policy", reload, state, outside.policy_source, outside.policy_memory, read_policy)
        if now_s - refreshed_s >= REFRESH_S or state.view.driver_problem is not None or disagrees(state):
            said.attempt("driver", refresh, state, outside.driver, outside.facts)
            refreshed_s = now_s
        said.attempt("xids", take_xids, state, xids, now_s)
        said.attempt("health", look, state, outside.health, now_s)
        said.attempt("offer", offer, state, outside.kubelet, outside.specs, answers_for, now_s)
        xids = inbox.wait(CYCLE_S)


def read_policy(wanted: PolicyText) -> Policy:
    """The one parser, for text from anywhere. Raises PolicyError."""
    return read_policy_text(wanted.text, wanted.source)


@contextlib.contextmanager
def open_outside(settings: Settings, library: LibrarySource | None) -> Iterator[Outside]:
    """The adapters of this node; closed in the reverse order."""
    with contextlib.ExitStack() as closing:
        watch = closing.enter_context(contextlib.closing(DirectoryWatch()))
        source = library or InstalledLibrary(settings.driver_library, (settings.host_root,))
        driver = closing.enter_context(contextlib.closing(NvmlDriver(source, settings.sys_root)))
        kubelet = GrpcKubeletLink(settings.device_plugin_dir, watch)
        closing.callback(kubelet.stop)
        facts = InjectionFacts(
            HostPaths(host_root=settings.host_root, dev_root=settings.dev_root, proc_root=settings.proc_root),
            settings.injection,
            enforcers=ENFORCERS,
            cdi_dirs=settings.cdi_dir,
            cdi_kind=settings.cdi_kind,
            opt_ins=settings.opt_ins,
        )
        yield Outside(
            policy_source=PolicyFile(settings.policy),
            policy_memory=LastGoodPolicy(settings.run_dir),
            driver=driver,
            health=driver,
            facts=facts,
            specs=facts,
            kubelet=kubelet,
        )


class Sayings:
    """Logs what each step of the cycle says, once for as long as it says the same."""

    def __init__(self) -> None:
        self._last: dict[str, str] = {}

    def attempt(self, name: str, step: Callable[P, str | None], /, *args: P.args, **kwargs: P.kwargs) -> None:
        """Run a step and log its sentence, or its error."""
        try:
            sentence, level = step(*args, **kwargs), logging.INFO
        except SharerError as error:
            sentence, level = str(error), logging.WARNING
        if sentence is None:
            self._last.pop(name, None)
            return
        log.log(logging.DEBUG if self._last.get(name) == sentence else level, "%s", sentence)
        self._last[name] = sentence


def in_background(name: str, work: Callable[[], object]) -> None:
    """Run this on a thread that does not keep the process alive."""
    threading.Thread(target=work, name=name, daemon=True).start()
