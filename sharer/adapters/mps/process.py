"""The process of a control daemon: started apart from us, found again by a later supervisor, ended.

It has a session of its own and shares no pipe with us, so our end is not its end. Its servers are in that session (seen
in public listings); one that outlived it would keep everybody else off a GPU in exclusive compute mode, so they are
ended with it or after it. What it was started with is read from /proc, not from a file of ours that could be about
another process of the same number.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from sharer.adapters.mps.files import read_bounded
from sharer.core.errors import NodeError

PID_FILE = "nvidia-cuda-mps-control.pid"  # in the pipe directory, made by the daemon (NVIDIA's documentation)
_PIPES, _GPUS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_VISIBLE_DEVICES"
SERVER = "nvidia-cuda-mps-server"
_PROC = Path("/proc")
_ENDED = ("Z", "X")  # states of what is left of a process
_POLL_S = 0.02
KILL_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A daemon's process, as /proc shows it."""

    pid: int
    began: int  # in ticks since the boot: with the number, what tells it from every other process
    arguments: tuple[str, ...]
    gpus: tuple[str, ...]


def spawn(executable: Path, arguments: Sequence[str], environment: Mapping[str, str], output: Path) -> Found:
    """Start a daemon in the foreground of its own session. Raises NodeError.

    Signals that we have blocked are not blocked in it, else nobody could end it. (`subprocess` cannot do that without
    running Python between fork and exec, which is not safe beside threads.)
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_NOFOLLOW  # appended to, so it can be cut
    try:
        pid = os.posix_spawn(
            str(executable),
            [str(executable), *arguments],
            dict(environment),
            setsid=True,
            setsigmask=(),
            setsigdef=(signal.SIGPIPE, signal.SIGINT, signal.SIGTERM),
            file_actions=(
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(output), flags, 0o644),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ),
        )
    except OSError as error:
        raise NodeError(f"{executable} cannot be run: {error.strerror}; name it with --mps-control") from error
    gpus = environment.get(_GPUS, "")
    return Found(
        pid=pid,
        began=_status(_PROC / str(pid))[2],
        arguments=tuple(arguments),
        gpus=tuple(gpus.split(",")) if gpus else (),
    )


def find(pid: int, pipe: Path) -> Found | None:
    """The process of this number, if it is a daemon with this pipe directory and lives; else None.

    A container may write into a pipe directory that it has mounted: so a process of another PID namespace is none.
    """
    process = _PROC / str(pid)
    try:
        began = _began(process)
        arguments = tuple(os.fsdecode(part) for part in (process / "cmdline").read_bytes().split(b"\0") if part)
        is_beside_us = os.readlink(process / "ns/pid") == os.readlink("/proc/self/ns/pid")
        environment = dict(part.partition(b"=")[::2] for part in (process / "environ").read_bytes().split(b"\0"))
    except OSError:
        return None
    if began is None or not is_beside_us or environment.get(_PIPES.encode()) != os.fsencode(pipe):
        return None
    if not {"-f", "-d"} & set(arguments):
        return None  # a front end of it, or one of its servers
    gpus = os.fsdecode(environment.get(_GPUS.encode(), b""))
    return Found(pid=pid, began=began, arguments=arguments, gpus=tuple(gpus.split(",")) if gpus else ())


def from_pid_file(pipe: Path) -> int | None:
    """The PID that a daemon left in its pipe directory; None: none did."""
    try:
        text = (read_bounded(pipe / PID_FILE, most_bytes=32) or b"").strip()  # a container may have put it there
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def lives(found: Found) -> bool:
    """Whether it has not ended. A child of ours that has is taken away."""
    with contextlib.suppress(OSError):  # not a child of ours
        os.waitpid(found.pid, os.WNOHANG)
    return _began(_PROC / str(found.pid)) == found.began


def is_alive(pid: int) -> bool:
    """Whether there is a process of this number that has not ended."""
    return _began(_PROC / str(pid)) is not None


def kill(found: Found) -> None:
    """End it and its process group at once. Raises NodeError if it stays."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(found.pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.kill(found.pid, signal.SIGKILL)
    if not wait_end(found, KILL_S):
        raise NodeError(f"the MPS control daemon, process {found.pid}, does not end: the driver holds it")


def wait_end(found: Found, within_s: float) -> bool:
    """Wait for its end. False: it has not come."""
    return _wait(lambda: not lives(found), within_s)


def end_servers(daemon_pid: int) -> tuple[int, ...]:
    """End the servers that a daemon which has ended itself has left. Returns their PIDs. Raises NodeError if one stays.

    While one of them lives, the kernel gives the number of their session to no other.
    """
    left = tuple(_servers_of(daemon_pid))
    for pid, _ in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for pid, began in left:
        if not _wait(partial(_has_ended, pid, began), KILL_S):
            raise NodeError(f"the MPS server, process {pid}, outlived its daemon and does not end: the driver holds it")
    return tuple(pid for pid, _ in left)


def _servers_of(session: int) -> Iterator[tuple[int, int]]:
    """PID, and when it began, of each MPS server in a session. Any user's: command lines are everybody's to read."""
    for name in os.listdir(_PROC):
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError):  # it has ended meanwhile
            state, its_session, began = _status(_PROC / name)
            if its_session == session and state not in _ENDED and _program(_PROC / name) == SERVER:
                yield int(name), began


def _program(process: Path) -> str:
    return os.path.basename(os.fsdecode((process / "cmdline").read_bytes().partition(b"\0")[0]))


def _has_ended(pid: int, began: int) -> bool:
    return _began(_PROC / str(pid)) != began


def _wait(holds: Callable[[], bool], within_s: float) -> bool:
    """Wait until something is so. False: it has not come to that."""
    end_s = time.monotonic() + within_s
    while not holds():
        if time.monotonic() >= end_s:
            return False
        time.sleep(_POLL_S)  # they may be no children of ours, and the kernel may have no pidfd
    return True


def _began(process: Path) -> int | None:
    """When it began; None: there is no such process, or only what is left of one."""
    try:
        state, _, began = _status(process)
    except OSError:
        return None
    return None if state in _ENDED else began


def _status(process: Path) -> tuple[str, int, int]:
    """Its state's letter, its session, and when it began; also of one that has ended. Raises OSError."""
    fields = (process / "stat").read_bytes().rpartition(b")")[2].split()
    return fields[0].decode(), int(fields[3]), int(fields[19])
