"""Reads what a report about the whole fleet needs: Nodes, Pods, GpuNodes and the agents' Leases.

Lists at the same time, each in pages, decoded page by page into the few fields that matter, so that 50,000 pods
never lie in memory. Pods that do not count are left to the server. What cannot be listed is said, and the others go on.

A page that is refused for a while (429, 5xx, a broken connection) is asked for again, no sooner than the server wishes;
a list whose continuation is too old (410) begins again. Both have an end: a person waits.
"""

from __future__ import annotations

import datetime
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import ParamSpec, TypeVar

import msgspec

from sharer.adapters.kube.calls import GPU_NODES, LEASES, NODES, PODS, Call
from sharer.adapters.kube.client import KubeClient, pages_of
from sharer.adapters.kube.errors import ApiError
from sharer.adapters.kube.fleet import Lease, Node, lease_facts, node_facts
from sharer.adapters.kube.gpu_nodes import GpuNodeReader
from sharer.adapters.kube.pods import pod_seen
from sharer.adapters.kube.wire import Page, Pod
from sharer.core.cluster.facts import ClusterFacts, GpuNodeFacts, LeaseFacts, NodeCapacity, Source
from sharer.core.cluster.pod_asks import PodAsk, pod_ask
from sharer.core.holders.observations import ApiTroubleKind
from sharer.core.values import dataclass

PAGE = 500  # objects; 2.5 MB of pods (api-server-facts §4)
GPU_NODES_PAGE = 50  # objects of up to 64 KiB, as a page of pods
TRIES = 4  # of one page
RESTARTS = 2  # of one list
MOST_WAIT_S = 20.0  # for one page, all tries together: somebody is waiting
_COUNTING = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"  # bound, and not ended

W = TypeVar("W")
T = TypeVar("T")
P = ParamSpec("P")
Progress = Callable[[str, int], None]
"""Told the plural of what is read and how many were read of it so far, on any thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Narrowing:
    """What the server need not send."""

    labels: str = ""  # a label selector of Nodes
    node: str | None = None  # the only node that is asked for
    pods: bool = True


def read_cluster(
    client: KubeClient,
    narrowing: Narrowing,
    progress: Progress,
    *,
    pause: Callable[[float], None] = time.sleep,
) -> ClusterFacts:
    """The four lists. Raises ApiError only if not one of Nodes, Pods and GpuNodes could be read."""
    lister = _Lister(client, progress, pause)
    by_name = {} if narrowing.node is None else {"fieldSelector": f"metadata.name={narrowing.node}"}
    labelled = {"labelSelector": narrowing.labels} if narrowing.labels else {}
    counting = _COUNTING
    if narrowing.node is not None:
        counting = counting.replace("spec.nodeName!=", f"spec.nodeName={narrowing.node}")
    pods_call = Call(verb="list", resource=PODS, query={"fieldSelector": counting})
    pods = _start(lister.read, pods_call, _pods) if narrowing.pods else None
    gpu_nodes_call = Call(verb="list", resource=GPU_NODES, query=by_name)
    gpu_nodes = _start(lister.read, gpu_nodes_call, _gpu_nodes, GPU_NODES_PAGE)
    nodes = _start(lister.read, Call(verb="list", resource=NODES, query={**by_name, **labelled}), _nodes)
    leases = _read_leases(lister, gpu_nodes.result(), client)
    facts = ClusterFacts(
        nodes=nodes.result(),
        pods=Source(items=None) if pods is None else pods.result(),
        gpu_nodes=gpu_nodes.result(),
        leases=leases,
    )
    if lister.first_error is not None and not any(
        source.items is not None or source.absent for source in (facts.nodes, facts.pods, facts.gpu_nodes)
    ):
        raise lister.first_error
    return facts


def _start(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
    """Have something done on a thread for which no exit waits: whoever presses Ctrl-C wants to be gone at once."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001 - whoever asks for the result is told
            future.set_exception(error)

    threading.Thread(target=run, name="cluster", daemon=True).start()
    return future


