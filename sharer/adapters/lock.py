"""One agent a node: an flock on a file, and one on the kubelet's directory, held for the life of the process.

Two agents that register one resource undo each other without a word from the kubelet: the old one's exit zeroes the
new one's slices (kubelet-contract §2.4, §17.7; bug case P11). The kernel lets go of the lock however the holder dies.

The file says who holds it. Two agents that were given different run directories have two such files, and one kubelet:
so its device plugin directory, which nobody else locks, is locked as well. Nothing is written there.
"""

from __future__ import annotations

import fcntl
import logging
import os
import socket
import threading
from pathlib import Path

from sharer.core.errors import NodeError

log = logging.getLogger(__name__)


class AgentLock:
    """The right to offer this node's GPUs. Take it before anything of the node is touched; release it last."""

    def __init__(self, path: Path, who: str = "sharer agent", *, kubelet_dir: Path | None = None) -> None:
        """`who` else may hold it, for messages. `kubelet_dir`: the kubelet's directory that is locked as well."""
        self._path, self._who, self._kubelet_dir = path, who, kubelet_dir
        self._fd: int | None = None
        self._directory_fd: int | None = None

    def try_acquire(self) -> bool:
        """Take the lock if nobody holds it. Raises NodeError if the file cannot be made or locked."""
        return self._why_not() is None

    def _why_not(self) -> str | None:
        """Take the lock. Returns what another one has of it, in words; None: it is ours."""
        if self._fd is not None:
            raise RuntimeError(f"{self._path} is already held by this object")
        fd = self._lock_file()
        if fd is None:
            return f"({self.holder()}) holds {self._path}"
        try:
            self._directory_fd = self._lock_directory()
        except BlockingIOError:
            os.close(fd)
            return (
                f"serves the kubelet of {self._kubelet_dir}, and has another --run-dir than {self._path.parent}: remove"
                " one of the two from this node"
            )
        self._fd = fd
        return None

    def _lock_file(self) -> int | None:
        """The locked file, with our name in it; None: another one has it. Raises NodeError."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o750)
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not os.path.samestat(os.fstat(fd), os.stat(self._path)):
                    raise FileNotFoundError  # deleted since it was opened: the next taker would lock another file
                holder = f"{socket.gethostname()} pid {os.getpid()}\n".encode()
                os.ftruncate(fd, 0)
                os.pwrite(fd, holder, 0)
            except BaseException:
                os.close(fd)
                raise
        except (BlockingIOError, FileNotFoundError):
            return None
        except OSError as error:
            raise NodeError(
                f"cannot lock {self._path}: {error.strerror}. {self._path.parent} must be a directory that"
                f" `{self._who}` may write to, and the same one for every `{self._who}` on this node"
            ) from error
        return fd

    def _lock_directory(self) -> int | None:
        """The locked directory; None: there is none, or it takes no lock. Raises BlockingIOError: another has it."""
        if self._kubelet_dir is None:
            return None
        try:
            fd = os.open(self._kubelet_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:  # the kubelet may come later; then the file is all that there is
            return None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            if isinstance(error, BlockingIOError):
                raise
            log.warning(
                "%s cannot be locked (%s): a second agent would not be noticed", self._kubelet_dir, error.strerror
            )
            return None
        return fd

    def acquire(self, stop: threading.Event, *, retry_s: float = 0.5) -> bool:
        """Wait until the lock is ours. False: `stop` was set first. Raises NodeError like `try_acquire`."""
        told = None
        while (why := self._why_not()) is not None:
            if why != told:
                log.warning("another %s %s; waiting until it ends", self._who, why)
                told = why
            if stop.wait(retry_s):
                return False
        return True

    def holder(self) -> str:
        """Who holds it, as they wrote it, for people: host name and process number; the host name is the pod's name."""
        try:
            return self._path.read_text(encoding="utf-8", errors="replace").strip() or "unnamed"
        except OSError:
            return "unnamed"

    def release(self) -> None:
        """Let go. The file stays: removing it would let two agents lock two files of one name."""
        for fd in (self._directory_fd, self._fd):
            if fd is not None:
                os.close(fd)
        self._directory_fd = self._fd = None
