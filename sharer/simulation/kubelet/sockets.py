"""Unix sockets as the kubelet leaves and finds them: wiped at start, left behind at death, never unlinked at exit."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import grpc

from sharer.simulation.kubelet.records import SocketState

# What an HTTP/2 client says first (RFC 9113 §3.4), with an empty SETTINGS frame.
_HTTP2_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
_SETTINGS_FRAME = 4
MAX_PATH_BYTES = 107
_FIRST_RETRY_S = 1.0  # grpc-go's connection backoff: 1 s, then 1.6 times longer each time
_RETRY_FACTOR = 1.6


@contextlib.contextmanager
def second_name(folder: Path, link: Path) -> Iterator[Path]:
    """Within, a folder has this name as well."""
    link.unlink(missing_ok=True)
    link.symlink_to(folder)
    try:
        yield link
    finally:
        link.unlink()


def serve_through(server: grpc.Server, path: Path) -> None:
    """Start `server` at a path through a `second_name`: its file stays behind when it stops, as after a SIGKILL.

    gRPC for Python unlinks the path that it was bound to, which leads nowhere by then. A second name of the file itself
    would not do: to unlink that changes the file's ctime, which a plugin may take for a new kubelet.
    """
    _check(path)
    if os.path.lexists(path):
        raise FileExistsError(f"{path} is there already; gRPC would take it away")
    server.add_insecure_port(f"unix:{path}")
    server.start()


def serve_over(server: grpc.Server, path: Path, scratch: Path) -> None:
    """Start `server` at `scratch`, on the same file system, and rename it over `path`, as the kubelet does it."""
    _check(scratch)
    scratch.unlink(missing_ok=True)
    server.add_insecure_port(f"unix:{scratch}")
    server.start()
    scratch.rename(path)


def _check(path: Path) -> None:
    if len(os.fsencode(path)) > MAX_PATH_BYTES:
        raise OSError(f"{path}: a unix socket's path has at most {MAX_PATH_BYTES} bytes; use a shorter folder")


def wipe_sockets(folder: Path) -> None:
    """Delete every top-level entry whose `stat` is a socket: links to sockets too; sub-folders stay (§2.7)."""
    for path in list(folder.iterdir()):
        if path.is_socket():  # follows links; False for a dangling one
            path.unlink(missing_ok=True)


def socket_state(path: str) -> SocketState:
    """What is at `path` now. A serving socket sees one connection that is closed at once."""
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            return SocketState.NOT_A_SOCKET
    except OSError:
        return SocketState.ABSENT
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except OSError:
            return SocketState.DEAD
    return SocketState.SERVING


def answers_http2(path: str, timeout_s: float, give_up: threading.Event) -> bool:
    """Whether a server sends its HTTP/2 settings within `timeout_s`, tried again with grpc-go's backoff.

    A socket that is merely bound is not enough for the kubelet's blocking dial (§2.1). Returns False as soon as
    `give_up` is set.
    """
    end_s = time.monotonic() + timeout_s
    pause_s = _FIRST_RETRY_S
    while True:
        if _settings_arrive(path, end_s, give_up):
            return True
        left_s = end_s - time.monotonic()
        if left_s <= 0 or give_up.wait(min(pause_s, left_s)):
            return False
        pause_s *= _RETRY_FACTOR


def _settings_arrive(path: str, end_s: float, give_up: threading.Event) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            connection.settimeout(max(0.01, end_s - time.monotonic()))
            connection.connect(path)
            connection.sendall(_HTTP2_HELLO)
            head = b""
            while len(head) < 4:
                if give_up.is_set() or time.monotonic() > end_s:
                    return False
                readable, _, _ = select.select([connection], [], [], 0.1)  # short: `give_up` is looked at in between
                if readable:
                    part = connection.recv(4 - len(head))
                    if not part:
                        return False
                    head += part
        except OSError:  # absent, refused, path too long, not a socket: all "not serving" to the kubelet
            return False
    return head[3] == _SETTINGS_FRAME


@contextlib.contextmanager
def next_inode(folder: Path, inode: int | None) -> Iterator[None]:
    """Within, the next file created in `folder` gets this inode number, if the file system can be brought to that.

    ext4 and xfs hand out the lowest free number: lower ones are occupied for the time. tmpfs never repeats a number.
    """
    in_the_way: list[Path] = []
    try:
        for attempt in range(0 if inode is None else 256):
            candidate = folder / f".inode{attempt}"
            candidate.touch()
            if candidate.stat().st_ino == inode:
                candidate.unlink()
                break
            in_the_way.append(candidate)
        yield
    finally:
        for candidate in in_the_way:
            candidate.unlink()
