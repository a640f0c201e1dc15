"""The host's cgroups and processes as an agent sees them, made of what runs on a simulated kubelet.

A tree of cgroup version 2 with the cgroupfs driver: one folder a pod, below it one leaf a running container and one
for the sandbox (runtime-facts §7). The times of a real pod's end are not copied: a pod's folder goes with its last
container, and `FakeKubelet.end_remnant` is the end of what a force delete left behind.
"""

from __future__ import annotations

import hashlib
import shutil
import threading
from collections.abc import Mapping
from pathlib import Path

from sharer.simulation.kubelet import ContainerState, FakeKubelet

LOOK_S = 0.1  # between two looks at whether to end; changes of the kubelet are followed at once
SANDBOX = "POD"


class PodCgroups:
    """Keeps a cgroup tree like the pods of a kubelet, from `start` to `close`, on a thread of its own."""

    def __init__(self, kubelet: FakeKubelet, root: Path) -> None:
        """`root` stands for /sys/fs/cgroup. The tree is there, and empty, at once."""
        self._kubelet = kubelet
        self._root = root
        self._written: dict[str, frozenset[str]] = {}  # by pod UID: its containers
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="simulated-cgroups", daemon=True)
        (root / "kubepods/burstable").mkdir(parents=True)
        (root / "cgroup.controllers").write_text("cpu memory pids\n")

    def start(self) -> None:
        """Begin to follow the kubelet."""
        self._thread.start()

    def close(self) -> None:
        """Follow no more. The tree stays."""
        self._ending.set()
        if self._thread.ident is not None:
            self._thread.join()

    def path(self, uid: str, container: str = SANDBOX) -> str:
        """The cgroup of a container, as /proc/PID/cgroup names it; without one, of the pod's sandbox."""
        name = hashlib.sha256(f"{uid}/{container}".encode()).hexdigest()
        return f"/kubepods/burstable/pod{uid}/{name}"

    def _run(self) -> None:
        while not self._ending.is_set():
            try:
                self._kubelet.wait_for(self._is_behind, LOOK_S)
            except TimeoutError:
                continue
            self._write(self._alive())

    def _is_behind(self) -> bool:
        return self._ending.is_set() or self._alive() != self._written

    def _alive(self) -> dict[str, frozenset[str]]:
        """The running containers of each pod that has any, forgotten pods included."""
        found = [(pod.uid, pod.containers) for pod in self._kubelet.pods()]
        found += [(remnant.uid, remnant.containers) for remnant in self._kubelet.remnants()]
        running = {
            uid: frozenset(one.name for one in containers if one.state is ContainerState.RUNNING)
            for uid, containers in found
        }
        return {uid: containers for uid, containers in running.items() if containers}

    def _write(self, alive: Mapping[str, frozenset[str]]) -> None:
        for uid in self._written.keys() - alive.keys():
            shutil.rmtree(self._root / f"kubepods/burstable/pod{uid}")
        for uid, containers in alive.items():
            before = {SANDBOX, *self._written[uid]} if uid in self._written else set()
            for gone in before - {SANDBOX, *containers}:
                shutil.rmtree(self._below(uid, gone))
            for new in {SANDBOX, *containers} - before:
                _make(self._below(uid, new))
            _make(self._root / f"kubepods/burstable/pod{uid}")
        self._written = dict(alive)

    def _below(self, uid: str, container: str) -> Path:
        return self._root / self.path(uid, container).lstrip("/")


def _make(cgroup: Path) -> None:
    """A cgroup with somebody in it."""
    cgroup.mkdir(parents=True, exist_ok=True)
    (cgroup / "cgroup.events").write_text("populated 1\nfrozen 0\n")


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
