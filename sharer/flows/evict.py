"""End pods that stay above their promise, where the policy says `onExceed: evict`: through the Eviction API.

Disruption budgets are respected and the pod keeps its own grace period; nothing is deleted. Needs the right to create
`pods/eviction`, and nothing without it but a warning. A static pod cannot be evicted: only its mirror would go.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sharer.core.errors import NodeError
from sharer.core.excess import Excess
from sharer.core.observations import PodSeen, PodsSeen
from sharer.core.ports import ApiWriter, Eviction

AGAIN_S = 30.0  # until a pod is asked to end once more: a budget may allow it then


class Evicting:
    """Remembers whom it has asked. For one thread; the API server may keep it waiting."""

    def __init__(self, writer: ApiWriter) -> None:
        self._writer = writer
        self._asked_s: dict[str, float] = {}  # by the UID of the pod in the API

    def step(self, excesses: Iterable[Excess], pods: PodsSeen | None, now_s: float) -> str | None:
        """Ask for the end of those whose time is over. Returns what came of it; None: nothing was to be done."""
        self._asked_s = {uid: at_s for uid, at_s in self._asked_s.items() if now_s - at_s < AGAIN_S}
        return "; ".join(self._ask(_by_pod(excesses, pods), now_s)) or None

    def _ask(self, found: Iterable[tuple[Excess, PodSeen | None]], now_s: float) -> Iterator[str]:
        for excess, pod in found:
            if pod is None:
                yield f"{excess.message}; it is not evicted, since the API server does not tell its pod"
            elif pod.is_static:
                yield f"{_title(pod)}: {excess.message}; a static pod cannot be evicted"
            elif not pod.is_deleting and not pod.phase.is_terminal and pod.uid not in self._asked_s:
                self._asked_s[pod.uid] = now_s
                yield f"{_title(pod)}: {excess.message}; {self._evict(pod)}"

    def _evict(self, pod: PodSeen) -> str:
        try:
            outcome = self._writer.evict(pod.namespace, pod.name, pod.uid)
        except NodeError as error:
            return f"it could not be evicted: {error}"
        match outcome:
            case Eviction.ACCEPTED:
                return "it is evicted"
            case Eviction.BLOCKED:
                return f"a disruption budget does not allow to evict it now; asked again in {AGAIN_S:g} s"
            case Eviction.GONE:
                return "it has gone by itself"


def _by_pod(excesses: Iterable[Excess], pods: PodsSeen | None) -> Iterator[tuple[Excess, PodSeen | None]]:
    """Each pod once, with the first excess whose time is over."""
    known = {} if pods is None else {pod.cgroup_uid: pod for pod in pods.pods.values()}
    seen: set[str] = set()
    for excess in excesses:
        uid = excess.key[0][0]
        if excess.is_to_end and uid not in seen:
            seen.add(uid)
            yield excess, known.get(uid)


def _title(pod: PodSeen) -> str:
    return f"pod {pod.namespace}/{pod.name}"
