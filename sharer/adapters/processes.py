"""Whose process a PID is, from /proc (runtime-facts §7).

A cgroup path is matched by its tail, never by a prefix: in a private cgroup namespace paths start with `/../..`, and a
pod of our own QoS class appears without `kubepods` in front. The form with colons is what a runtime makes whose cgroup
driver is not the kubelet's.
"""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

from sharer.core.cgroup_names import CONTAINER_DIGITS, UID_DIGITS
from sharer.core.errors import NodeError
from sharer.core.ports.holders import ProcessIdentity

MAX_COMMAND = 64  # characters of a program's name that are shown
MAX_BYTES = 2**16  # of a file in /proc; a process may make its own command line as long as megabytes
_POD = (  # compiled when first needed
    rf"(?:^|[/-])pod(?P<uid>{UID_DIGITS})(?:\.slice)?"
    rf"(?:[/:](?:cri-containerd[-:]|crio[-:]|docker[-:])?(?P<container>{CONTAINER_DIGITS})(?:\.scope)?)?(?=[/:]|$)"
)
_DELETED = " (deleted)"  # the cgroup was removed under a zombie


class ProcFs:
    """The processes in a /proc. Implements core.ports.holders.ProcessTable."""

    def __init__(self, root: Path) -> None:
        """`root` is where the host's /proc is seen."""
        self._root = str(root)

    def sees_the_host(self) -> bool:
        """Whether PIDs here are the host's: the kernel's starter of threads is process 2, and only there.

        Raises NodeError.
        """
        return self._read("2", "comm") == b"kthreadd\n"

    def identify(self, pid: int) -> ProcessIdentity | None:
        """The pods and the program of a process; None: there is no such process. Raises NodeError."""
        cgroup = self._read(str(pid), "cgroup")
        if cgroup is None:
            return None
        return ProcessIdentity(pods=_pods(cgroup.decode(errors="replace")), command=self._command(str(pid)))

    def _command(self, pid: str) -> str | None:
        """The file name of its program as it was called; for a zombie what the kernel remembers of it."""
        called = (self._read(pid, "cmdline") or b"").split(b"\0", 1)[0].rsplit(b"/", 1)[-1]
        text = (called or self._read(pid, "comm") or b"").decode(errors="replace").strip()
        return "".join(letter if letter.isprintable() else "?" for letter in text[:MAX_COMMAND]) or None

    def _read(self, pid: str, name: str) -> bytes | None:
        """A file's content; None: there is no such process. Raises NodeError."""
        try:
            with open(f"{self._root}/{pid}/{name}", "rb", buffering=0) as file:
                return file.read(MAX_BYTES)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ESRCH):
                return None
            raise NodeError(f"process {pid} cannot be looked at: {os.strerror(error.errno or 0)}") from error


def _pods(cgroup: str) -> tuple[tuple[str, str | None], ...]:
    """The pods in the first line that names any: some hierarchies may not (a runtime's own memory limits)."""
    for line in cgroup.splitlines():
        path = line.split(":", 2)[-1].removesuffix(_DELETED)
        if found := tuple((one["uid"].replace("_", "-"), one["container"]) for one in re.finditer(_POD, path)):
            return found
    return ()
