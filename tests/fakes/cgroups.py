"""A cgroup tree of plain folders and files, and a /proc for the processes in it, as kubelet and runtime make them."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

NAMES = {"guaranteed": "", "burstable": "burstable", "besteffort": "besteffort"}


class FakeCgroups:
    """A node's tree of version 2, cgroupfs driver, with the dmem controller enabled all the way down."""

    def __init__(self, folder: Path, *, dmem: bool = True, version: int = 2) -> None:
        self.root, self.proc_root = folder / "cgroup", folder / "proc"
        self._dmem = dmem
        self._pids = itertools.count(1000)
        self.proc_root.mkdir(parents=True)
        top = self.root if version == 2 else self.root / "systemd"
        top.mkdir(parents=True)
        if version == 2:
            (top / "cgroup.controllers").write_text("cpu memory dmem pids\n")
            self._fill(top)
        self.kubepods = self._make(top / "kubepods")
        for name in ("burstable", "besteffort"):
            self._make(self.kubepods / name)

    def add_pod(self, uid: str, quality: str = "burstable") -> Path:
        """A pod's folder, with nothing in it yet."""
        return self._make(self.kubepods / NAMES[quality] / f"pod{uid}")

    def pod(self, uid: str) -> Path:
        return next(path for path in self.kubepods.rglob(f"pod{uid}"))

    def add_container(self, uid: str, container_id: str, name: str | None = None, *, inner: str | None = None) -> Path:
        """A container with one process. `name` None: it has no record, as a sandbox. `inner`: crun's child cgroup."""
        leaf = self._make(self.pod(uid) / container_id)
        pid = next(self._pids)
        home = leaf if inner is None else self._make(leaf / inner)
        (home / "cgroup.procs").write_text(f"{pid}\n")
        (home / "cgroup.events").write_text("populated 1\nfrozen 0\n")
        if name is not None:
            self.record(pid, uid, name)
        return leaf

    def record(self, pid: int, *names: str) -> None:
        """What the kernel shows of the mounts of a process: pod UID and container name, for each such mount."""
        uid, *containers = names
        lines = ["22 1 0:5 / / rw,relatime - overlay overlay rw"]
        for number, name in enumerate(containers):
            source = f"/var/lib/kubelet/pods/{uid}/containers/{name}/0b5e{number:04x}"
            lines.append(f"{23 + number} 22 8:1 {source} /dev/termination-log rw,relatime - ext4 /dev/sda1 rw")
        (self.proc_root / str(pid)).mkdir(exist_ok=True)
        (self.proc_root / str(pid) / "mountinfo").write_text("\n".join(lines) + "\n")

    def pid(self, leaf: Path) -> int:
        """The process of a container."""
        inner = [leaf, *(path for path in leaf.iterdir() if path.is_dir())]
        return int("".join((path / "cgroup.procs").read_text() for path in inner).split()[0])

    def remove(self, path: Path) -> None:
        """The runtime or the kubelet removes a cgroup."""
        shutil.rmtree(path)

    def _make(self, path: Path) -> Path:
        path.mkdir()
        self._fill(path)
        return path

    def _fill(self, path: Path) -> None:
        (path / "cgroup.procs").write_text("")
        (path / "cgroup.events").write_text("populated 0\nfrozen 0\n")
        (path / "cgroup.subtree_control").write_text("cpu memory dmem pids\n" if self._dmem else "cpu memory pids\n")
