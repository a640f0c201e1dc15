"""Pod cgroups: which exist, and whether a process lives in them.

Works on cgroup v2, v1 and hybrid hosts, with the cgroupfs and the systemd driver and below any `cgroupRoot`
(runtime-facts §5 to §7). A pod's cgroup is populated as long as its sandbox lives, and is gone a second after it; a
directory that vanishes while it is looked at has nobody in it. Anything else that cannot be read is no news at all: a
pod that is left out would be taken for dead.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from sharer.core.cgroup_names import is_class, is_kubelet, is_kubepods, pod_uid
from sharer.core.errors import NodeError
from sharer.core.evidence import CgroupReading
from sharer.core.ports import Watcher

MAX_DEPTH = 4  # of the kubepods folder below the root: /kubelet.slice/kubelet-kubepods.slice
MAX_INNER_DEPTH = 32  # of the cgroups in a pod's that are searched for a process; a container may make its own
_GONE = (errno.ENOENT, errno.ENODEV)  # of a directory that was removed; the second from a file that was open


class Cgroups:
    """The cgroup tree as this process sees the host's. For one thread. Implements core.ports.CgroupSource."""

    def __init__(self, root: Path, watcher: Watcher) -> None:
        """`root` is where the host's /sys/fs/cgroup is seen."""
        self._root = str(root)
        self._watcher = watcher
        self._folders_of: dict[str, list[str]] = {}  # by pod UID, as found last
        self._inhabited: dict[str, str] = {}  # version 1: by pod folder, the one in it that had a process last time
        self._followed: dict[str, Callable[[], None]] = {}  # by folder: what ends it

    def read(self) -> CgroupReading:
        """Every pod cgroup. Raises NodeError if they cannot be read: then nothing is known."""
        found: dict[str, list[str]] = {}
        try:
            trees = self._trees()
            for tree in trees:
                for uid, folder in _pods(tree):
                    found.setdefault(uid, []).append(folder)
            populated = {uid: any(map(self._is_populated, folders)) for uid, folders in found.items()}
            pods = {folder for folders in found.values() for folder in folders}
            self._inhabited = {pod: leaf for pod, leaf in self._inhabited.items() if pod in pods}
        except OSError as error:
            raise NodeError(
                f"the cgroups of pods cannot be read: {error.filename}: {os.strerror(error.errno or 0)}"
            ) from error
        if not trees:
            raise NodeError(
                f"no pod cgroup can be found below {self._root}: no hierarchy has a kubepods folder. Is the host's"
                " /sys/fs/cgroup mounted there (--cgroup-root)?"
            )
        self._folders_of = found
        return CgroupReading(populated=populated)

    def follow(self, uids: Collection[str], changed: Callable[[], None]) -> None:
        """Call `changed`, on the watcher's thread, when a container's folder comes or goes, and once per new pod."""
        wanted = {folder for uid in uids for folder in self._folders_of.get(uid, ())}
        for folder in self._followed.keys() - wanted:
            self._followed.pop(folder)()
        for folder in wanted - self._followed.keys():
            self._followed[folder] = self._watcher.subscribe(folder, _at_changes(folder, changed))

    def _is_populated(self, pod: str) -> bool:
        """Whether a process lives in a pod's cgroup or below it. Raises OSError if that cannot be told."""
        events = _read(f"{pod}/cgroup.events")
        if events is not None:
            return b"populated 1" in events
        # Version 1 has no such file, and a search costs five times as much; so look where somebody lived last time.
        if pod not in self._inhabited or not _has_processes(self._inhabited[pod]):
            self._inhabited.pop(pod, None)
            if (inhabited := _inhabited(pod)) is not None:
                self._inhabited[pod] = inhabited
        return pod in self._inhabited

    def _trees(self) -> list[str]:
        """The kubepods folders of the hierarchy that tells who lives: cgroup2's if pods are in it, else one of v1."""
        for unified in (self._root, f"{self._root}/unified"):
            if os.path.exists(f"{unified}/cgroup.controllers") and (found := list(_kubepods(unified))):
                return found
        for controller in ("systemd", "pids", "memory", "cpu"):
            if found := list(_kubepods(f"{self._root}/{controller}")):
                return found
        return []


def _at_changes(folder: str, changed: Callable[[], None]) -> Callable[[], None]:
    """Calls `changed` if there are more or fewer folders in this one than last time, or it is gone; and at first.

    The watcher calls every second, and to read 250 pods and settle 2,000 slices for it was half of an idle agent's
    work. At first, because the folder may have changed since it was read.
    """
    known: tuple[int, int] | None = (0, 0)

    def compare() -> None:
        nonlocal known
        before, known = known, _shape(folder)
        if known != before:
            changed()

    return compare


def _shape(folder: str) -> tuple[int, int] | None:
    """Which folder this is and how many are in it (its times do not tell on cgroupfs); None: it is gone."""
    try:
        status = os.stat(folder)
    except OSError:
        return None
    return status.st_ino, status.st_nlink


def _kubepods(folder: str, depth: int = MAX_DEPTH) -> Iterator[str]:
    """Every kubepods folder of a hierarchy; none below another. Deeper than one level only below the kubelet's own."""
    for name in _folders(folder):
        if is_kubepods(name):
            yield f"{folder}/{name}"
        elif depth > 1 and (depth == MAX_DEPTH or is_kubelet(name)):
            yield from _kubepods(f"{folder}/{name}", depth - 1)


def _pods(kubepods: str) -> Iterator[tuple[str, str]]:
    for name in _folders(kubepods):
        if (uid := pod_uid(name)) is not None:
            yield uid, f"{kubepods}/{name}"
        elif is_class(name):
            yield from _pods(f"{kubepods}/{name}")


def _inhabited(cgroup: str, depth: int = MAX_INNER_DEPTH) -> str | None:
    """A cgroup with a process, this one or one below it; None: there is none. They are in the leaves, as a rule.

    What is too deep to be searched counts as inhabited: the kubelet removes all of it at the pod's end.
    """
    if depth == 0:
        return cgroup
    below = (_inhabited(f"{cgroup}/{name}", depth - 1) for name in _folders(cgroup))
    return next((one for one in below if one is not None), None) or (cgroup if _has_processes(cgroup) else None)


def _has_processes(cgroup: str) -> bool:
    return bool((_read(f"{cgroup}/cgroup.procs") or b"").strip())


def _read(path: str) -> bytes | None:
    """A small file's content; None: there is none, or not any more."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(file, 4096)
        finally:
            os.close(file)
    except OSError as error:
        if error.errno in _GONE:
            return None
        raise OSError(error.errno, error.strerror, path) from error


def _folders(path: str) -> list[str]:
    """The names of the folders in a folder; none: it is not there, or not any more."""
    try:
        if os.stat(path).st_nlink == 2:  # its own name and "."; each folder in it would add its ".."
            return []
        with os.scandir(path) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError as error:
        if error.errno in (*_GONE, errno.ENOTDIR):
            return []
        raise
