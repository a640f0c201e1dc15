"""Memory limits of cgroups as a driver of r615 and newer has them (gpu-limits §2), on cgroups that are real folders.

The driver has one of two backends. `dmem`, the kernel's: parents limit their children, a reservation (soft limit) is
added to every cgroup above and stays there when the cgroup is removed, and a cgroup has no limits at all unless the
one above it enabled the controller. `misc`, the driver's own: a flat list, of which the nearest cgroup with a limit
counts, and a question about one without is answered "not supported".

The C library in `tests/fakes/nvml` does the same in C.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

LIMIT_MAX = 2**64 - 1  # NVML_DEVICE_MEMORY_LIMIT_MAX
_SUCCESS, _INVALID_ARGUMENT, _NOT_SUPPORTED, _NOT_FOUND, _OPERATING_SYSTEM = 0, 2, 3, 6, 17


class LimitBackend(IntEnum):
    """Where a driver keeps its limits."""

    NONE = 0  # an older driver: no limits
    DMEM = 1
    MISC = 2


@dataclass(slots=True)
class LimitEntry:
    """What is known of one cgroup on one GPU."""

    inode: int  # of its folder: another folder of the same name is another cgroup
    soft_bytes: int = 0
    hard_bytes: int = LIMIT_MAX
    used_bytes: int = 0  # by its own processes

    @property
    def is_limited(self) -> bool:
        """Whether there is a limit."""
        return (self.soft_bytes, self.hard_bytes) != (0, LIMIT_MAX)


class CgroupLimits:
    """The limits of one driver. Not locked."""

    def __init__(self, backend: LimitBackend) -> None:
        self._backend = backend
        self._entries: dict[str, dict[str, LimitEntry]] = {}  # by GPU, then by path

    def set(self, uuid: str, path: str, soft_bytes: int, hard_bytes: int, total_bytes: int) -> int:
        """What nvmlDeviceSetMemoryLimits_v1 does and returns."""
        try:
            return self._set(uuid, path, soft_bytes, hard_bytes, total_bytes)
        except FileNotFoundError:  # removed just now
            return _OPERATING_SYSTEM

    def get(self, uuid: str, path: str) -> tuple[int, int, int, int]:
        """What nvmlDeviceGetMemoryLimits_v1 returns, and soft limit, hard limit and use."""
        try:
            return self._get(uuid, path)
        except FileNotFoundError:
            return _OPERATING_SYSTEM, 0, 0, 0

    def _set(self, uuid: str, path: str, soft_bytes: int, hard_bytes: int, total_bytes: int) -> int:
        if self._backend is LimitBackend.NONE:
            return _NOT_SUPPORTED
        if not os.path.isdir(path):
            return _OPERATING_SYSTEM
        if soft_bytes > hard_bytes or (hard_bytes != LIMIT_MAX and hard_bytes > total_bytes):
            return _INVALID_ARGUMENT
        if self._backend is LimitBackend.DMEM and not has_dmem(path):
            return _NOT_FOUND
        entry = self.entry(uuid, path)
        if self._backend is LimitBackend.DMEM:
            for above in ancestors(path):
                reserved = self.entry(uuid, above)
                reserved.soft_bytes = max(0, reserved.soft_bytes + soft_bytes - entry.soft_bytes)
        entry.soft_bytes, entry.hard_bytes = soft_bytes, hard_bytes
        return _SUCCESS

    def _get(self, uuid: str, path: str) -> tuple[int, int, int, int]:
        if self._backend is LimitBackend.NONE:
            return _NOT_SUPPORTED, 0, 0, 0
        if not os.path.isdir(path):
            return _OPERATING_SYSTEM, 0, 0, 0
        if self._backend is LimitBackend.DMEM and not has_dmem(path):
            return _NOT_FOUND, 0, 0, 0
        entry = self.entry(uuid, path)
        if self._backend is LimitBackend.MISC and not entry.is_limited:
            return _NOT_SUPPORTED, 0, 0, 0
        used_bytes = used_below(self._backend, self.living(uuid), path)
        return _SUCCESS, entry.soft_bytes, entry.hard_bytes, used_bytes

    def entry(self, uuid: str, path: str) -> LimitEntry:
        """What is known of a cgroup that exists."""
        entries, inode = self._entries.setdefault(uuid, {}), os.stat(path).st_ino
        if path not in entries or entries[path].inode != inode:
            entries[path] = LimitEntry(inode)
        return entries[path]

    def living(self, uuid: str) -> dict[str, LimitEntry]:
        """The cgroups that exist, by path. The others end with their folders."""
        entries = self._entries.setdefault(uuid, {})
        for path, entry in list(entries.items()):
            if not is_alive(path, entry.inode):
                del entries[path]
        return entries


def has_dmem(path: str) -> bool:
    """Whether a cgroup has the files of the controller: the one above it must have enabled it."""
    if os.path.exists(f"{path}/dmem.max"):
        return True
    try:
        enabled = Path(path).parent.joinpath("cgroup.subtree_control").read_text()
    except OSError:
        return False
    return "dmem" in enabled.split()


def ancestors(path: str) -> Iterator[str]:
    """The cgroups above, nearest first, without the root of the tree, which has no limits."""
    above = os.path.dirname(path)
    while all(os.path.exists(f"{one}/cgroup.subtree_control") for one in (above, os.path.dirname(above))):
        yield above
        above = os.path.dirname(above)


def is_alive(path: str, inode: int) -> bool:
    """Whether this very cgroup exists."""
    try:
        return os.stat(path).st_ino == inode
    except OSError:
        return False


def used_below(backend: LimitBackend, entries: Mapping[str, LimitEntry], path: str) -> int:
    """The use that counts against a cgroup's limit."""
    below = {one: entry for one, entry in entries.items() if one == path or one.startswith(f"{path}/")}
    if backend is LimitBackend.MISC:
        below = {one: entry for one, entry in below.items() if _nearest_limited(entries, one) == path}
    return sum(entry.used_bytes for entry in below.values())


def fits(backend: LimitBackend, entries: Mapping[str, LimitEntry], path: str, amount_bytes: int) -> bool:
    """Whether the driver would let a process in this cgroup allocate so much more."""
    limiting = [one for one in (path, *_above(path)) if one in entries and entries[one].hard_bytes != LIMIT_MAX]
    if backend is LimitBackend.MISC:
        limiting = limiting[:1]
    return all(used_below(backend, entries, one) + amount_bytes <= entries[one].hard_bytes for one in limiting)


def _nearest_limited(entries: Mapping[str, LimitEntry], path: str) -> str | None:
    return next((one for one in (path, *_above(path)) if one in entries and entries[one].is_limited), None)


def _above(path: str) -> Iterator[str]:
    above = os.path.dirname(path)
    while above != "/":
        yield above
        above = os.path.dirname(above)
