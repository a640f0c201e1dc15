"""`--mps-dir/<resource>/state.json`: what was seen of each daemon. `sharer mps` writes it, the agent reads it.

The two may be of different versions for a while: fields that are not known are left out, and what cannot be
understood is as good as missing, since a state counts for seconds only.

A state is dated by the wall clock, which both have. A host's is set, as in the first minutes after a boot, and that
says nothing about a daemon: so whoever has seen a file change counts its age by a clock that nobody sets.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from sharer.adapters.mps.files import read_bounded, write_whole
from sharer.core.errors import NodeError
from sharer.core.mps.state import MpsState, folder_name

FILE_NAME = "state.json"
MAX_RESOURCES = 256  # folders that are looked at; a node has a handful
_STEP_S = 1.0  # by so much a date must be wrong before the clock counts as set


@dataclass(slots=True)
class _Seen:
    """A file as it was last looked at."""

    mark: tuple[int, int, int]  # another one for another content
    state: MpsState | None  # None: there is none in it
    written_s: float  # as the monotonic clock has it
    looked_s: float


class MpsStateFiles:
    """Implements core.mps.state.MpsStates."""

    def __init__(
        self,
        mps_dir: Path,
        *,
        now_s: Callable[[], float] = time.monotonic,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        """`mps_dir` may be missing, and may come later. `wall_s` is Unix time, by which the states are dated."""
        self._dir, self._now_s, self._wall_s = mps_dir, now_s, wall_s
        self._lock = threading.Lock()
        self._read: dict[str, _Seen] = {}  # by folder

    def read(self) -> Mapping[str, MpsState]:
        """The last state of each daemon, by resource; a file that did not change is not read again."""
        with self._lock:
            try:
                folders = sorted(entry.name for entry in os.scandir(self._dir) if entry.is_dir(follow_symlinks=False))
            except OSError:
                folders = []  # none made yet, or out of reach: nothing is said of any daemon
            now_s, wall_s = self._now_s(), self._wall_s()
            looks = {name: self._look(name, now_s, wall_s) for name in folders[:MAX_RESOURCES]}
            self._read = {name: seen for name, seen in looks.items() if seen is not None}
            states = [state for seen in self._read.values() if (state := _dated(seen, now_s, wall_s)) is not None]
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

    def _look(self, folder: str, now_s: float, wall_s: float) -> _Seen | None:
        path = self._dir / folder / FILE_NAME
        try:
            status = os.lstat(path)
            mark = (status.st_ino, status.st_mtime_ns, status.st_size)
            known = self._read.get(folder)
            if known is not None and known.mark == mark:
                known.looked_s = now_s
                return known
            text = read_bounded(path)
        except OSError:
            return None
        state = None
        if text is not None:
            from sharer.adapters.mps.state_text import from_text  # only where there is MPS: the start is measured

            state = from_text(text, folder)
        age_s = 0.0 if state is None else wall_s - state.written_at_s
        written_s = now_s - abs(age_s) if known is None else max(known.looked_s, now_s - max(0.0, age_s))
        return _Seen(mark, state, written_s, now_s)


def _dated(seen: _Seen, now_s: float, wall_s: float) -> MpsState | None:
    """The state in a file with a date by the wall clock as it is now, if that was set since it was written."""
    state, written_at_s = seen.state, wall_s - (now_s - seen.written_s)
    if state is None or abs(state.written_at_s - written_at_s) <= _STEP_S:
        return state
    return replace(state, written_at_s=written_at_s)
