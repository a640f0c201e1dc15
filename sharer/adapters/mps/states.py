"""`--mps-dir/<resource>/state.json`: what was seen of each daemon. `sharer mps` writes it, the agent reads it.

The two may be of different versions for a while: fields that are not known are left out, and what cannot be
understood is as good as missing, since a state counts for seconds only.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from pathlib import Path

from sharer.adapters.mps.files import read_bounded, write_whole
from sharer.core.errors import NodeError
from sharer.core.mps.state import MpsState, folder_name

FILE_NAME = "state.json"
MAX_RESOURCES = 256  # folders that are looked at; a node has a handful


class MpsStateFiles:
    """Implements core.mps.state.MpsStates."""

    def __init__(self, mps_dir: Path) -> None:
        """`mps_dir` may be missing, and may come later."""
        self._dir = mps_dir
        self._lock = threading.Lock()
        self._read: dict[str, tuple[tuple[int, int, int], MpsState | None]] = {}  # by folder: the file's mark

    def read(self) -> Mapping[str, MpsState]:
        """The last state of each daemon, by resource; a file that did not change is not read again."""
        with self._lock:
            try:
                folders = sorted(entry.name for entry in os.scandir(self._dir) if entry.is_dir(follow_symlinks=False))
            except OSError:
                folders = []  # none made yet, or out of reach: nothing is said of any daemon
            self._read = {name: found for name in folders[:MAX_RESOURCES] if (found := self._look(name)) is not None}
            states = [state for _, state in self._read.values() if state is not None]
        return {state.resource: state for state in states}

    def write(self, state: MpsState) -> None:
        """Put a daemon's state in place; its folder is there. Raises NodeError."""
        from sharer.adapters.mps.state_text import to_text

        path = self._dir / folder_name(state.resource) / FILE_NAME
        try:
            write_whole(path, to_text(state))
        except OSError as error:
            raise NodeError(
                f"{path} cannot be written: {error.strerror}; the agent will call these slices unhealthy"
            ) from error

    def remove(self, resource: str) -> None:
        """Say nothing of a daemon any more. Raises NodeError."""
        path = self._dir / folder_name(resource) / FILE_NAME
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise NodeError(f"{path} cannot be removed: {error.strerror}") from error

    def _look(self, folder: str) -> tuple[tuple[int, int, int], MpsState | None] | None:
        path = self._dir / folder / FILE_NAME
        try:
            status = os.lstat(path)
            mark = (status.st_ino, status.st_mtime_ns, status.st_size)
            known = self._read.get(folder)
            if known is not None and known[0] == mark:
                return known
            text = read_bounded(path)
        except OSError:
            return None
        if text is None:
            return mark, None
        from sharer.adapters.mps.state_text import from_text  # only where there is MPS: the start is measured

        return mark, from_text(text, folder)
