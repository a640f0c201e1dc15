"""The folders of one daemon: `pipe`, which containers mount, and `log`. Made once, kept for ever.

Running containers hold their pipe directory by a bind mount, which goes stale if it is made anew: so only what is in it
is ever replaced. Clients of any user must be able to enter it; with 0700 a server under another user ends at once, over
and over (gpu-limits §3). Nothing is followed that is a symbolic link: we are root, and somebody else may not be.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from sharer.core.errors import NodeError

MODE = 0o755
MAX_DEPTH = 4  # of folders in a pipe directory: server, namespace
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
MAX_SOCKET_PATH_BYTES = 107  # sun_path of a unix socket address, less its final zero


def make(folder: Path, *, owner: int | None) -> tuple[Path, Path]:
    """The pipe and log directories in a daemon's folder, there and as they must be. Raises NodeError.

    `owner`: the user whose server writes the logs, where it is not root.
    """
    mps_dir = folder.parent  # which may be a link: it is the operator's, and nobody else's
    try:
        mps_dir.mkdir(parents=True, exist_ok=True)
        mode = stat.S_IMODE(mps_dir.stat().st_mode)
        if mode & MODE != MODE:
            mps_dir.chmod(mode | MODE)
    except OSError as error:
        raise NodeError(
            f"the directory {mps_dir} cannot be used for MPS: {error.strerror}; see that it can be written, or"
            " choose another with --mps-dir"
        ) from error
    pipe, log = folder / "pipe", folder / "log"
    for path in (folder, pipe, log):
        _make(path, owner=owner if path == log else None)
    if owner:
        _see_that_others_can_enter(folder)
    socket = pipe / "control"
    if len(os.fsencode(socket)) > MAX_SOCKET_PATH_BYTES:
        raise NodeError(
            f"{socket} is longer than the {MAX_SOCKET_PATH_BYTES} bytes that a socket's path may have; use a shorter"
            " --mps-dir, or a shorter resource name"
        )
    return pipe, log


def widen(pipe: Path) -> bool:
    """Open a directory that somebody has closed to other users. Returns whether it had to be. Raises NodeError."""
    return _make(pipe, owner=None)


def clear(pipe: Path) -> None:
    """Take away what a daemon that is gone has left in its pipe directory: sockets, files and links, no directory.

    Raises OSError. A container that has the directory mounted may change it meanwhile, so nothing is found by its path
    a second time: whoever put a link in the place of a folder would have us delete what it points at.
    """
    _clear(os.open(pipe, _FOLDER), 0)


def _clear(folder: int, depth: int) -> None:
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if not entry.is_dir(follow_symlinks=False):
                    os.unlink(entry.name, dir_fd=folder)
                elif depth < MAX_DEPTH:  # what is deeper is nothing that a daemon has made
                    _clear(os.open(entry.name, _FOLDER, dir_fd=folder), depth + 1)
    finally:
        os.close(folder)


def _make(path: Path, *, owner: int | None) -> bool:
    try:
        path.mkdir(mode=MODE, exist_ok=True)
        fd = os.open(path, _FOLDER)
        try:
            status = os.fstat(fd)
            mode = stat.S_IMODE(status.st_mode)
            wrong = mode & MODE != MODE
            if wrong:
                os.fchmod(fd, mode | MODE)
            if owner is not None and status.st_uid != owner and os.geteuid() == 0:
                os.fchown(fd, owner, -1)
        finally:
            os.close(fd)
    except OSError as error:
        why = "it is a symbolic link or a file" if _is_in_the_way(path) else error.strerror
        raise NodeError(f"the directory {path} cannot be used for MPS: {why}") from error
    return wrong


def _see_that_others_can_enter(folder: Path) -> None:
    """A server that is not root's comes to its sockets by their whole path. Raises NodeError."""
    for path in folder.parents:
        if not path.stat().st_mode & stat.S_IXOTH:
            raise NodeError(
                f"an MPS server that is not root cannot enter {path}: chmod o+x it, or choose another --mps-dir"
            )


def _is_in_the_way(path: Path) -> bool:
    try:
        return not stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False
