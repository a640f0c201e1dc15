"""The host's cgroups and processes as an agent sees them, made of what runs on a simulated kubelet.

A tree of cgroup version 2 with the cgroupfs driver and the dmem controller: one folder a pod, below it one leaf a
running container and one for the sandbox, which are there before the first container starts (runtime-facts §4, §7). The
times of a real pod's end are not copied: a pod's folder goes with its last container, and `FakeKubelet.end_remnant` is
the end of what a force delete left behind.
"""

from __future__ import annotations

import hashlib
import itertools
import shutil
import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from sharer.simulation.kubelet import ContainerState, FakeKubelet

FIRST_PID = 100_000  # of containers: above those that tests give out
LOOK_S = 0.1  # between two looks at whether to end; changes of the kubelet are followed at once
SANDBOX = "POD"


class PodCgroups:
    """Keeps a cgroup tree like the pods of a kubelet, from `start` to `close`, on a thread of its own."""

    def __init__(self, kubelet: FakeKubelet, root: Path, proc_root: Path | None = None) -> None:
        """`root` stands for /sys/fs/cgroup. The tree is there, and empty, at once.

        `proc_root` stands for /proc: each container has a process there. None: the leaves stay without processes.
        """
        self._kubelet = kubelet
        self._root, self._proc_root = root, proc_root
        self._pids = itertools.count(FIRST_PID)
        self._written: dict[str, frozenset[str]] = {}  # by pod UID: its containers
        self._processes: dict[tuple[str, str], int] = {}  # by pod UID and container
        self._ended: Counter[tuple[str, str]] = Counter()  # how often a container has started again
        self._over: set[str] = set()  # UIDs of pods that have ended before the kubelet says so
        self._writing = threading.Lock()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="simulated-cgroups", daemon=True)
        (root / "kubepods/burstable").mkdir(parents=True)
        (root / "cgroup.controllers").write_text("cpu memory dmem pids\n")
        for above in (root, root / "kubepods", root / "kubepods/burstable"):
            (above / "cgroup.subtree_control").write_text("cpu memory dmem pids\n")

    def start(self) -> None:
        """Begin to follow the kubelet. A pod's cgroup is there before anything of the pod is started."""
        self._kubelet.make_before_starts(self._catch_up)
        self._thread.start()

    def close(self) -> None:
        """Follow no more. The tree stays."""
        self._ending.set()
        if self._thread.ident is not None:
            self._thread.join()

    def end_pod(self, uid: str) -> None:
        """End a pod's processes and take its cgroups away now, ahead of the kubelet, as on a real node."""
        with self._writing:
            self._over.add(uid)
            self._write(self._alive())

    def path(self, uid: str, container: str = SANDBOX) -> str:
        """The cgroup of a container, as /proc/PID/cgroup names it; without one, of the pod's sandbox.

        Of one that has ended: where it will be when it starts again, with another ID.
        """
        name = hashlib.sha256(f"{uid}/{container}/{self._ended[uid, container]}".encode()).hexdigest()
        return f"/kubepods/burstable/pod{uid}/{name}"

    def _run(self) -> None:
        while not self._ending.is_set():
            try:
                self._kubelet.wait_for(self._is_behind, LOOK_S)
            except TimeoutError:
                continue
            self._catch_up()

    def _catch_up(self) -> None:
        with self._writing:
            self._write(self._alive())

    def _is_behind(self) -> bool:
        return self._ending.is_set() or self._alive() != self._written

    def _alive(self) -> dict[str, frozenset[str]]:
        """The running containers of each pod that has any, or is about to; forgotten pods included."""
        found = [(pod.uid, pod.containers) for pod in self._kubelet.pods() if not pod.phase.terminal]
        found += [(remnant.uid, remnant.containers) for remnant in self._kubelet.remnants()]
        return {
            uid: frozenset(one.name for one in containers if one.state is ContainerState.RUNNING)
            for uid, containers in found
            if uid not in self._over and any(one.state is not ContainerState.TERMINATED for one in containers)
        }

    def _write(self, alive: Mapping[str, frozenset[str]]) -> None:
        for uid in self._written.keys() - alive.keys():
            for gone in {SANDBOX, *self._written[uid]}:
                self._end_process(uid, gone)
            shutil.rmtree(self._root / f"kubepods/burstable/pod{uid}")
        for uid, containers in alive.items():
            before = {SANDBOX, *self._written[uid]} if uid in self._written else set()
            for gone in before - {SANDBOX, *containers}:
                self._end_process(uid, gone)
                shutil.rmtree(self._below(uid, gone))
                self._ended[uid, gone] += 1
            _make(self._root / f"kubepods/burstable/pod{uid}")
            for new in {SANDBOX, *containers} - before:
                _make(self._below(uid, new))
                if self._proc_root is not None:
                    self._start_process(self._proc_root, uid, new)
        self._written = dict(alive)

    def _start_process(self, proc_root: Path, uid: str, container: str) -> None:
        """The process of a container, with the mount that the kubelet makes for each but a sandbox."""
        pid = self._processes[uid, container] = next(self._pids)
        write_process(proc_root, pid, self.path(uid, container), "pause" if container == SANDBOX else "python")
        source = f"/var/lib/kubelet/pods/{uid}/containers/{container}/0b5e0001"
        mount = "" if container == SANDBOX else f"41 40 8:1 {source} /dev/termination-log rw - ext4 /dev/sda1 rw\n"
        (proc_root / str(pid) / "mountinfo").write_text(f"40 1 0:5 / / rw,relatime - overlay overlay rw\n{mount}")
        (self._below(uid, container) / "cgroup.procs").write_text(f"{pid}\n")

    def _end_process(self, uid: str, container: str) -> None:
        if self._proc_root is not None:
            end_process(self._proc_root, self._processes.pop((uid, container)))

    def _below(self, uid: str, container: str) -> Path:
        return self._root / self.path(uid, container).lstrip("/")


def _make(cgroup: Path) -> None:
    """A cgroup with somebody in it."""
    cgroup.mkdir(parents=True, exist_ok=True)
    (cgroup / "cgroup.events").write_text("populated 1\nfrozen 0\n")
    (cgroup / "cgroup.subtree_control").write_text("cpu memory dmem pids\n")


def write_process(proc_root: Path, pid: int, cgroup: str, command: str) -> None:
    """Let a process appear in a simulated /proc, in this cgroup."""
    folder = proc_root / str(pid)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cgroup").write_text(f"0::{cgroup}\n")
    (folder / "cmdline").write_bytes(command.encode() + b"\0")
    (folder / "comm").write_text(f"{command[:15]}\n")


def write_host_pids(proc_root: Path) -> None:
    """Let a simulated /proc be that of the host: it shows the kernel's own threads."""
    write_process(proc_root, 2, "/", "kthreadd")


def end_process(proc_root: Path, pid: int) -> None:
    """Let a process be gone."""
    shutil.rmtree(proc_root / str(pid))
