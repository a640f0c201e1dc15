"""List, then watch, for ever: one loop for every kind of object.

What ends a watch, and what happens then:

    the server's timeout                   watch again from the last version
    410, by HTTP or as an ERROR event      list again, with back-off; it grows if that does not help
    broken, cut in a line, silent          watch again from the last version, with back-off
    a whole watch without even a bookmark  list again: the server may not have our version yet (a restored etcd)
    401                                    the transport has tried the credentials of now; back-off
    403, 404, 422                          slow retry: only a person can help, but then nothing needs a restart
    429                                    as long as the server says, and a little longer
    5xx, no connection                     back-off

Objects are kept by UID: a late deletion of an old pod does not touch its successor of the same name (P29).
Never `kubernetes.watch.Watch`: it spins on a 410 after a bookmark (DESIGN §10).
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Generic

import msgspec

from sharer.adapters.kube.client import KubeClient, readable
from sharer.adapters.kube.collection import Collection, Snapshot, T, W
from sharer.adapters.kube.errors import ApiError, cut_short, refused_in_stream, unforeseen
from sharer.adapters.kube.standing import Standing
from sharer.adapters.kube.wire import Bookmark, WatchEvent
from sharer.core.holders.observations import ApiSync, ApiTroubleKind
from sharer.core.values import replace

if TYPE_CHECKING:  # importing it imports the official client
    from sharer.adapters.kube.transport import Stream

STOP_PATIENCE_S = 1.0  # of the 5 s that an agent has to end; its thread ends with the process in any case

log = logging.getLogger(__name__)
_EVENT = msgspec.json.Decoder(WatchEvent)
_BOOKMARK = msgspec.json.Decoder(Bookmark)


class ObjectWatch(Generic[W, T]):
    """Follows a collection on a thread of its own, from `start` to `stop`.

    `changed` gets a whole snapshot after the first list, and whenever an object differs from before. It runs on the
    watch's thread and returns at once.
    """

    def __init__(
        self,
        client: KubeClient,
        collection: Collection[W, T],
        changed: Callable[[Snapshot[T]], None],
        *,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], bool] | None = None,
    ) -> None:
        """`pause` waits so many seconds and says whether to stop; tests give one that does not wait."""
        self._client = client
        self._collection = collection
        self._changed = changed
        self._clock = clock
        self._stopping = threading.Event()
        self._pause = pause or self._stopping.wait
        self._call = replace(collection.call, verb="watch")
        self._standing = Standing(collection.call.what, collection.missed, client.timings, clock)
        self._lock = threading.Lock()
        self._stream: Stream | None = None  # the one that `stop` must end
        self._thread = threading.Thread(target=self._run, name=f"kube-{self._call.resource.plural}", daemon=True)
        # The rest is the thread's alone.
        self._objects: dict[str, T] = {}
        self._told = False  # `changed` was called before
        self._version: str | None = None  # None: to be listed
        self._list_again_s = 0.0

    def start(self) -> None:
        """Begin. Once."""
        self._thread.start()

    def stop(self) -> None:
        """End, in the middle of whatever it does; waits a moment for the thread."""
        with self._lock:
            self._stopping.set()
            if self._stream is not None:
                self._stream.stop()
        if self._thread.ident is not None:
            self._thread.join(STOP_PATIENCE_S)

    @property
    def sync(self) -> ApiSync:
        """How current it is, and what is in the way. From any thread."""
        return self._standing.sync

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._follow()
            except ApiError as error:
                if self._stopping.is_set() or self._pause(self._standing.failed(error)):
                    return
            except Exception as error:
                log.exception("following %s failed in a way that nobody foresaw; beginning anew", self._call.what)
                self._version = None
                if self._pause(self._standing.failed(unforeseen(self._call, error))):
                    return

    def _follow(self) -> None:
        """One list if there is need for one, then one watch to its end."""
        if self._version is None or self._clock() >= self._list_again_s:
            self._list()
        if self._version is None:
            return  # told to stop in the middle of the list
        news = 0
        with self._watching(self._version) as stream:
            for line in stream.lines():
                self._take(line)
                news += 1
        if self._stopping.is_set():
            return
        lasted_s = self._standing.ended()
        if lasted_s < self._client.timings.settled_s:
            raise cut_short(self._call, lasted_s)
        if news == 0:
            self._version = None

    def _list(self) -> None:
        """Take what exists now for everything that exists (P29)."""
        objects: dict[str, T] = {}
        version = None
        for page in self._client.pages(self._collection.call, self._collection.page):
            if self._stopping.is_set():
                return
            version = page.metadata.resource_version
            objects |= {one.metadata.uid: self._collection.seen(one) for one in page.items or ()}
        self._version = version
        self._list_again_s = self._clock() + self._client.timings.resync_s
        self._standing.confirmed()
        if objects != self._objects or not self._told:
            self._objects = objects
            self._tell()

    @contextlib.contextmanager
    def _watching(self, version: str) -> Iterator[Stream]:
        try:
            stream = self._client.open_watch(self._call, version)
        except ApiError as error:
            if error.kind is ApiTroubleKind.EXPIRED:
                self._version = None
            raise
        with self._lock:
            self._stream = stream
            if self._stopping.is_set():
                stream.stop()
        self._standing.opened()
        try:
            yield stream
        finally:
            with self._lock:
                self._stream = None
            stream.close()

    def _take(self, line: bytes) -> None:
        """One event. After an ERROR, or one that cannot be read, only a new list helps."""
        version, self._version = self._version, None
        with readable(self._call):
            event = _EVENT.decode(line)
            match event.type:
                case "ERROR":
                    raise refused_in_stream(self._call, event.object)
                case "BOOKMARK":
                    version, changed = _BOOKMARK.decode(event.object).metadata.resource_version, False
                case "ADDED" | "MODIFIED" | "DELETED":
                    one = self._collection.one.decode(event.object)
                    version = one.metadata.resource_version or version
                    gone = event.type == "DELETED"
                    changed = self._note(one.metadata.uid, None if gone else self._collection.seen(one))
                case _:
                    changed = False
        self._version = version
        self._standing.confirmed()
        self._standing.recovered()
        if changed:
            self._tell()

    def _note(self, uid: str, seen: T | None) -> bool:
        """Remember an object, or forget it; returns whether that changes anything."""
        if seen == self._objects.get(uid):
            return False
        if seen is None:
            del self._objects[uid]
        else:
            self._objects[uid] = seen
        return True

    def _tell(self) -> None:
        self._told = True
        synced_at_s = self._standing.sync.synced_at_s
        assert synced_at_s is not None
        assert self._version is not None
        self._changed(Snapshot(objects=dict(self._objects), synced_at_s=synced_at_s, resource_version=self._version))