def _read_leases(lister: _Lister, gpu_nodes: Source[GpuNodeFacts], client: KubeClient) -> Source[LeaseFacts]:
    """The Leases in the namespaces, usually one, of those that GpuNodes name."""
    namespaces = sorted({one.lease.partition("/")[0] for one in gpu_nodes.items or () if one.lease})
    now = client.server_time() or datetime.datetime.now(datetime.UTC)  # a person's clock may be minutes wrong
    read = [
        lister.read(Call(verb="list", resource=LEASES, namespace=namespace), _leases(now)) for namespace in namespaces
    ]
    if not read:
        return Source(items=None)
    problems = [one.problem for one in read if one.problem is not None]
    return Source(
        items=None if problems else tuple(lease for one in read for lease in one.items or ()),
        problem="; ".join(problems) or None,
    )


Kind = Callable[[], "tuple[msgspec.json.Decoder[Page[W]], Callable[[W], T | str | None]]"]
"""Makes a decoder for one list and a function from an object to what it says, a problem, or nothing."""


def _nodes() -> tuple[msgspec.json.Decoder[Page[Node]], Callable[[Node], NodeCapacity | str | None]]:
    return msgspec.json.Decoder(Page[Node]), node_facts


def _pods() -> tuple[msgspec.json.Decoder[Page[Pod]], Callable[[Pod], PodAsk | str | None]]:
    return msgspec.json.Decoder(Page[Pod]), lambda pod: pod_ask(pod_seen(pod))


def _gpu_nodes() -> tuple[msgspec.json.Decoder[Page[msgspec.Raw]], Callable[[msgspec.Raw], GpuNodeFacts | str | None]]:
    return msgspec.json.Decoder(Page[msgspec.Raw]), GpuNodeReader().read


def _leases(now: datetime.datetime) -> Kind[Lease, LeaseFacts]:
    return lambda: (msgspec.json.Decoder(Page[Lease]), lambda lease: lease_facts(lease, now))


class _Lister:
    """Reads lists, one a thread."""

    def __init__(self, client: KubeClient, progress: Progress, pause: Callable[[float], None]) -> None:
        self._client = client
        self._progress = progress
        self._pause = pause
        self.first_error: ApiError | None = None

    def read(self, call: Call, kind: Kind[W, T], limit: int = PAGE) -> Source[T]:
        """A whole list, or why there is none."""
        for last_try in (*(False,) * RESTARTS, True):
            try:
                return self._read(call, kind, limit)
            except ApiError as error:
                if error.kind is ApiTroubleKind.EXPIRED and not last_try:
                    continue  # what was read of it is of another moment than the rest would be
                self.first_error = self.first_error or error
                if error.code == 404:
                    return Source(items=None, absent=True)
                return Source(items=None, problem=str(error))
        raise AssertionError("the last try returns")

    def _read(self, call: Call, kind: Kind[W, T], limit: int) -> Source[T]:
        decoder, read_one = kind()
        items: list[T] = []
        problems: list[str] = []
        seen = 0
        for page in pages_of(lambda token: self._page(call, decoder, limit, token)):
            for one in page.items or ():
                found = read_one(one)
                if isinstance(found, str):
                    problems.append(found)
                elif found is not None:
                    items.append(found)
            seen += len(page.items or ())
            self._progress(call.resource.plural, seen)
        more = f"; {len(problems) - 1} more cannot be read either" if len(problems) > 1 else ""
        return Source(items=tuple(items), problem=problems[0] + more if problems else None)

    def _page(self, call: Call, decoder: msgspec.json.Decoder[Page[W]], limit: int, token: str) -> Page[W]:
        waited_s = 0.0
        for failures in range(1, TRIES + 1):
            try:
                return self._client.page(call, decoder, limit=limit, token=token)
            except ApiError as error:
                if not _passes(error, token) or failures == TRIES:
                    raise
                timings = self._client.timings
                told_s = error.retry_after_s
                wait_s = timings.backoff_s(failures) if told_s is None else timings.told_s(told_s)
                waited_s += wait_s
                if waited_s > MOST_WAIT_S:
                    raise
                self._pause(wait_s)
        raise AssertionError("the last try returns or raises")


def _passes(error: ApiError, token: str) -> bool:
    """Whether the same page is worth another try. A server that has answered once may be away for a moment only."""
    match error.kind:
        case ApiTroubleKind.THROTTLED:
            return True
        case ApiTroubleKind.SERVER:
            return error.code is not None  # None: its answer cannot be read, and would not be the next time
        case ApiTroubleKind.UNREACHABLE:
            return bool(token)
        case _:
            return False
