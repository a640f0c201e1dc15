"""Small files, written whole or not at all, and read with a bound."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from typing import BinaryIO

MAX_BYTES = 4 * 2**20  # 4,000 slices make about 0.5 MB


def write_whole(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    """Put the content in place by temporary file and rename, so that nobody sees half of it. Raises OSError.

    The content is on the disk before the name is: after a power cut there is the old file or the new one.
    """
    new = path.with_name(f".{path.name}.new")  # always the same: a kill in the middle leaves no second one
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with open(new, "wb", opener=lambda name, _: os.open(name, flags, mode)) as file:
            os.fchmod(file.fileno(), mode)  # whatever the umask
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, path)
    except OSError:
        with contextlib.suppress(OSError):
            new.unlink()
        raise


def read_bounded(path: Path, *, most_bytes: int = MAX_BYTES) -> bytes | None:
    """The content of a regular file; None: there is none, or it is larger than anything of ours. Raises OSError."""
    try:
        file = open_regular(path)
    except FileNotFoundError:
        return None
    if file is None:
        return None
    with file:
        content = file.read(most_bytes + 1)
    return content if len(content) <= most_bytes else None


def open_regular(path: Path) -> BinaryIO | None:
    """A regular file to read; None: something else is there. Raises OSError, also for a link.

    Nothing is waited for: opening a pipe would, until somebody writes into it.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        return None
    return open(fd, "rb")
