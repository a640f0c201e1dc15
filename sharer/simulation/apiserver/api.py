"""From a request to its answer: who asks, what for, may they, and what is there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sharer.simulation.apiserver.authorization import Access
from sharer.simulation.apiserver.discovery import Discovery
from sharer.simulation.apiserver.kinds import Kinds, Target
from sharer.simulation.apiserver.pages import Lists, Query
from sharer.simulation.apiserver.selectors import compile_selectors, named
from sharer.simulation.apiserver.statuses import Answer, Failure
from sharer.simulation.apiserver.store import Key, Store
from sharer.simulation.apiserver.watcher import Watcher
from sharer.simulation.apiserver.writes import Write, Writes

_TRUE = ("1", "true")
_WRITING = {"POST": "create", "PATCH": "patch", "DELETE": "delete", "PUT": "update"}


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchAnswer:
    """A stream instead of a whole answer."""

    watcher: Watcher
    timeout_s: float | None  # None: the server's default
    bookmarks: bool


class Api:
    """Everything of the API server but HTTP itself."""

    def __init__(self, kinds: Kinds, store: Store, access: Access, lists: Lists, writes: Writes, discovery: Discovery):
        self._kinds = kinds
        self._store = store
        self._access = access
        self._lists = lists
        self._writes = writes
        self._discovery = discovery

    def target(self, path: str) -> Target | None:
        """What a path names; None if it is no resource, served or not."""
        try:
            return self._kinds.parse(path)
        except Failure:
            return None

    def verb(self, method: str, target: Target | None, query: Mapping[str, str]) -> str:
        """The verb of a request, as rules name it."""
        if target is None:
            return method.lower()
        if method == "GET" and target.name is None:
            return "watch" if query.get("watch") in _TRUE else "list"
        return _WRITING.get(method, "get")

    def authenticate(self, token: str | None) -> None:
        """Raises Failure (401)."""
        self._access.authenticate(token)

    def answer(
        self, verb: str, path: str, query: Mapping[str, str], content_type: str, body: bytes
    ) -> Answer | WatchAnswer:
        """What the request gets. Raises Failure."""
        known = self._discovery.answer(path)
        if known is not None:
            return known
        target = self._kinds.parse(path)
        if target is None:
            raise Failure.no_such_path()
        self._access.authorize(verb, target, target.name or named(query.get("fieldSelector", "")))
        write = Write(target=target, query=query, content_type=content_type, body=body)
        match verb:
            case "get":
                return self._get(target)
            case "list":
                return Answer(code=200, body=self._lists.answer(target, _query(target, query)))
            case "watch":
                return self._watch(target, query)
            case "create":
                return self._writes.create(write)
            case "patch":
                return self._writes.patch(write)
            case "delete" if target.name is not None and target.subresource is None:
                return self._writes.delete(write)
            case _:
                raise Failure(405, "the server does not allow this method on the requested resource")

    def _get(self, target: Target) -> Answer:
        if target.subresource not in (None, "status"):
            raise Failure(405, "the server does not allow this method on the requested resource")
        assert target.name is not None
        stored = self._store.demand(target.kind, Key(target.namespace or "", target.name))
        return Answer(code=200, body=stored.raw)

    def _watch(self, target: Target, query: Mapping[str, str]) -> WatchAnswer:
        asked = _query(target, query)
        listing = query.get("sendInitialEvents") in _TRUE
        if listing and asked.match != "NotOlderThan":
            raise Failure.invalid(
                "ListOptions.meta.k8s.io",
                "",
                "resourceVersionMatch",
                "Forbidden: sendInitialEvents requires NotOlderThan",
            )
        try:
            timeout_s = float(query["timeoutSeconds"]) if query.get("timeoutSeconds") else None
            since = int(asked.version) if asked.version not in ("", "0") else None
        except ValueError as error:
            raise Failure(400, f"invalid query: {error}") from None
        watcher = Watcher(target.kind, target.namespace, asked.select, query.get("fieldSelector", ""))
        bookmarks = query.get("allowWatchBookmarks") in _TRUE
        with self._store.lock:
            self._store.follow(watcher, None if listing else since)
            if listing and bookmarks:
                self._store.bookmark(watcher, ends_initial_events=True)
        return WatchAnswer(watcher=watcher, timeout_s=timeout_s, bookmarks=bookmarks)


def _query(target: Target, query: Mapping[str, str]) -> Query:
    labels, fields = query.get("labelSelector", ""), query.get("fieldSelector", "")
    try:
        limit = int(query.get("limit") or 0)
    except ValueError as error:
        raise Failure(400, f"invalid query: {error}") from None
    return Query(
        select=compile_selectors(target.kind, labels, fields),
        has_selector=bool(labels or fields),
        limit=limit or None,
        token=query.get("continue", ""),
        version=query.get("resourceVersion", ""),
        match=query.get("resourceVersionMatch", ""),
    )
