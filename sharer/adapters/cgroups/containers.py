"""The cgroups of pods and of their containers: where they are, which container each belongs to, when they come and go.

Which container a cgroup is of, its own mounts say: the kubelet mounts a file of each container, for its last words, at
`…/pods/<UID>/containers/<name>/…` (terminationMessagePath, set unless a pod's author clears it). The kernel shows that
in `/proc/PID/mountinfo` some milliseconds before the first instruction, to any root, whatever the runtime. Only within
a pod could its author feign it, with a hostPath mount of just such a file; two answers are therefore none.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from pathlib import Path

from sharer.adapters.cgroups import tree
from sharer.core.cgroup_names import container_id, pod_uid
from sharer.core.errors import NodeError
from sharer.core.limits.limits import ContainerCgroup, PodCgroup
from sharer.core.ports.watch import Watcher
from sharer.core.values import dataclass

SCRATCH = "sharer-check"
SOON_S = 0.004  # until a new container is asked for its name again; some 15 ms after its cgroup it has one
MAX_INNER_DEPTH = 8  # of a container's own cgroups that are looked into; runtimes and init systems make 1 to 3
MAX_INNER_FOLDERS = 256  # in one of them; a container that may make cgroups could make any number
MAX_MOUNTS_BYTES = 2**20  # that are read of a container's; some 10 KiB are usual
_RECORD = r"/pods/(?P<uid>[0-9a-f-]{32,36})/containers/(?P<name>[a-z0-9]([a-z0-9-]*[a-z0-9])?)/[^/ ]+"


@dataclass(frozen=True, slots=True)
class _Nameless:
    """A container whose name could not be told, so far."""

    first_s: float  # when it was first looked at
    next_s: float  # when it is next


class CgroupTree:
    """The cgroup tree as this process sees the host's. Implements core.enforcer.ContainerCgroups."""

    def __init__(
        self, root: Path, proc_root: Path, watcher: Watcher, *, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        """`root` is where the host's /sys/fs/cgroup is seen, `proc_root` where its /proc is."""
        self._root, self._proc_root = str(root), str(proc_root)
        self._watcher = watcher
        self._now_s = now_s
        self._known_trees: list[str] = []
        self._paths: dict[str, str] = {}  # by pod's UID; replaced, never changed
        self._lock = threading.Lock()  # of what follows
        self._names: dict[str, dict[str, str | _Nameless]] = {}  # by pod's path and container's; a name does not change

    def read(self, uids: Collection[str] | None = None) -> Mapping[str, PodCgroup]:
        """The cgroups of these pods; None: of all. Raises NodeError if they cannot be read."""
        try:
            found = self._paths_of(uids)
            pods = {
                uid: PodCgroup(uid=uid, path=path, containers=self._containers(path, uid))
                for uid, path in found.items()
            }
        except OSError as error:
            raise _unreadable(error) from error
        return pods

    def follow(self, changed: Callable[[str], None]) -> None:
        """Call `changed` with a pod's UID, on the watcher's thread, when its folder, or one in it, comes or goes."""
        _Followed(self._roots_or_none, self._root, self._watcher, changed).start()

    @contextlib.contextmanager
    def scratch(self) -> Iterator[str]:
        """An empty cgroup where a pod's would be. Raises NodeError that says what is in the way."""
        if not os.path.exists(f"{self._root}/cgroup.controllers"):
            raise NodeError(
                f"the driver's limits need cgroup v2, and {self._root} is of version 1 or a mixture of both"
            )
        path = f"{(self.roots() or (self._root,))[0]}/{SCRATCH}"
        try:
            os.mkdir(path)
        except OSError as error:
            if not os.path.isdir(path):  # otherwise an earlier run was killed here
                reason = os.strerror(error.errno or 0)
                raise NodeError(
                    f"the cgroup {path} cannot be made ({reason}): the agent must run as root and have the host's"
                    " /sys/fs/cgroup mounted writable"
                ) from error
        try:
            yield path
        finally:
            with contextlib.suppress(OSError):  # it harms nobody, and the next check takes it over
                os.rmdir(path)

    def below(self, path: str) -> tuple[str, ...] | None:
        """The cgroups directly below one; None: it does not exist. Raises NodeError."""
        try:
            return tuple(f"{path}/{name}" for name in tree.folders(path)) if os.path.isdir(path) else None
        except OSError as error:
            raise _unreadable(error) from error

    def roots(self) -> tuple[str, ...]:
        """The kubepods folders, each before the folders of its classes. Raises NodeError."""
        try:
            return tuple(self._roots())
        except OSError as error:
            raise _unreadable(error) from error

    def _roots(self) -> Iterator[str]:
        return tree.homes(self._trees())

    def _roots_or_none(self) -> tuple[str, ...]:
        """For the watcher, to which "not readable just now" is no news."""
        try:
            return tuple(self._roots())
        except OSError:
            return ()

    def _trees(self) -> list[str]:
        """The kubepods folders of the hierarchy that names containers: cgroup2's if pods are in it, else one of v1."""
        if not self._known_trees or not all(map(os.path.isdir, self._known_trees)):
            self._known_trees = tree.find_trees(self._root)
        return self._known_trees

    def _paths_of(self, uids: Collection[str] | None) -> dict[str, str]:
        """Where the cgroups of these pods are. They are searched for only if one is not where it was."""
        if uids is None or not all(os.path.isdir(self._paths.get(uid, "")) for uid in uids):
            self._paths = dict(tree.pods(self._trees()))
            with self._lock:
                for gone in self._names.keys() - self._paths.values():
                    del self._names[gone]
        return {uid: path for uid, path in self._paths.items() if uids is None or uid in uids}

    def _containers(self, pod: str, uid: str) -> tuple[ContainerCgroup, ...]:
        found = []
        for folder in tree.folders(pod):
            if (own_id := container_id(folder)) is not None:
                path = sys.intern(f"{pod}/{folder}")  # each reading has it, and whoever waits for a name
                inner = _inner(path)
                name = self._name(pod, path, inner, uid)
                found.append(ContainerCgroup(container_id=sys.intern(own_id), path=path, inner=inner, name=name))
        with self._lock:
            known = self._names.get(pod, {})
            for gone in known.keys() - {one.path for one in found}:
                del known[gone]  # one that starts again has another ID each time
        return tuple(found)

    def _name(self, pod: str, path: str, inner: str | None, uid: str) -> str | None:
        """The container's name by its own record, looked up until there is one: a sandbox has none, ever."""
        now_s = self._now_s()
        with self._lock:
            known = self._names.get(pod, {}).get(path) or _Nameless(now_s, now_s)
        if isinstance(known, str):
            return known
        if now_s < known.next_s:
            return None
        name = self._recorded_name(inner or path, uid)
        later = _Nameless(known.first_s, now_s + max(SOON_S, (now_s - known.first_s) / 2))
        with self._lock:
            self._names.setdefault(pod, {})[path] = name or later
        return name

    def _recorded_name(self, cgroup: str, uid: str) -> str | None:
        names: set[str] = set()
        if (pid := tree.first_process(cgroup)) is None:
            return None
        mounts = _mounts(f"{self._proc_root}/{pid.decode()}/mountinfo")  # its processes share a mount namespace
        for line in mounts.decode(errors="replace").splitlines():
            fields = line.split(" ", 5)
            found = re.search(_RECORD, fields[3]) if len(fields) > 4 else None
            if found is not None and found["uid"] == uid and found.end() == len(fields[3]):
                names.add(sys.intern(found["name"]))  # most are "main", or the like
        return names.pop() if len(names) == 1 else None


class _Followed:
    """What is watched: the folders that pods come in, and each pod's own. For the watcher's thread, but for `start`."""

    def __init__(
        self, roots: Callable[[], tuple[str, ...]], top: str, watcher: Watcher, changed: Callable[[str], None]
    ) -> None:
        self._roots, self._top, self._watcher, self._changed = roots, top, watcher, changed
        self._pods: dict[str, dict[str, _PodFolder]] = {}  # by folder that pods come in, and by name
        self._seen: dict[str, list[str]] = {}  # by folder that pods come in: what was in it last time

    def start(self) -> None:
        self._watcher.subscribe(self._top, self._look_for_roots)  # called soon, and now and then: they may come later

    def _look_for_roots(self) -> None:
        for root in self._roots():
            if root not in self._pods:
                self._pods[root] = {}
                self._watcher.subscribe(root, partial(self._look_for_pods, root))
                self._look_for_pods(root)

    def _look_for_pods(self, root: str) -> None:
        names = tree.folders_or_none(root)
        if names == self._seen.get(root):
            return
        self._seen[root] = names
        pods, now = self._pods[root], {name: uid for name in names if (uid := pod_uid(name)) is not None}
        for name in pods.keys() - now.keys():
            pods[name].end()
            self._changed(pods.pop(name).uid)
        for name in now.keys() - pods.keys():
            pods[name] = _PodFolder(sys.intern(f"{root}/{name}"), sys.intern(now[name]), self._watcher, self._changed)


class _PodFolder:
    """The folder of a pod, followed from the beginning until `end` is called."""

    __slots__ = ("_changed", "_path", "_shape", "end", "uid")  # of 250 pods there are as many

    def __init__(self, path: str, uid: str, watcher: Watcher, changed: Callable[[str], None]) -> None:
        self._path, self.uid, self._changed = path, uid, changed
        self._shape: object = None
        self.end = watcher.subscribe(path, self._look_into)
        self._look_into()

    def _look_into(self) -> None:
        """A container may have come or gone. Their number is enough: one starts again half a second later."""
        before, self._shape = self._shape, tree.shape(self._path)
        if self._shape != before:
            self._changed(self.uid)


def _unreadable(error: OSError) -> NodeError:
    return NodeError(f"the cgroups of containers cannot be read: {error.filename}: {os.strerror(error.errno or 0)}")


def _inner(cgroup: str) -> str | None:
    """The one cgroup below that holds every process of a container; None: they are in its own, or in several.

    Where somebody has made more of them than anybody needs, the last one that holds every process all the same.
    """
    deeper = None
    for _ in range(MAX_INNER_DEPTH):
        below = tree.folders(cgroup)
        if not below or len(below) > MAX_INNER_FOLDERS or tree.first_process(cgroup) is not None:
            break
        inhabited = [name for name in below if _is_populated(f"{cgroup}/{name}")]
        if len(inhabited) != 1:
            break
        cgroup = deeper = f"{cgroup}/{inhabited[0]}"
    return deeper


def _is_populated(cgroup: str) -> bool:
    populated = tree.is_populated(cgroup)
    return populated if populated is not None else tree.first_process(cgroup) is not None


def _mounts(path: str) -> bytes:
    """A process's mountinfo; empty: it has ended. Each read gives a page of it at most, so one is not enough."""
    try:
        with open(path, "rb") as file:
            return file.read(MAX_MOUNTS_BYTES)
    except OSError as error:
        if error.errno in (*tree.GONE, errno.ESRCH):
            return b""
        raise
