"""Where the driver's library is, and how it is loaded.

By absolute path and with its links resolved: glibc remembers for ever that a folder was missing at the first `dlopen`
of a name, and takes a path that it has seen for the library that was there then. So a driver that comes late, or is
replaced by another version while we run, is found.
"""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from sharer.core.errors import NodeError

log = logging.getLogger(__name__)

LibrarySource = Callable[[], object]
"""Gives the driver's library, an object with NVML's C functions as attributes. Raises NodeError while there is none."""

NAME = "libnvidia-ml.so.1"
FOLDERS = (
    "usr/lib/x86_64-linux-gnu",  # Debian, Ubuntu; where the container toolkit puts it
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64",  # Red Hat, SUSE, Amazon
    "usr/lib",
    "run/nvidia/driver/usr/lib/x86_64-linux-gnu",  # the GPU operator's driver container
    "run/nvidia/driver/usr/lib/aarch64-linux-gnu",
    "run/nvidia/driver/usr/lib64",
    "usr/local/nvidia/lib64",  # GKE, and images made for it
    "home/kubernetes/bin/nvidia/lib64",  # GKE's nodes
    "opt/nvidia/lib64",  # Bottlerocket, Talos and others that keep /usr read-only
    "run/opengl-driver/lib",  # NixOS
    "usr/lib/wsl/lib",  # Windows
)
MOUNTS = Path("/proc/self/mountinfo")
MAX_LINKS = 40  # as the kernel's own limit


class InstalledLibrary:
    """The library of the driver that is installed on this node: a `LibrarySource`."""

    def __init__(self, path: Path | None = None, roots: Sequence[Path] = (Path("/"),)) -> None:
        """`path` names the file, and nothing else is tried. Otherwise the usual folders below each root, in order, and
        with "/" among the roots last of all whatever the dynamic loader finds by name.
        """
        self._path = path
        self._roots = tuple(roots)

    def __call__(self) -> ctypes.CDLL:
        """Load the library. Raises NodeError that says what is wrong with each file found, or that there is none."""
        places = [(self._path.absolute(), Path("/"))] if self._path is not None else self._places()
        broken: dict[Path, str] = {}  # by file: two places may be links to one file
        for place, root in places:
            file = place
            try:
                file = resolve_below(root, place)
                if file.is_file() and file not in broken:
                    return ctypes.CDLL(str(file))
            except OSError as error:
                broken[file] = f"{file} cannot be loaded ({error})"
        if self._path is None and Path("/") in self._roots:
            try:
                return ctypes.CDLL(NAME)
            except OSError:
                pass  # reported below: this is the same "not found"
        if broken:
            raise NodeError(
                f"the NVIDIA driver's library cannot be used: {'; '.join(broken.values())}. It is damaged, of "
                "another architecture or not readable for the agent: reinstall the driver, or name the right file with "
                "--driver-library"
            )
        if self._path is not None:
            raise NodeError(
                f"the NVIDIA driver's library is not at {self._path} (--driver-library). It is looked for there until "
                "it appears; without the flag the usual folders are searched"
            )
        log.debug("looked for the driver's library at %s", ", ".join(str(place) for place, _ in places))
        (first, _), *_, (last, _) = places
        raise NodeError(
            f"the NVIDIA driver's library {NAME} is not installed: it is at none of {len(places)} usual places, from "
            f"{first} to {last}. Install the NVIDIA driver on this node, or name the file with --driver-library. On a "
            "node without NVIDIA GPUs nothing is wrong: run no agent there"
        )

    def _places(self) -> list[tuple[Path, Path]]:
        return [(root / folder / NAME, root) for root in self._roots for folder in FOLDERS]


def is_given(library: object, mounts: Path = MOUNTS) -> bool:
    """Whether a library is a file that is mounted by itself, as container runtimes give them to a container.

    Then this container never sees another one in its place, whatever is installed on the host. False: not as far as is
    known.
    """
    name = getattr(library, "_name", None)
    if not isinstance(name, str) or not name.startswith("/"):
        return False
    try:
        lines = mounts.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return False
    wanted = "".join(_ESCAPED.get(letter, letter) for letter in name)
    return any(wanted == line.split(" ")[4] for line in lines if line.count(" ") > 4)


_ESCAPED = {" ": "\\040", "\t": "\\011", "\n": "\\012", "\\": "\\134"}
"""As the kernel writes them in mountinfo (proc(5))."""


def resolve_below(root: Path, path: Path) -> Path:
    """The file that `path` names when `root` is taken for "/", as for processes of a host mounted at `root`.

    An absolute link (Debian's alternatives) would otherwise leave the host's tree. Something that does not exist is
    given back as it is.
    """
    links, parts, here = 0, list(path.relative_to(root).parts), root
    while parts:
        part = parts.pop(0)
        if part == "..":
            here = here.parent if here != root else root
            continue
        here = here / part
        if here.is_symlink():
            links += 1
            if links > MAX_LINKS:
                return path
            target = os.readlink(here)
            here = root if target.startswith("/") else here.parent
            parts = [*(piece for piece in target.split("/") if piece not in ("", ".")), *parts]
    return here
