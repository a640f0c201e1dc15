"""Which pod is to be looked at when: at once when its cgroups have changed, then ever more rarely; all now and then."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

LOOK_S = 10.0  # between two looks at everything
SOON_S = 0.005  # until a pod is looked at again of whose containers not all have a cgroup that is known
SETTLING_S = 0.1  # until the others are; a toolkit's hook runs some 15 to 50 ms after a cgroup has appeared
STIRRED_S = 3.0  # for so long after its cgroups have changed


class Diary:
    """Which pod is to be looked at when. Any thread may stir one."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due: dict[str, float] = {}
        self._stirred: dict[str, float] = {}  # when the cgroups of a pod last changed
        self._all_s = float("-inf")  # when everything is due

    def stir(self, uid: str, now_s: float) -> None:
        """A pod's cgroups have changed."""
        with self._changed:
            self._stirred[uid] = self._due[uid] = now_s
            self._changed.notify_all()

    def stir_all(self) -> None:
        """What all pods are to be held to, or can be held by, has changed."""
        with self._changed:
            self._all_s = float("-inf")
            self._changed.notify_all()

    def plan(self, pods: Mapping[str, bool], now_s: float) -> None:
        """Look at these pods again while they are new, ever more rarely; at those that are marked at once."""
        with self._changed:
            for uid, is_incomplete in pods.items():
                age_s = now_s - self._stirred.get(uid, float("-inf"))
                if age_s <= STIRRED_S:
                    wait_s = max(SOON_S, age_s / 2) if is_incomplete else max(SETTLING_S, age_s)
                    self._due[uid] = min(self._due.get(uid, float("inf")), now_s + wait_s)

    def wait(self, now_s: Callable[[], float], stop: threading.Event) -> frozenset[str] | None:
        """Wait until something is due. Returns the pods; None: everything is."""
        with self._changed:
            while not stop.is_set():
                now = now_s()
                if now >= self._all_s:
                    self._all_s = now + LOOK_S
                    self._due.clear()
                    self._stirred = {uid: at_s for uid, at_s in self._stirred.items() if now - at_s <= STIRRED_S}
                    return None
                due = frozenset(uid for uid, due_s in self._due.items() if due_s <= now)
                if due:
                    for uid in due:
                        del self._due[uid]
                    return due
                self._changed.wait(min([self._all_s, *self._due.values()]) - now)
            return frozenset()
