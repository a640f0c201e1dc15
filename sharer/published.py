"""What the agent tells others, each on a thread of its own: reports by the local socket, metrics and probes, the API.

Telling may wait and may fail; sharing GPUs goes on all the same. What only telling needs is imported on its thread, so
that no start waits for it (DESIGN §10).
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from sharer.adapters.cgroups import cgroup_version
from sharer.adapters.local_socket import LocalSocket
from sharer.core.errors import NodeError
from sharer.flows.state import NodeState

if TYPE_CHECKING:  # imported after the kubelet has registered us
    from sharer.adapters.kube.follow import FollowedApi
    from sharer.core.known import About
    from sharer.flows.tell.announce import Announcing
    from sharer.flows.tell.told import Told
    from sharer.outside import Outside
    from sharer.pages import PageServer
    from sharer.settings import Settings

SOCKET_AGAIN_S = 5.0  # until a socket that could not be made is tried again
END_S = 1.0  # the agent's end does not wait longer for that

log = logging.getLogger(__name__)


@contextlib.contextmanager
def answer_reports(settings: Settings, state: NodeState, *, again_s: float = SOCKET_AGAIN_S) -> Iterator[None]:
    """Have the local socket tell what the node's state is; an agent without one is an agent all the same.

    One that cannot be made, since RUN_DIR is full or read-only, is tried again every `again_s`.
    """
    started_s, started_wall_s = time.monotonic(), time.time()

    def answer() -> bytes:
        # The first report imports what only reports need, on the socket's thread: 30 ms that no start has to wait for.
        from sharer.adapters.documents import to_bytes
        from sharer.flows.tell.report import report, stamper

        stamp = stamper(started_s, started_wall_s)
        return to_bytes(report(state.view, about(settings), time.monotonic(), stamp))

    with contextlib.closing(LocalSocket(settings.run_dir, answer)) as server:
        ended, opening = threading.Event(), None
        try:
            server.open()
        except NodeError as error:
            log.warning("%s", error)
            opening = in_background("socket", partial(open_later, server, str(error), ended, again_s))
        try:
            yield
        finally:
            ended.set()
            if opening is not None:
                opening.join(END_S)


def open_later(server: LocalSocket, problem: str, ended: threading.Event, again_s: float) -> None:
    """Try until the socket can be made, and say so then. `problem`: why it could not; the same is not said again."""
    while not ended.wait(again_s):
        try:
            server.open()
        except NodeError as error:
            log.log(logging.DEBUG if problem == str(error) else logging.WARNING, "%s", error)
            problem = str(error)
        else:
            log.info("reports are answered on %s", server.path)
            return


def about(settings: Settings) -> About:
    """What of a report does not change while this process runs."""
    from sharer.core.known import About

    return About(
        node_name=settings.node_name,
        version=installed_version(),
        kernel=os.uname().release,
        cgroup=cgroup_version(settings.cgroup_root),
    )


@functools.cache
def installed_version() -> str:
    """This program's version."""
    import importlib.metadata  # only a report needs it, and it brings much along

    try:
        return importlib.metadata.version("sharer")
    except importlib.metadata.PackageNotFoundError:
        return "unknown (run from source, not installed)"


def start_announcing(
    settings: Settings, outside: Outside, api: FollowedApi, told: Told, stop: threading.Event
) -> Announcing:
    """Have the API server told what this node's state is, on a thread of its own."""
    from sharer.flows.tell.announce import Announcing

    announcing = Announcing(api)

    def announce() -> None:
        # What only this thread needs is imported on it.
        from sharer.flows.tell.events import Telling
        from sharer.flows.tell.evict import Evicting
        from sharer.flows.tell.publish import Living, Publishing
        from sharer.flows.tell.report import stamper

        node_name, namespace = outside.node_name, outside.namespace
        telling = Telling(lambda: api.client, told, node_name)
        announcing.add("evictions", Evicting(lambda: api.client, told, telling.note).step)
        announcing.add("Events", telling.step)
        if settings.publish:
            lease = None if namespace is None else f"{namespace}/{node_name}"
            publishing = Publishing(api, about(settings), stamper(time.monotonic(), time.time()), lease=lease)
            announcing.add("the GpuNode", publishing.publish)
            announcing.add("the GpuNode's check", publishing.check)
        if settings.publish and namespace is not None:
            announcing.add("the Lease", Living(api, node_name, namespace).renew)
        if settings.node_labels:
            from sharer.flows.tell.label import Labelling

            announcing.add("the Node's labels", Labelling(lambda: api.client, lambda: api.node).step)
        announcing.run(stop)

    in_background("announce", announce)
    return announcing


def start_pages(
    address: tuple[str, int], settings: Settings, outside: Outside, state: NodeState, stop: threading.Event
) -> PageServer:
    """Serve metrics and probes, on a thread of its own."""
    from sharer.pages import Pages, PageServer

    pages = PageServer(address, Pages(outside, state, partial(about, settings)), stop)
    in_background("http", pages.run)
    return pages


def in_background(name: str, work: Callable[[], object]) -> threading.Thread:
    """Run this on a thread that does not keep the process alive."""
    thread = threading.Thread(target=work, name=name, daemon=True)
    thread.start()
    return thread
