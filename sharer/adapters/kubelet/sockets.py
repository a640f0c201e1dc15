"""Socket files in the kubelet's device plugin directory: names, identity, who listens, leftovers.

The directory belongs to the kubelet and is shared with every other plugin of the node, so only files that carry our
name are ever removed, and only when nobody listens on them (kubelet-contract §17.13).
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import stat
import time
from pathlib import Path

from sharer.core.errors import InputError
from sharer.core.values import dataclass

KUBELET_SOCKET = "kubelet.sock"
_MAX_PATH_BYTES = 107  # sun_path of a unix socket address, less its final zero
_PREFIX = "sharer-"
_OURS = rf"{_PREFIX}[A-Za-z0-9._-]{{1,20}}-[0-9a-f]{{12}}\.sock"
_LONGEST_NAME_BYTES = len(f"{_PREFIX}-.sock") + 20 + 12
_CONNECT_DEADLINE_S = 1.0
_FRAME_HEADER_BYTES = 9  # of HTTP/2: length, type, flags, stream
_SETTINGS = b"\x04"  # the type


@dataclass(frozen=True, slots=True)
class FileIdentity:
    """One file, and not another of the same name. Inode numbers come back at once, so the change time counts too."""

    device: int
    inode: int
    changed_ns: int


def identify(path: Path) -> FileIdentity | None:
    """The identity of what has this name now; None: nothing has."""
    try:
        found = path.stat()
    except OSError:
        return None
    return FileIdentity(found.st_dev, found.st_ino, found.st_ctime_ns)


def listens(path: Path) -> bool:
    """Whether a process accepts connections on this socket file now."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_CONNECT_DEADLINE_S)
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


def serves_grpc(path: Path, deadline_s: float) -> bool:
    """Whether a gRPC server answers on this socket file by then. It speaks first: settings of HTTP/2 (RFC 9113 §3.4).

    The kubelet, too, waits for them when it dials: to be bound is not enough (kubelet-contract §2.1).
    """
    until_s = time.monotonic() + deadline_s
    said = b""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_CONNECT_DEADLINE_S)
        probe.connect(str(path))
        while len(said) < _FRAME_HEADER_BYTES and (left_s := until_s - time.monotonic()) > 0:
            probe.settimeout(left_s)
            part = probe.recv(_FRAME_HEADER_BYTES - len(said))
            if not part:
                break
            said += part
    return said[3:4] == _SETTINGS


def listening(path: Path) -> FileIdentity | None:
    """The identity of a socket file on which a process accepts connections; None: none is seen now."""
    before = identify(path)
    with contextlib.suppress(OSError):  # this process has no descriptor left just now: whoever asks looks again
        return before if before is not None and listens(path) and identify(path) == before else None
    return None


def check_directory(directory: Path) -> None:
    """Raises InputError if a socket in this directory would have too long a path."""
    longest = len(os.fsencode(directory)) + 1 + _LONGEST_NAME_BYTES
    if longest > _MAX_PATH_BYTES:
        raise InputError(
            f"--device-plugin-dir {directory} is {longest - _MAX_PATH_BYTES} bytes too long: with a socket's name it"
            f" makes {longest} bytes, and the path of a unix socket has at most {_MAX_PATH_BYTES}. Use a shorter one"
        )


def new_name(resource: str) -> str:
    """A file name that was never used: an ending gRPC server unlinks its path, whoever has it by then (§16.1)."""
    readable = re.sub(r"[^A-Za-z0-9._-]", "-", resource.rpartition("/")[2])[:20] or "resource"
    return f"{_PREFIX}{readable}-{os.urandom(6).hex()}.sock"


def remove_leftovers(directory: Path) -> list[str]:
    """Remove the sockets of agents that died. Returns their names. Call it while holding the agent's lock."""
    removed = []
    with contextlib.suppress(OSError):  # no directory yet, or not ours to read: then nothing of ours is in it
        for name in sorted(os.listdir(directory)):
            path = directory / name
            is_ours = name.startswith(_PREFIX) and re.fullmatch(_OURS, name)
            if is_ours and stat.S_ISSOCK(path.lstat().st_mode) and not listens(path):
                path.unlink()
                removed.append(name)
    return removed
