"""New lines of a daemon's logs, and what they tell of faults.

The words are those of public logs of drivers 510 to 615; a driver that says it otherwise is only less well explained.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import BinaryIO

from sharer.adapters.mps.files import open_regular, write_whole

MAX_BYTES = 256 * 2**10  # of one log and look; of more, the end
MAX_LOG_BYTES = 8 * 2**20  # on the disk; a daemon logs each question, some 10 MB a day, and never cuts its logs
KEPT_BYTES = 2**20  # of a log that is cut
CUT = ".old"  # beside a log: what was the end of it when it was cut last
_BLOCK_BYTES = 512  # as stat counts
_LINE = re.compile(r"\[[^\]]*?(?:Control|Other|Server|Legacy Server)\s+(?:\d+\s*)+\] (?P<text>.*)")
_ERROR = re.compile(
    r"(?i)failed to|fatal|error|no CUDA-capable device|cannot|permission denied|exited with status [1-9]|not permitted"
)
_FATAL = re.compile(r"(?i)fatal exception|was terminated due to|illegal address|FAULT state")
_NEWCOMER = re.compile(r"NEW CLIENT (\d+) from user \d+")
_LET_IN = re.compile(r"(?i)client \{?(?:PID: )?(\d+)[^}]*\}? connected")


class LogReader:
    """Reads what was added to some files since the last time, and cuts those that have become too long."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._files = tuple(files)
        self._places: dict[Path, tuple[int, int]] = {}  # inode and offset

    def skip(self) -> None:
        """What is in them now is old."""
        for path in self._files:
            try:
                status = os.stat(path)
            except OSError:
                self._places.pop(path, None)
            else:
                self._places[path] = (status.st_ino, status.st_size)

    def lines(self) -> list[str]:
        """The new lines, without their times. A log that was put aside or cut is read from its beginning."""
        return [line for path in self._files for line in self._new(path)]

    def _new(self, path: Path) -> list[str]:
        try:
            file = open_regular(path)  # where its owner is not root, that user could have put something else there
            if file is None:
                return []
            with file:
                status = os.fstat(file.fileno())
                inode, offset = self._places.get(path, (status.st_ino, 0))
                if inode != status.st_ino or offset > status.st_size:
                    offset = 0
                file.seek(max(offset, status.st_size - MAX_BYTES))
                content = file.read(MAX_BYTES)
                end = file.tell()
                if status.st_blocks * _BLOCK_BYTES > MAX_LOG_BYTES:
                    _cut(path, file)
        except OSError:
            return []  # not written yet
        whole, newline, _ = content.rpartition(b"\n")
        self._places[path] = (status.st_ino, end - (len(content) - len(whole) - len(newline)))
        return [_without_time(line) for line in whole.decode(errors="replace").splitlines()]


def first_error(lines: Iterable[str]) -> str | None:
    """The first line that tells of an error; None: none does."""
    return next((line for line in lines if _ERROR.search(line)), None)


def fatal(lines: Iterable[str]) -> str | None:
    """The last line that tells of a fault which others suffer from too; None: none does."""
    return next((line for line in reversed(list(lines)) if _FATAL.search(line)), None)


def newcomers(lines: Iterable[str]) -> list[int]:
    """The PIDs of clients that asked to be let in. A daemon in a PID namespace of its own calls them all 0."""
    return [int(found[1]) for line in lines if (found := _NEWCOMER.search(line)) and found[1] != "0"]


def let_in(lines: Iterable[str]) -> list[int]:
    """The PIDs of clients that a server says it has let in."""
    return [int(found[1]) for line in lines if (found := _LET_IN.search(line))]


def _cut(path: Path, log: BinaryIO) -> None:
    """Empty a log that its writer has open, and keep the end of it in another file. Raises OSError.

    A writer that does not append goes on where it was: then the log seems as long as before, and begins with a hole.
    """
    log.seek(-KEPT_BYTES, os.SEEK_END)
    with contextlib.suppress(OSError):  # it is more important that the disk does not fill up
        write_whole(path.with_name(path.name + CUT), log.read(KEPT_BYTES))
    fd = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.ftruncate(fd, 0)
    finally:
        os.close(fd)


def _without_time(line: str) -> str:
    line = line.strip("\0").strip()  # a log that was cut may begin with a hole
    found = _LINE.fullmatch(line)
    return line if found is None else found["text"]
