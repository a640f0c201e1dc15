"""Pod cgroups: which exist, and whether a process lives in them.

A pod's cgroup is populated as long as its sandbox lives, and is gone a second after it; a directory that vanishes while
it is looked at has nobody in it. Anything else that cannot be read is no news at all: a pod that is left out would be
taken for dead.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from pathlib import Path

from sharer.adapters.cgroups import tree
from sharer.core.errors import NodeError
from sharer.core.holders.evidence import CgroupReading
from sharer.core.ports.watch import Watcher

MAX_INNER_DEPTH = 32  # of the cgroups in a pod's that are searched for a process; a container may make its own


class Cgroups:
    """The cgroup tree as this process sees the host's. For one thread. Implements core.ports.holders.CgroupSource."""

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
            trees = tree.find_trees(self._root)
            for uid, folder in tree.pods(trees):
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
            self._followed[folder] = self._watcher.subscribe(folder, _AtChanges(folder, changed))

    def _is_populated(self, pod: str) -> bool:
        """Whether a process lives in a pod's cgroup or below it. Raises OSError if that cannot be told."""
        if (populated := tree.is_populated(pod)) is not None:
            return populated
        # Version 1 has no such file, and a search costs five times as much; so look where somebody lived last time.
        if pod not in self._inhabited or tree.first_process(self._inhabited[pod]) is None:
            self._inhabited.pop(pod, None)
            if (inhabited := _inhabited(pod)) is not None:
                self._inhabited[pod] = inhabited
        return pod in self._inhabited


class _AtChanges:
    """Calls `changed` if there are more or fewer folders in this one than last time, or it is gone; and at first.

    The watcher calls every second, and to read 250 pods and settle 2,000 slices for it was half of an idle agent's
    work. At first, because the folder may have changed since it was read.
    """

    __slots__ = ("_changed", "_folder", "_known")

    def __init__(self, folder: str, changed: Callable[[], None]) -> None:
        self._folder, self._changed = folder, changed
        self._known: object = ()

    def __call__(self) -> None:
        before, self._known = self._known, tree.shape(self._folder)
        if self._known != before:
            self._changed()


def _inhabited(cgroup: str, depth: int = MAX_INNER_DEPTH) -> str | None:
    """A cgroup with a process, this one or one below it; None: there is none. They are in the leaves, as a rule.

    What is too deep to be searched counts as inhabited: the kubelet removes all of it at the pod's end.
    """
    if depth == 0:
        return cgroup
    below = (_inhabited(f"{cgroup}/{name}", depth - 1) for name in tree.folders(cgroup))
    if (inhabited := next((one for one in below if one is not None), None)) is not None:
        return inhabited
    return cgroup if tree.first_process(cgroup) is not None else None
