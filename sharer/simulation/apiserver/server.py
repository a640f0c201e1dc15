"""The API server that tests and the simulation drive: put objects, break things, look at what was asked."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Self

import msgspec

from sharer.simulation.apiserver.api import Api
from sharer.simulation.apiserver.authorization import Access
from sharer.simulation.apiserver.definitions import Definitions, read_definition
from sharer.simulation.apiserver.discovery import Discovery
from sharer.simulation.apiserver.faults import Fault, Faults
from sharer.simulation.apiserver.http import HttpServer
from sharer.simulation.apiserver.journal import Journal
from sharer.simulation.apiserver.kinds import KINDS, Kind, Kinds
from sharer.simulation.apiserver.pages import Lists
from sharer.simulation.apiserver.records import Request, Rule, ServerSettings, WatchInfo
from sharer.simulation.apiserver.statuses import Object
from sharer.simulation.apiserver.store import Key, Store
from sharer.simulation.apiserver.watcher import Ending
from sharer.simulation.apiserver.writes import Writes

PATIENCE_S = 30.0  # of who waits, beside whatever else the machine does


class ApiServer:
    """An API server on 127.0.0.1.

    `with ApiServer().start() as server: …`. Every method may be called from any thread. Until told otherwise it
    wants no token and allows everything.
    """

    def __init__(
        self,
        settings: ServerSettings | None = None,
        *,
        kinds: Iterable[Kind] = KINDS,
        tls: ssl.SSLContext | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings or ServerSettings()
        self._tls = tls
        self._clock = clock
        self._store = Store(history=self._settings.history)
        self._access = Access(self._settings.user)
        self._lists = Lists(self._store)
        self._definitions = Definitions()
        self._writes = Writes(self._store, self._access, self._definitions)
        self._faults = Faults()
        self._journal = Journal(self._settings.requests_kept)
        self._kinds = Kinds(kinds)
        discovery = Discovery(self._kinds, self._definitions, self._settings.git_version)
        self._api = Api(self._kinds, self._definitions, self._store, self._access, self._lists, self._writes, discovery)
        self._lifecycle = threading.Lock()
        self._http: HttpServer | None = None
        self._place: socket.socket | None = None  # holds the port, so that nobody else has it while this is away
        self._port = 0

    # -- life

    def start(self) -> Self:
        """Listen, at the same port as before if it is not the first time. What was stored is still there."""
        with self._lifecycle:
            if self._http is not None:
                raise RuntimeError("this API server runs already; stop it first")
            if self._place is None:
                self._place = socket.socket()
                self._place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the listener does beside it
                self._place.bind(("127.0.0.1", self._port))
                self._port = self._place.getsockname()[1]
            self._http = HttpServer(
                self._port,
                self._tls,
                self._settings,
                self._api,
                self._store,
                self._faults,
                self._journal,
                self._clock,
            )
        return self

    def stop(self) -> None:
        """Be away: connections break, new ones are refused. Returns when no thread is left. Twice is as once."""
        with self._lifecycle:
            http, self._http = self._http, None
            if http is not None:
                self._faults.clear()
                http.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        if self._place is not None:
            self._place.close()
            self._place = None

    @property
    def url(self) -> str:
        """Where it listens, or did last: "http://127.0.0.1:12345"."""
        return f"{'http' if self._tls is None else 'https'}://127.0.0.1:{self._port}"

    # -- custom kinds

    def define(self, crd: Object) -> Kind:
        """Serve the kind of a CustomResourceDefinition, and hold its objects to its schema from now on.

        Watches of a kind that was defined otherwise end cleanly. Raises ValueError for what is no structural schema.
        """
        definition = read_definition(crd, self._kinds.all)
        self._end_watches(definition.kind)
        self._definitions.put(definition)
        self._kinds.serve(definition.kind)
        return definition.kind

    def undefine(self, kind: Kind) -> None:
        """Delete the definition of a custom kind: all its objects go, and its paths with them (404 in plain text)."""
        with self._store.lock:
            for stored in self._store.select(kind, None, lambda _: True):
                self._store.remove(kind, stored.key)
        self._end_watches(kind)
        self._kinds.withdraw(kind)
        self._definitions.remove(kind)

    def _end_watches(self, kind: Kind) -> None:
        for watcher in self._store.watchers():
            if watcher.kind == kind:
                watcher.end(Ending.CLEAN)

    # -- objects

    def put(self, kind: Kind, obj: Object) -> Object:
        """Store an object as given, status too; create or replace. Returns what is stored.

        It needs only `metadata.name`. Under another UID it is another object: the one before is deleted.
        """
        return self._writes.put(kind, obj).obj

    def delete(self, kind: Kind, name: str, namespace: str = "default") -> None:
        """Take an object away at once, as when its kubelet has let go. Raises KeyError if it is missing."""
        key = _key(kind, name, namespace)
        with self._store.lock:
            if self._store.get(kind, key) is None:
                raise KeyError(f"no {kind.kind} {namespace}/{name}")
            self._store.remove(kind, key)

    def get(self, kind: Kind, name: str, namespace: str = "default") -> Object | None:
        """An object as it is now; None if there is none."""
        stored = self._store.get(kind, _key(kind, name, namespace))
        return None if stored is None else stored.obj

    def objects(self, kind: Kind) -> tuple[Object, ...]:
        """All objects of a kind."""
        return tuple(stored.obj for stored in self._store.select(kind, None, lambda _: True))

    @property
    def version(self) -> int:
        """The newest resourceVersion."""
        return self._store.version

    # -- who may do what

    def accept_tokens(self, *tokens: str) -> None:
        """From now on only these bearer tokens are known (401); without any, nobody needs one."""
        self._access.accept_tokens(tokens or None)

    def grant(self, rules: Iterable[Rule] | None) -> None:
        """From now on only what these rules allow is allowed (403); None: everything."""
        self._access.grant(rules)

    def forbid(self, verb: str, resource: str) -> None:
        """Refuse a verb on a resource (403), whatever the rules say; until `allow`."""
        self._access.deny(verb, resource)

    def allow(self, verb: str, resource: str) -> None:
        """Take a `forbid` back."""
        self._access.allow(verb, resource)

    # -- what goes wrong

    def fail_next(
        self, fault: Fault, *, verb: str | None = None, resource: str | None = None, times: int | None = 1
    ) -> None:
        """Let the next requests that match suffer this. `times` None: all of them, until `clear_faults`."""
        self._faults.plan(fault, verb=verb, resource=resource, times=times)

    def clear_faults(self) -> None:
        """Work again. Requests that hang lose their connections."""
        self._faults.clear()

    def expire_history(self) -> None:
        """Every version and page known so far is too old now (410). Watches in progress go on."""
        self._store.expire_history()
        self._lists.expire()

    def interrupt_watches(self, ending: Ending, resource: str | None = None) -> int:
        """End the watches in progress like this, after what they were sent so far. Returns how many.

        They do not count any more when this returns, so that `wait_watches` waits for those that follow.
        """
        chosen = [watcher for watcher in self._store.watchers() if resource in (None, watcher.kind.plural)]
        for watcher in chosen:
            watcher.end(ending)
            self._store.unfollow(watcher)
        self._journal.changed()
        return len(chosen)

    def send_bookmarks(self) -> None:
        """Send a BOOKMARK to every watch in progress, without waiting for its time."""
        for watcher in self._store.watchers():
            self._store.bookmark(watcher)

    def send_line(self, line: bytes, resource: str | None = None) -> None:
        """Send these bytes, as they are, to every watch in progress."""
        for watcher in self._store.watchers():
            if resource in (None, watcher.kind.plural):
                watcher.send(line)

    def send_event(self, event: str, obj: Object, resource: str | None = None) -> None:
        """Send an event to every watch in progress, whatever the objects are: a late DELETED, an ERROR."""
        self.send_line(b'{"type":"%b","object":%b}\n' % (event.encode(), msgspec.json.encode(obj)), resource)

    # -- what was asked

    def requests(self, verb: str | None = None, resource: str | None = None) -> tuple[Request, ...]:
        """The latest requests, oldest first."""
        return self._journal.requests(verb, resource)

    def counts(self) -> Counter[tuple[str, str | None]]:
        """How many requests there were of each (verb, resource), ever."""
        return self._journal.counts()

    def watches(self) -> tuple[WatchInfo, ...]:
        """The watches that are being served now."""
        return tuple(
            WatchInfo(
                resource=watcher.kind.plural,
                namespace=watcher.namespace,
                field_selector=watcher.fields,
                since=watcher.since,
            )
            for watcher in self._store.watchers()
            if watcher.is_served
        )

    def wait_requests(
        self, count: int, *, verb: str | None = None, resource: str | None = None, timeout_s: float = PATIENCE_S
    ) -> tuple[Request, ...]:
        """Wait until there were so many requests that match; returns them. Raises TimeoutError."""
        self._journal.wait(
            lambda: len(self._journal.requests(verb, resource)) >= count,
            timeout_s,
            f"{count} requests to {verb or 'do anything with'} {resource or 'anything'}",
        )
        return self._journal.requests(verb, resource)

    def wait_watches(self, count: int, *, resource: str | None = None, timeout_s: float = PATIENCE_S) -> None:
        """Wait until exactly so many watches are being served. Raises TimeoutError."""
        self._journal.wait(
            lambda: sum(resource in (None, watch.resource) for watch in self.watches()) == count,
            timeout_s,
            f"{count} watches of {resource or 'anything'}",
        )


def _key(kind: Kind, name: str, namespace: str) -> Key:
    return Key(namespace if kind.namespaced else "", name)
