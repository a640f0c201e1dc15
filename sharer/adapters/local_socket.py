"""RUN_DIR/sharer.sock: whoever connects gets one answer, until the end of the stream. Root only.

Nothing is read from a client, so a connection is all that it can spend, and it can hold a thread for no longer than the
deadline of one answer. A few are served at a time, and their threads made as they come; others wait in the kernel's
queue.

The file comes into its place ready, by rename: its mode is set and somebody listens. That replaces the leftover of an
agent that died, in the same step; only who holds the agent's lock may do so.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

from sharer.core.errors import InputError, NodeError

FILE_NAME = "sharer.sock"
MAX_PATH_BYTES = 107  # sun_path of a unix socket address, less its final zero
MAX_ANSWER_BYTES = 64 * 2**20  # 4,000 slices make about 2 MB; a client takes no more than this
CLIENTS = 3  # at a time
ANSWER_DEADLINE_S = 5.0  # to write a whole answer, however slowly a client reads
_BACKLOG = 16
_CLOSE_S = 1.0  # the agent's end does not wait longer for clients
_PAUSE_S = 1.0  # after a failed accept: no file descriptor is left, say
_QUEUE_S = 0.02  # between two tries of a client to get into a queue that is full

log = logging.getLogger(__name__)


class LocalSocket:
    """Serves answers from `open` to `close`. Open it only while holding the agent's lock."""

    def __init__(
        self, run_dir: Path, answer: Callable[[], bytes], *, answer_deadline_s: float = ANSWER_DEADLINE_S
    ) -> None:
        """`answer` is called once a client, on several threads. Raises InputError if the socket's path is too long."""
        self.path = socket_path(run_dir)
        self._answer = answer
        self._answer_deadline_s = answer_deadline_s
        self._closed = threading.Event()
        self._listener: socket.socket | None = None
        self._identity: tuple[int, int] | None = None
        self._counting = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._waiting = 0  # of these, who waits for a client

    def open(self) -> None:
        """Listen from now on. Raises NodeError if the socket cannot be made; it may be tried again then."""
        new = self.path.with_name(f".{os.urandom(3).hex()}.s")  # no longer than the socket's own name
        try:
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        except OSError as error:
            raise self._cannot_listen(error) from error
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o750)
            listener.bind(str(new))
            try:
                os.chmod(new, 0o600)
                listener.listen(_BACKLOG)
                self._identity = _identity(new)
                os.replace(new, self.path)
            except OSError:
                new.unlink()
                raise
        except OSError as error:
            listener.close()
            raise self._cannot_listen(error) from error
        self._listener = listener
        self._have_one_waiting()

    def close(self) -> None:
        """Stop listening and remove the socket, unless another one has its place. Answers under way have a second."""
        if self._listener is None:
            return
        self._closed.set()
        with contextlib.suppress(OSError):
            if _identity(self.path) == self._identity:
                self.path.unlink()
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes every thread that waits for a client
        until_s = time.monotonic() + _CLOSE_S
        with self._counting:
            threads = list(self._threads)
        for thread in threads:
            thread.join(max(0.0, until_s - time.monotonic()))
        self._listener.close()

    def _cannot_listen(self, error: OSError) -> NodeError:
        return NodeError(
            f"cannot listen on {self.path}: {error.strerror}; until it can, `sharer report` does not reach this agent"
        )

    def _have_one_waiting(self) -> None:
        """Start a thread if nobody waits for a client, and there may be one more."""
        with self._counting:
            if self._waiting or len(self._threads) == CLIENTS or self._closed.is_set():
                return
            thread = threading.Thread(target=self._serve, name=f"sharer-socket-{len(self._threads)}", daemon=True)
            thread.start()
            self._threads.append(thread)
            self._waiting += 1

    def _count_waiting(self, change: int) -> None:
        with self._counting:
            self._waiting += change

    def _serve(self) -> None:
        assert self._listener is not None
        level = logging.WARNING
        while not self._closed.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError as error:
                if not self._closed.wait(_PAUSE_S):
                    log.log(level, "no client of %s can be accepted: %s", self.path, error.strerror)
                    level = logging.DEBUG
                continue
            level = logging.WARNING
            self._count_waiting(-1)
            with client:
                with contextlib.suppress(RuntimeError):  # no thread can be made: the next client waits for this one
                    self._have_one_waiting()
                self._give(client)
            self._count_waiting(+1)

    def _give(self, client: socket.socket) -> None:
        try:
            answer = self._answer()
        except Exception:  # a thread's boundary: the next client may fare better
            log.exception("no answer could be made for a client of %s", self.path)
            return
        client.settimeout(self._answer_deadline_s)  # for all of `sendall`
        try:
            client.sendall(answer)
        except OSError as error:  # it went away, or does not read
            log.debug("a client of %s did not take its answer: %s", self.path, error)


def socket_path(run_dir: Path) -> Path:
    """Where an agent with this RUN_DIR listens. Raises InputError if that is too long for a socket."""
    path = run_dir / FILE_NAME
    length = len(os.fsencode(path))
    if length > MAX_PATH_BYTES:
        raise InputError(
            f"--run-dir {run_dir} is {length - MAX_PATH_BYTES} bytes too long: {FILE_NAME} in it has a path of {length}"
            f" bytes, and a unix socket's has at most {MAX_PATH_BYTES}. Use a shorter one"
        )
    return path


def ask(run_dir: Path, timeout_s: float = 10.0) -> bytes:
    """The answer of the agent with this RUN_DIR.

    Raises NodeError, in words for the person who asks, if there is none within the timeout; InputError for a path that
    no socket can have.
    """
    path = socket_path(run_dir)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.settimeout(timeout_s)
        try:
            _connect(server, path, time.monotonic() + timeout_s)
            answer = _read_all(server)
        except OSError as error:
            raise NodeError(f"no agent answers on {path}: {_why(error)}") from error
    if not answer:
        raise NodeError(f"the agent on {path} ended the connection without an answer; its log says why")
    return answer


def _connect(server: socket.socket, path: Path, until_s: float) -> None:
    """Raises OSError. Who has a time limit is refused by the kernel at once while its queue is full, and waits here."""
    while True:
        try:
            server.connect(str(path))
        except BlockingIOError:
            if time.monotonic() >= until_s:
                raise
            time.sleep(_QUEUE_S)
        else:
            return


def _read_all(server: socket.socket) -> bytes:
    parts: list[bytes] = []
    size = 0
    while part := server.recv(2**16):
        parts.append(part)
        size += len(part)
        if size > MAX_ANSWER_BYTES:
            raise OSError(f"its answer is longer than {MAX_ANSWER_BYTES} bytes")
    return b"".join(parts)


def _why(error: OSError) -> str:
    match error:
        case FileNotFoundError():
            return "there is no such socket. Run this where the agent runs (kubectl exec), or name its --run-dir"
        case ConnectionRefusedError():
            return "the agent that made this socket has ended. See its pod's log; a new one replaces the socket"
        case PermissionError():
            return "permission denied; only root may read the report"
        case TimeoutError() | BlockingIOError():
            return "it did not answer in time. Other clients, or an overloaded node? Try again, or see the agent's log"
        case _:
            return error.strerror or str(error)


def _identity(path: Path) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_dev, status.st_ino
