"""The objects, their versions, and the bounded history that watches start from."""

from __future__ import annotations

import bisect
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from sharer.simulation.apiserver.kinds import Kind
from sharer.simulation.apiserver.selectors import Select
from sharer.simulation.apiserver.statuses import Failure, Object
from sharer.simulation.apiserver.watcher import Watcher

FIRST_VERSION = 1000


class Key(NamedTuple):
    """Where an object is; sorts as the API server lists."""

    namespace: str  # "" for a cluster-scoped kind
    name: str


Path = tuple[str, ...]
Owners = Mapping[tuple[str, str], frozenset[Path]]
"""Which fields each (field manager, subresource) has applied."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """One version of one object."""

    obj: Object
    raw: bytes  # the same as JSON
    item: bytes  # the same in a list, where built-in kinds go without apiVersion and kind
    owners: Owners = field(default_factory=dict)

    @property
    def key(self) -> Key:
        """Where it is."""
        return Key(self.obj["metadata"].get("namespace", ""), self.obj["metadata"]["name"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One write."""

    version: int
    kind: Kind
    before: Stored | None
    after: Stored | None  # None: deleted

    def seen_through(self, select: Select, namespace: str | None) -> tuple[str, bytes] | None:
        """The event that a watch with this selector gets; None: none.

        A deletion carries the last state with the version of the deletion; leaving the selector looks the same.
        """
        was = self.before is not None and _in(self.before, namespace) and select(self.before.obj)
        is_now = self.after is not None and _in(self.after, namespace) and select(self.after.obj)
        if is_now:
            assert self.after is not None
            return ("MODIFIED" if was else "ADDED"), self.after.raw
        if not was:
            return None
        assert self.before is not None
        return "DELETED", msgspec.json.encode(with_version(self.before.obj, self.version))


class Store:
    """Every object. All of it under one lock, which is held for no longer than memory takes."""

    def __init__(self, *, history: int) -> None:
        self.lock = threading.RLock()
        self.version = FIRST_VERSION
        self._objects: dict[Kind, dict[Key, Stored]] = {}
        self._order: dict[Kind, list[Key]] = {}
        self._history: deque[Change] = deque(maxlen=history)
        self._forgotten = FIRST_VERSION  # changes up to this version are not in the history any more
        self._watchers: set[Watcher] = set()

    # -- objects

    def get(self, kind: Kind, key: Key) -> Stored | None:
        """The present version of an object."""
        with self.lock:
            return self._objects.get(kind, {}).get(key)

    def demand(self, kind: Kind, key: Key) -> Stored:
        """The present version of an object. Raises Failure (404)."""
        found = self.get(kind, key)
        if found is None:
            raise Failure.not_found(kind.qualified, key.name)
        return found

    def write(self, kind: Kind, obj: Object, owners: Owners) -> Stored:
        """Store a new version of an object, whatever was there."""
        with self.lock:
            self.version += 1
            rest = {key: value for key, value in obj.items() if key not in ("apiVersion", "kind")}
            obj = with_version({"apiVersion": kind.api_version, "kind": kind.kind, **rest}, self.version)
            raw = msgspec.json.encode(obj)
            item = raw if kind.custom else msgspec.json.encode({**rest, "metadata": obj["metadata"]})
            after = Stored(obj=obj, raw=raw, item=item, owners=owners)
            objects = self._objects.setdefault(kind, {})
            before = objects.get(after.key)
            objects[after.key] = after
            if before is None:
                bisect.insort(self._order.setdefault(kind, []), after.key)
            self._publish(Change(version=self.version, kind=kind, before=before, after=after))
            return after

    def remove(self, kind: Kind, key: Key) -> None:
        """Take an object away. Raises Failure (404)."""
        with self.lock:
            before = self.demand(kind, key)
            self.version += 1
            del self._objects[kind][key]
            self._order[kind].remove(key)
            self._publish(Change(version=self.version, kind=kind, before=before, after=None))

    def select(self, kind: Kind, namespace: str | None, select: Select, after: Key | None = None) -> list[Stored]:
        """The objects that are asked for, in the API server's order; `after`: only those that come later."""
        with self.lock:
            objects, order = self._objects.get(kind, {}), self._order.get(kind, [])
            start = 0 if after is None else bisect.bisect_right(order, after)
            return [
                stored
                for key in order[start:]
                if (namespace is None or key.namespace == namespace) and select((stored := objects[key]).obj)
            ]

    # -- history

    def expire_history(self) -> None:
        """Forget all changes so far, and be one version further, as if others had been busy elsewhere."""
        with self.lock:
            self.version += 1
            self._forgotten = self.version
            self._history.clear()

    def follow(self, watcher: Watcher, since: int | None) -> None:
        """Tell a watcher everything from a version on; None: first what exists now.

        Of a version in the future it is told nothing until that is reached.
        """
        with self.lock:
            if since is None:
                for stored in self.select(watcher.kind, watcher.namespace, watcher.select):
                    watcher.tell("ADDED", stored.raw)
                since = self.version
            elif since < self._forgotten:
                watcher.refuse(Failure(410, f"too old resource version: {since} ({self._forgotten + 1})"))
                return
            watcher.since = since
            for change in self._history:
                self._tell(watcher, change)
            self._watchers.add(watcher)

    def unfollow(self, watcher: Watcher) -> None:
        """Tell it no more."""
        with self.lock:
            self._watchers.discard(watcher)

    def bookmark(self, watcher: Watcher, *, ends_initial_events: bool = False) -> None:
        """Tell a watcher, after everything before, how far it is; one from the future is told nothing."""
        with self.lock:
            if watcher.since <= self.version:
                watcher.bookmark(self.version, ends_initial_events=ends_initial_events)

    def watchers(self) -> Iterator[Watcher]:
        """Those that follow now."""
        with self.lock:
            return iter(tuple(self._watchers))

    def _publish(self, change: Change) -> None:
        if len(self._history) == self._history.maxlen:
            self._forgotten = self._history[0].version
        self._history.append(change)
        for watcher in self._watchers:
            self._tell(watcher, change)

    def _tell(self, watcher: Watcher, change: Change) -> None:
        if change.kind is not watcher.kind or change.version <= watcher.since:
            return
        event = change.seen_through(watcher.select, watcher.namespace)
        if event is not None:
            watcher.tell(*event)


def with_version(obj: Object, version: int) -> Object:
    """The same object under another resourceVersion."""
    return {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(version)}}


def _in(stored: Stored, namespace: str | None) -> bool:
    return namespace is None or stored.key.namespace == namespace
