"""From a request to its answer: who asks, what for, may they, and what is there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from sharer.simulation.apiserver.authorization import Access
from sharer.simulation.apiserver.definitions import Definitions
from sharer.simulation.apiserver.discovery import Discovery
from sharer.simulation.apiserver.kinds import ACCESS_REVIEW, Kinds, Target
from sharer.simulation.apiserver.pages import Lists, Query
from sharer.simulation.apiserver.selectors import compile_selectors, named
from sharer.simulation.apiserver.statuses import Answer, Failure, Object
from sharer.simulation.apiserver.store import Key, Store
from sharer.simulation.apiserver.tables import table, wants_table
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

    def __init__(
        self,
        kinds: Kinds,
        definitions: Definitions,
        store: Store,
        access: Access,
        lists: Lists,
        writes: Writes,
        discovery: Discovery,
    ) -> None:
        self._kinds = kinds
        self._definitions = definitions
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
        self, verb: str, path: str, query: Mapping[str, str], accept: str, content_type: str, body: bytes
    ) -> Answer | WatchAnswer:
        """What the request gets. Raises Failure."""
        known = self._discovery.answer(path, accept)
        if known is not None:
            return known
        target = self._kinds.parse(path)
        if target is None:
            raise Failure.no_such_path()
        write = Write(target=target, query=query, content_type=content_type, body=body)
        if target.kind is ACCESS_REVIEW and verb == "create":  # everybody may ask
            return self._review(write)
        self._access.authorize(verb, target, target.name or named(query.get("fieldSelector", "")))
        match verb:
            case "get":
                return self._get(target, query, accept)
            case "list" if wants_table(accept):
                metadata, page = self._lists.page(target, _query(target, query))
                return self._table(target, [stored.obj for stored in page], metadata, query)
            case "list":
                return Answer(code=200, body=self._lists.answer(target, _query(target, query)))
            case "watch":
                return self._watch(target, query)
            case "create":
                return self._writes.create(write)
            case "patch":
                return self._writes.patch(write)
            case "update" if target.name is not None and target.subresource in (None, "status"):
                return self._writes.update(write)
            case "delete" if target.name is not None and target.subresource is None:
                return self._writes.delete(write)
            case _:
                raise Failure(405, "the server does not allow this method on the requested resource")

    def _review(self, write: Write) -> Answer:
        """What whoever asks may do; nothing is stored."""
        asked = write.read()
        about = (asked.get("spec") or {}).get("resourceAttributes") or {}
        resource = "/".join(part for part in (about.get("resource", ""), about.get("subresource")) if part)
        allowed = self._access.allows(
            about.get("verb", ""), about.get("group", ""), resource, about.get("namespace"), about.get("name")
        )
        return Answer(code=201, body=msgspec.json.encode({**asked, "status": {"allowed": allowed}}))

    def _get(self, target: Target, query: Mapping[str, str], accept: str) -> Answer:
        if target.subresource not in (None, "status"):
            raise Failure(405, "the server does not allow this method on the requested resource")
        assert target.name is not None
        stored = self._store.demand(target.kind, Key(target.namespace or "", target.name))
        if wants_table(accept):
            metadata = {"resourceVersion": stored.obj["metadata"]["resourceVersion"]}
            return self._table(target, [stored.obj], metadata, query)
        return Answer(code=200, body=stored.raw)

    def _table(self, target: Target, objects: list[Object], metadata: Object, query: Mapping[str, str]) -> Answer:
        include = query.get("includeObject", "")
        made = table(target.kind, self._definitions.of(target.kind), objects, metadata, include)
        return Answer(code=200, body=msgspec.json.encode(made))

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
