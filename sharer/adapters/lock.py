"""One agent a node: an flock on a file, held for the life of the process.

Two agents that register one resource undo each other without a word from the kubelet: the old one's exit zeroes the
new one's slices (kubelet-contract §2.4, §17.7; bug case P11). The kernel lets go of the lock however the holder dies.
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

    def __init__(self, path: Path, who: str = "sharer agent") -> None:
        """`who` else may hold it, for messages."""
        self._path, self._who = path, who
        self._fd: int | None = None

    def try_acquire(self) -> bool:
        """Take the lock if nobody holds it. Raises NodeError if the file cannot be made or locked."""
        if self._fd is not None:
            raise RuntimeError(f"{self._path} is already held by this object")
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
            return False
        except OSError as error:
            raise NodeError(
                f"cannot lock {self._path}: {error.strerror}. {self._path.parent} must be a directory that"
                f" `{self._who}` may write to, and the same one for every `{self._who}` on this node"
            ) from error
        self._fd = fd
        return True

    def acquire(self, stop: threading.Event, *, retry_s: float = 0.5) -> bool:
        """Wait until the lock is ours. False: `stop` was set first. Raises NodeError like `try_acquire`."""
        told = False
        while not self.try_acquire():
            if not told:
                log.warning("another %s (%s) holds %s; waiting until it ends", self._who, self.holder(), self._path)
                told = True
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
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
