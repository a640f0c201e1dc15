"""Pods and containers in real cgroups: a private mount of cgroup2, real processes, the mounts that a kubelet makes.

Everything happens in a mount namespace of a helper process, seen from here through its /proc/PID/root, so that nothing
of it is left when that process ends. Needs root.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

_HOLD = 'set -e; mount -t cgroup2 none "$1"; echo ready; exec cat'
_CONTAINER = (
    'set -e; mount --bind "$1" "$2"; echo $$ >"$3/cgroup.procs"; echo ready; exec cat'  # as runc: then the program
)
_SANDBOX = 'set -e; echo $$ >"$1/cgroup.procs"; echo ready; exec cat'


class RealCgroups:
    """A kubepods tree of its own within the machine's cgroup2 hierarchy."""

    def __init__(self, namespace: subprocess.Popen[str], mount: Path, scratch: Path) -> None:
        self._namespace, self._scratch = namespace, scratch
        self._processes: dict[Path, subprocess.Popen[str]] = {}
        self.root = Path(f"/proc/{namespace.pid}/root{mount}/sharer-test-{os.getpid()}")
        self.kubepods = self.root / "kubepods"
        for path in (self.root, self.kubepods, self.kubepods / "burstable", self.kubepods / "besteffort"):
            path.mkdir()

    def add_pod(self, uid: str) -> Path:
        """A pod's cgroup."""
        path = self.kubepods / "burstable" / f"pod{uid}"
        path.mkdir()
        return path

    def add_container(self, uid: str, container_id: str, name: str | None = None, *, inner: str | None = None) -> Path:
        """A container's cgroup, and at some later moment its process; `name` None: a sandbox."""
        leaf = self.kubepods / "burstable" / f"pod{uid}" / container_id
        leaf.mkdir()
        if inner is not None:
            (leaf / inner).mkdir()
        self.start_process(leaf if inner is None else leaf / inner, uid, name)
        return leaf

    def start_process(self, cgroup: Path, uid: str, name: str | None) -> int:
        """A process in a cgroup, in a mount namespace with its pod's record. Returns its PID."""
        if name is None:
            process = _start(["sh", "-c", _SANDBOX, "-", str(cgroup)])
        else:
            record = self._scratch / "pods" / uid / "containers" / name / "0b5e0001"
            record.parent.mkdir(parents=True, exist_ok=True)
            record.touch()
            message = self._scratch / "termination-log"
            message.touch()
            process = _start(["unshare", "-m", "sh", "-c", _CONTAINER, "-", str(record), str(message), str(cgroup)])
        self._processes[cgroup] = process
        return process.pid

    def pid(self, cgroup: Path) -> int:
        """The process in a cgroup."""
        return self._processes[cgroup].pid

    def remove(self, leaf: Path) -> None:
        """The container ends, and its cgroup goes."""
        for cgroup in sorted(leaf.rglob("*"), reverse=True):
            if cgroup.is_dir():
                self._end(cgroup)
        self._end(leaf)

    def close(self) -> None:
        """End every process, and remove every cgroup."""
        for path in sorted(self.root.rglob("*"), reverse=True):
            if path.is_dir():
                self._end(path)
        self.root.rmdir()

    def _end(self, cgroup: Path) -> None:
        process = self._processes.pop(cgroup, None)
        if process is not None:
            _stop(process)
        cgroup.rmdir()


@contextlib.contextmanager
def open_real_cgroups() -> Iterator[RealCgroups]:
    """Raises OSError, with the reason, where there cannot be one."""
    if os.geteuid() != 0:
        raise OSError("mounting cgroup2 needs root")
    if shutil.which("unshare") is None:
        raise OSError("unshare (util-linux) is not installed")
    with tempfile.TemporaryDirectory(prefix="s-") as folder:
        mount = Path(folder) / "cgroup"
        mount.mkdir()
        try:
            namespace = _start(["unshare", "-m", "sh", "-c", _HOLD, "-", str(mount)])
        except RuntimeError as error:
            raise OSError(f"cgroup2 cannot be mounted in a namespace of its own: {error}") from error
        try:
            tree = RealCgroups(namespace, mount, Path(folder))
            try:
                yield tree
            finally:
                tree.close()
        finally:
            _stop(namespace)


def _start(command: list[str]) -> subprocess.Popen[str]:
    """Start a process and wait until it says that it is ready. Raises RuntimeError with what it said instead."""
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    if process.stdout.readline() != "ready\n":
        raise RuntimeError(_stop(process))
    return process


def _stop(process: subprocess.Popen[str]) -> str:
    """Let a process end by closing its input; it reads nothing else. Returns its complaints."""
    _, complaints = process.communicate()
    return complaints.strip()
