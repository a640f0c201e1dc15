"""End pods that stay above their promise, where the policy says `onExceed: evict`: through the Eviction API.

A step of the announcing thread. Disruption budgets are respected and the pod keeps its own grace period; nothing is
deleted. Needs the right to create `pods/eviction`, and nothing without it but a word in log and report. A static pod
cannot be evicted: only its mirror would go.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping

from sharer.core.errors import NodeError
from sharer.core.holders.observations import PodSeen, pod_title
from sharer.core.limits.excess import Excess, ExcessKey
from sharer.core.ports.api import ApiWriter, Eviction
from sharer.core.tell.news import News, evicted
from sharer.core.told import Evictions
from sharer.flows.state import NodeView
from sharer.flows.tell.told import Told

AGAIN_S = 30.0  # until a pod is asked to end once more: a budget may allow it then
STALE_S = 60.0  # a reading of what a container uses that is older proves nothing any more
FAILED = "failed"

log = logging.getLogger(__name__)


class Evicting:
    """Remembers whom it has asked. `step` is for one thread, which the API server may keep waiting."""

    def __init__(self, writer: Callable[[], ApiWriter | None], told: Told, note: Callable[[News], None]) -> None:
        """`writer` gives None as long as the API server is not connected; `note` is told of each eviction."""
        self._writer, self._told, self._note = writer, told, note
        self._asked_s: dict[str, float] = {}  # by the UID of the pod in the API
        self._said: set[tuple[ExcessKey, str]] = set()

    def step(self, view: NodeView, now_s: float) -> float | None:
        """Ask for the end of those whose time is over. Returns when one is to be asked again; None: none is.

        Raises NodeError, after it has asked for all of them, with the reason of the first that could not be evicted.
        """
        self._asked_s = {uid: at_s for uid, at_s in self._asked_s.items() if now_s - at_s < AGAIN_S}
        writer = self._writer()
        if writer is None:
            return None
        errors = []
        over = list(_by_pod(view.excesses, view.ledger.evidence.pods_by_cgroup(), now_s))
        for excess, pod in over:
            if (why := _why_not(pod)) is not None:
                self._say(excess, f"{_title(excess, pod)}: {excess.message}; {why}")
            elif pod is not None and not _is_ending(pod) and pod.uid not in self._asked_s:
                self._asked_s[pod.uid] = now_s
                try:
                    outcome = writer.evict(pod.namespace, pod.name, pod.uid)
                except NodeError as error:
                    errors.append(error)
                    self._count(FAILED, str(error))
                    continue
                self._count(outcome.value, None)
                self._say(excess, f"{_title(excess, pod)}: {excess.message}; {_WORDS[outcome]}")
                if outcome is Eviction.ACCEPTED:
                    self._note(evicted(excess, pod))
        still = {excess.key for excess, _ in over}
        self._said = {(key, sentence) for key, sentence in self._said if key in still}
        if errors:
            raise errors[0]
        waiting = [self._asked_s[pod.uid] for _, pod in over if pod is not None and pod.uid in self._asked_s]
        return min(waiting) + AGAIN_S if waiting else None

    def _count(self, outcome: str, problem: str | None) -> None:
        counts = self._told.evictions.counts
        self._told.evictions = Evictions(counts={**counts, outcome: counts.get(outcome, 0) + 1}, problem=problem)

    def _say(self, excess: Excess, sentence: str) -> None:
        """Log a sentence, once for as long as the container stays above its promise."""
        if (excess.key, sentence) not in self._said:
            self._said.add((excess.key, sentence))
            log.warning("%s", sentence)


_WORDS = {
    Eviction.ACCEPTED: "it is evicted",
    Eviction.BLOCKED: f"a disruption budget does not allow to evict it now; asked again in {AGAIN_S:g} s",
    Eviction.GONE: "it has gone by itself",
}


def _why_not(pod: PodSeen | None) -> str | None:
    """Why a pod is never asked to end; None: it may be."""
    if pod is None:
        return "it is not evicted, since the API server does not tell its pod"
    return "a static pod cannot be evicted" if pod.is_static else None


def _is_ending(pod: PodSeen) -> bool:
    return pod.is_deleting or pod.phase.is_terminal


def _by_pod(
    excesses: Iterable[Excess], pods: Mapping[str, PodSeen], now_s: float
) -> Iterator[tuple[Excess, PodSeen | None]]:
    """Each pod once, with the first excess whose time is over. `pods` by the UID in their cgroups' names."""
    seen: set[str] = set()
    for excess in excesses:
        uid = excess.key[0][0]
        is_recent = excess.last_s is not None and now_s - excess.last_s <= STALE_S
        if excess.is_to_end and is_recent and uid not in seen:
            seen.add(uid)
            yield excess, pods.get(uid)


def _title(excess: Excess, pod: PodSeen | None) -> str:
    uid = excess.key[0][0]
    return pod_title(uid, None, None) if pod is None else pod_title(uid, pod.namespace, pod.name)
