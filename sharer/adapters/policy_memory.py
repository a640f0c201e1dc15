"""The policy that was accepted last, kept in RUN_DIR: what a node follows after a restart until it knows better.

The file carries the digest of its text, so that half a file, or a text that somebody edited, is not taken for a policy
(bug case P32). What is damaged is set aside with one line in the log; a missing file is nothing special.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
from pathlib import Path

from sharer.core.ports.policy import PolicyText

FILE_NAME = "policy-last-good.yaml"
MAX_BYTES = 2**20 + 4096  # a policy's text and the line above it
_HEAD = b"# sharer, sha256 "  # a comment, so that the file is a policy for people and for `sharer policy check`

_log = logging.getLogger(__name__)


class LastGoodPolicy:
    """Implements core.ports.policy.PolicyMemory. One writer: whoever holds the agent's lock."""

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / FILE_NAME
        self._kept: str | None = None  # the digest of what is in the file
        self._problem: str | None = None  # why nothing can be kept

    def keep(self, good: PolicyText) -> None:
        """Store by temporary file and rename, so that a reader never sees half of it. Nothing, if it is stored."""
        if good.digest == self._kept:
            return
        new = self._path.with_name(f".{FILE_NAME}.new")  # always the same: a kill in the middle leaves no second one
        source = good.source.replace("\n", " ")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o750)
            try:
                with open(new, "wb", opener=_private) as file:
                    file.write(_HEAD + f"{good.digest} {source}\n".encode(errors="replace") + good.text)
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(new, self._path)
            except OSError:
                with contextlib.suppress(OSError):
                    new.unlink()
                raise
        except OSError as error:
            if error.strerror != self._problem:
                _log.warning(
                    "the last good policy cannot be kept in %s: %s; until it can, a restart with a wrong policy goes"
                    " back to an older one, or offers nothing new",
                    self._path,
                    error.strerror,
                )
            self._problem = error.strerror
            return
        if self._problem is not None:
            _log.info("the last good policy is kept in %s again", self._path)
        self._kept, self._problem = good.digest, None

    def last_good(self) -> PolicyText | None:
        """The text kept last; None if there is none or it is damaged."""
        try:
            with self._path.open("rb") as file:
                content = file.read(MAX_BYTES + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            _log.warning("the last good policy %s cannot be read: %s; going on without", self._path, error.strerror)
            return None
        head, _, text = content.partition(b"\n")
        digest, _, source = head.removeprefix(_HEAD).decode(errors="replace").partition(" ")
        if head.startswith(_HEAD) and hashlib.sha256(text).hexdigest() == digest:
            self._kept = digest
            return PolicyText(source=source, text=text, digest=digest)
        aside = self._path.with_name(f"{FILE_NAME}.damaged")
        try:
            os.replace(self._path, aside)
            done = f"set aside as {aside}"
        except OSError as error:
            done = f"left where it is ({error.strerror})"
        _log.warning("the last good policy %s is damaged: %s; going on without", self._path, done)
        return None


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
