"""Where the policy's text comes from: a file, or the directory of a mounted ConfigMap. And the last good one."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import tempfile
from pathlib import Path

from sharer.core.errors import NodeError
from sharer.core.ports import PolicyText

MAX_TEXT_BYTES = 2**20  # a ConfigMap is at most 1 MiB
DEFAULT_KEYS = ("default", "default.yaml", "default.yml")
LAST_GOOD = "policy-last-good.yaml"

_log = logging.getLogger(__name__)


class PolicyFile:
    """A policy on this machine. Read whole at each call: kubelet swaps a mounted ConfigMap by a symlink."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def wanted(self) -> PolicyText:
        """The text that is wanted now. Raises NodeError, naming every place that was looked at."""
        path = self._path
        if path is None:
            raise NodeError("no policy is named, so no slice is offered; name one with --policy")
        if path.is_dir():
            candidates = [path / key for key in DEFAULT_KEYS]
            path = next((candidate for candidate in candidates if candidate.is_file()), candidates[0])
        try:
            return _read(path, str(path))
        except OSError as error:
            where = f"{path} (or default.yaml beside it)" if path != self._path else str(path)
            reason = os.strerror(error.errno or 0)
            raise NodeError(f"policy {where} cannot be read: {reason}; create it, or correct --policy") from error


class LastGoodPolicy:
    """The text accepted last, in RUN_DIR. It may be missing or damaged: then there is none."""

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / LAST_GOOD

    def keep(self, good: PolicyText) -> None:
        """Store by temporary file and rename, so that a reader never sees half of it."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o750)
            handle, name = tempfile.mkstemp(dir=self._path.parent, prefix=f".{LAST_GOOD}.")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(good.text)
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(name, self._path)
            except OSError:
                with contextlib.suppress(OSError):
                    os.unlink(name)
                raise
        except OSError as error:
            _log.warning(
                "the last good policy cannot be kept in %s: %s; a restart with a wrong policy will offer nothing",
                self._path,
                error.strerror,
            )

    def last_good(self) -> PolicyText | None:
        """The text kept last; None if there is none or it cannot be read."""
        try:
            return _read(self._path, str(self._path))
        except (OSError, NodeError):
            return None


def _read(path: Path, source: str) -> PolicyText:
    with path.open("rb") as file:
        text = file.read(MAX_TEXT_BYTES + 1)
    if len(text) > MAX_TEXT_BYTES:
        raise NodeError(f"policy {source} is larger than {MAX_TEXT_BYTES} bytes, more than a ConfigMap holds")
    return PolicyText(source=source, text=text, digest=hashlib.sha256(text).hexdigest())
