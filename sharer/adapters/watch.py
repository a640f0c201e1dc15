"""Directory changes for the whole process: one inotify instance to be prompt, one timer to be certain.

Inotify instances are scarce (128 a user by default) and other programs use them up, so the process takes at most one
(bug case P10), and events are only a hint: they are lost on overflow, when a directory is replaced, and where there
is no inotify at all. Therefore every subscriber is also called on a timer and compares for itself, more rarely where
inotify watches, or would if the directory were there; without inotify everything still works, at the timer's pace.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import logging
import os
import select
import threading
import time
from collections.abc import Callable, Iterable
from typing import Protocol

import inotify_simple
from inotify_simple import INotify, flags

log = logging.getLogger(__name__)

CERTAIN = 5  # with 250 pods there are 500 directories to look at: every second, that was a quarter of an idle agent

_MASK = int(
    flags.CREATE
    | flags.DELETE
    | flags.MOVED_FROM
    | flags.MOVED_TO
    | flags.CLOSE_WRITE
    | flags.DELETE_SELF
    | flags.MOVE_SELF
    | flags.ONLYDIR
)


class InotifyEvent(Protocol):
    """One event as `inotify_simple` gives it."""

    @property
    def wd(self) -> int:
        """The watch it belongs to; -1: the queue overflowed."""
        ...

    @property
    def mask(self) -> int:
        """What happened."""
        ...


class Inotify(Protocol):
    """What is used of `inotify_simple.INotify`."""

    def fileno(self) -> int:
        """To be polled."""
        ...

    def add_watch(self, path: str, mask: int) -> int:
        """Returns the watch, the same one for the same directory. Raises OSError."""
        ...

    def rm_watch(self, wd: int) -> None:
        """Raises OSError if the watch is void."""
        ...

    def read(self, timeout: int) -> Iterable[InotifyEvent]:
        """The events that are there; 0: do not wait."""
        ...

    def close(self) -> None:
        """Frees the instance."""
        ...


def open_inotify() -> Inotify:
    """An inotify instance. Raises OSError.

    `inotify_simple` looks for the C library by running `ldconfig`, 7 ms while an agent starts (measured); this process
    has it already.
    """
    inotify_simple._libc = inotify_simple._libc or ctypes.CDLL(None, use_errno=True)
    inotify: Inotify = INotify()
    return inotify


class DirectoryWatch:
    """Implements `core.ports.watch.Watcher` with one thread, started by the first subscription."""

    def __init__(self, *, open_inotify: Callable[[], Inotify] = open_inotify, interval_s: float = 1.0) -> None:
        """`interval_s` is the timer's; what inotify watches, or waits for, is looked at after CERTAIN times as long."""
        self._open_inotify = open_inotify
        self._interval_s = interval_s
        self._lock = threading.Lock()
        self._subscribers: dict[str, tuple[Callable[[], None], ...]] = {}
        self._thread: threading.Thread | None = None
        self._closed = False
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def subscribe(self, directory: str, changed: Callable[[], None]) -> Callable[[], None]:
        """See `core.ports.watch.Watcher`. Several subscribers may share a directory."""
        end = _End(self, directory, changed)
        with self._lock:
            if self._closed:
                return end  # by a subscriber's own call, or a thread that has not heard of the end yet
            self._subscribers[directory] = (*self._subscribers.get(directory, ()), changed)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="sharer-watch", daemon=True)
                self._thread.start()
            self._nudge()
        return end

    def unsubscribe(self, directory: str, changed: Callable[[], None]) -> None:
        """End one subscription; nothing if it has ended."""
        with self._lock:
            left = tuple(other for other in self._subscribers.get(directory, ()) if other is not changed)
            if left:
                self._subscribers[directory] = left
            else:
                self._subscribers.pop(directory, None)
            self._nudge()

    def close(self) -> None:
        """Stop calling anybody, also whoever subscribes later. Returns when the last call has returned."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            os.eventfd_write(self._wake, 1)
        if self._thread is not None:
            self._thread.join()
        os.close(self._wake)

    def _nudge(self) -> None:
        """Make the thread look at the subscriptions now. The lock is held."""
        if not self._closed:
            os.eventfd_write(self._wake, 1)

    def _run(self) -> None:
        watches = _Watches(self._open())
        poller = select.poll()
        poller.register(self._wake, select.POLLIN)
        if watches.inotify is not None:
            poller.register(watches.inotify.fileno(), select.POLLIN)
        soon_s = time.monotonic() + self._interval_s  # for what inotify does not watch
        certain_s = time.monotonic() + CERTAIN * self._interval_s  # for everybody
        while not self._closed:
            with self._lock:
                directories = set(self._subscribers)
            changed = watches.follow(directories)
            if not changed:
                wake_s = certain_s if watches.have_all(directories) else min(soon_s, certain_s)
                poller.poll(max(0.0, wake_s - time.monotonic()) * 1000)
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._wake)
                changed = watches.read()
            now_s = time.monotonic()
            if now_s >= certain_s:
                changed |= directories
                certain_s = now_s + CERTAIN * self._interval_s
            if now_s >= soon_s:
                changed |= watches.unseen(directories)
                soon_s = now_s + self._interval_s
            self._tell(changed)
        watches.close()

    def _open(self) -> Inotify | None:
        try:
            return self._open_inotify()
        except OSError as error:
            log.warning(
                "no inotify instance is left on this node (%s); looking every %g s instead."
                " Raise the sysctl fs.inotify.max_user_instances to notice changes at once",
                error.strerror,
                self._interval_s,
            )
            return None

    def _tell(self, directories: Iterable[str]) -> None:
        for directory in directories:
            with self._lock:
                subscribers = self._subscribers.get(directory, ())
            for changed in subscribers:
                try:
                    changed()
                except Exception:
                    log.exception("a subscriber to %s failed; it is called again at the next change", directory)


class _End:
    """What a subscriber is given to call. Of 250 pods there are 500, and functions weigh six times as much."""

    __slots__ = ("_changed", "_directory", "_watch")

    def __init__(self, watch: DirectoryWatch, directory: str, changed: Callable[[], None]) -> None:
        self._watch, self._directory, self._changed = watch, directory, changed

    def __call__(self) -> None:
        self._watch.unsubscribe(self._directory, self._changed)


class _Watches:
    """Which watch belongs to which directories. Used by the watch's thread only."""

    def __init__(self, inotify: Inotify | None) -> None:
        self.inotify = inotify
        self._directories: dict[int, tuple[str, ...]] = {}  # two names of one directory share one watch
        self._missing: set[str] = set()  # of those that are wanted: not there, so nothing can have changed in them
        self._warned = False

    def follow(self, wanted: set[str]) -> set[str]:
        """Watch what is wanted, as far as it exists. Returns what is watched only now: it may have changed before."""
        if self.inotify is None:
            return set()
        for watch, directories in list(self._directories.items()):
            if left := tuple(directory for directory in directories if directory in wanted):
                self._directories[watch] = left
            else:
                del self._directories[watch]
                with contextlib.suppress(OSError):  # void already: the directory is gone
                    self.inotify.rm_watch(watch)
        added = set()
        self._missing = set()
        for directory in wanted.difference(*self._directories.values()):
            try:
                watch = self.inotify.add_watch(directory, _MASK)
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.ENOTDIR):
                    self._missing.add(directory)
                else:
                    self._explain(directory, error)
            else:
                self._directories[watch] = (*self._directories.get(watch, ()), directory)
                added.add(directory)
        return added

    def have_all(self, directories: set[str]) -> bool:
        """Whether inotify watches each of these."""
        return not directories.difference(*self._directories.values())

    def unseen(self, directories: set[str]) -> set[str]:
        """Those of these that are there, and that only the timer sees: there is no inotify for them."""
        return directories.difference(self._missing, *self._directories.values())

    def read(self) -> set[str]:
        """The directories with news."""
        changed: set[str] = set()
        if self.inotify is None:
            return changed
        for event in self.inotify.read(timeout=0):
            if event.mask & flags.Q_OVERFLOW:
                return changed.union(*self._directories.values())
            changed.update(self._directories.get(event.wd, ()))
            if event.mask & flags.MOVE_SELF:  # the watch went with the directory; `follow` makes one for the name
                with contextlib.suppress(OSError):
                    self.inotify.rm_watch(event.wd)
            if event.mask & (flags.MOVE_SELF | flags.IGNORED):
                self._directories.pop(event.wd, None)
        return changed

    def close(self) -> None:
        if self.inotify is not None:
            self.inotify.close()

    def _explain(self, directory: str, error: OSError) -> None:
        """A used-up limit is worth a word, once."""
        if self._warned:
            return
        self._warned = True
        log.warning(
            "cannot watch %s (%s); looking at it on a timer instead."
            " If this is a used-up limit, raise the sysctls fs.inotify.max_user_watches and max_user_instances",
            directory,
            error.strerror,
        )
