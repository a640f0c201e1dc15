"""The directories by which containers find a daemon, as the agent needs them: there before anything names them.

A container runtime makes a missing mount source without a word, as an empty directory that no daemon will ever know of
(runtime-facts §2). After a reboot the agent may be asked before `sharer mps` has run, so it makes them itself.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

from sharer.adapters.mps.directories import make
from sharer.core.errors import NodeError
from sharer.core.mps.state import folder_name


class MpsDirectories:
    """Implements core.mps.state.MpsPlaces. For one thread."""

    def __init__(self, mps_dir: Path, *, statvfs: Callable[[Path], os.statvfs_result] = os.statvfs) -> None:
        self._dir, self._statvfs = mps_dir, statvfs
        self._made: dict[str, Path] = {}

    def pipe(self, resource: str) -> str:
        """The directory that clients of a daemon's legacy interface mount. Raises NodeError."""
        pipe = self._made.get(resource)
        if pipe is None or not self.is_there(str(pipe)):
            pipe, _ = make(self._dir / folder_name(resource), owner=None)
            self._made[resource] = pipe
        if (why := self._why_silent(pipe)) is not None:
            raise NodeError(
                f"the directory {self._dir} cannot be used for MPS: its file system is {why}, so sharer mps cannot even"
                " say how its daemons are"
            )
        return str(pipe)

    def _why_silent(self, pipe: Path) -> str | None:
        """Why the supervisor, which is root, cannot write beside this directory; None: nothing is against it."""
        try:
            found = self._statvfs(pipe)
        except OSError:
            return None  # whoever mounts it will find out
        if found.f_flag & os.ST_RDONLY:
            return "read-only"
        return "full" if found.f_bfree == 0 or (found.f_files and found.f_ffree == 0) else None

    def is_there(self, path: str) -> bool:
        """Whether this is a directory, and no link to one."""
        try:
            return stat.S_ISDIR(os.lstat(path).st_mode)
        except OSError:
            return False
