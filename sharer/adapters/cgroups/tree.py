"""What kind of cgroup hierarchy it is, where pods are in it, and how its files and folders are read.

Works on cgroup v2, v1 and hybrid hosts, with the cgroupfs and the systemd driver and below any `cgroupRoot`
(runtime-facts §5 to §7). A directory that vanishes while it is looked at is empty; anything else that cannot be read
raises OSError. Folders are never followed through a link.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from sharer.core.cgroup_names import is_class, is_kubelet, is_kubepods, pod_uid

MAX_DEPTH = 4  # of the kubepods folder below the root: /kubelet.slice/kubelet-kubepods.slice
GONE = (errno.ENOENT, errno.ENODEV)  # of a directory that was removed; the second from a file that was open
_START_BYTES = 4096


def cgroup_version(root: Path) -> str | None:
    """How the host's cgroups are mounted: "v2", "v1", "hybrid" (v1 with a v2 beside it); None: not seen at `root`."""
    if os.path.exists(root / "cgroup.controllers"):
        return "v2"
    if os.path.exists(root / "unified"):
        return "hybrid"
    return "v1" if os.path.exists(root / "memory") else None


def find_trees(root: str) -> list[str]:
    """The kubepods folders of the hierarchy that tells about pods: cgroup2's if pods are in it, else one of v1."""
    for unified in (root, f"{root}/unified"):
        if os.path.exists(f"{unified}/cgroup.controllers") and (found := list(_kubepods(unified))):
            return found
    for controller in ("systemd", "pids", "memory", "cpu"):
        if found := list(_kubepods(f"{root}/{controller}")):
            return found
    return []


def homes(trees: list[str]) -> Iterator[str]:
    """The folders that pods come in: each kubepods folder, and after it those of its classes."""
    for tree in trees:
        yield tree
        yield from (f"{tree}/{name}" for name in folders(tree) if is_class(name))


def pods(trees: list[str]) -> Iterator[tuple[str, str]]:
    """Every pod's UID and cgroup. A pod may have several, where a driver left some behind."""
    for home in homes(trees):
        for name in folders(home):
            if (uid := pod_uid(name)) is not None:
                yield sys.intern(uid), sys.intern(f"{home}/{name}")  # several keep them: of 250 pods 0.3 MiB


def is_populated(cgroup: str) -> bool | None:
    """Whether a process lives in a cgroup or below it; None: there is nothing that tells, as on version 1."""
    events = read_start(f"{cgroup}/cgroup.events")
    return None if events is None else b"populated 1" in events


def first_process(cgroup: str) -> bytes | None:
    """The number of a process that is directly in a cgroup; None: there is none."""
    return next(iter((read_start(f"{cgroup}/cgroup.procs") or b"").split()), None)


def read_start(path: str) -> bytes | None:
    """What one read gives of a file; None: there is none, or not any more."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(file, _START_BYTES)
        finally:
            os.close(file)
    except OSError as error:
        if error.errno in GONE:
            return None
        raise OSError(error.errno, error.strerror, path) from error


def folders(path: str) -> list[str]:
    """The names of the folders in a folder, sorted; none: it is not there, or not any more."""
    try:
        if os.stat(path).st_nlink == 2:  # its own name and "."; each folder in it would add its ".."
            return []
        with os.scandir(path) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError as error:
        if error.errno in (*GONE, errno.ENOTDIR):
            return []
        raise


def folders_or_none(path: str) -> list[str]:
    """As `folders`; what cannot be read is empty."""
    try:
        return folders(path)
    except OSError:
        return []


def shape(folder: str) -> object:
    """What changes when a folder in this one comes or goes, or it is another one itself; None: it is gone.

    Their number, which a file system counts in the links or not at all; cgroupfs' times do not tell.
    """
    try:
        status = os.stat(folder)
    except OSError:
        return None
    return status.st_ino, status.st_nlink if status.st_nlink > 1 else tuple(folders_or_none(folder))


def _kubepods(folder: str, depth: int = MAX_DEPTH) -> Iterator[str]:
    """Every kubepods folder of a hierarchy; none below another. Deeper than one level only below the kubelet's own."""
    for name in folders(folder):
        if is_kubepods(name):
            yield f"{folder}/{name}"
        elif depth > 1 and (depth == MAX_DEPTH or is_kubelet(name)):
            yield from _kubepods(f"{folder}/{name}", depth - 1)
