from __future__ import annotations

import contextlib
import os
import socket
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sharer.adapters.local_socket import CLIENTS, FILE_NAME, MAX_PATH_BYTES, LocalSocket, ask, socket_path
from sharer.core.errors import InputError, NodeError

PATIENCE_S = 30.0
LONG = b"x" * 4 * 2**20  # more than the kernel takes for a client that does not read


@pytest.fixture
def run_dir() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="s-", dir="/tmp") as folder:
        yield Path(folder) / "run"


@contextlib.contextmanager
def serving(run_dir: Path, answer: Callable[[], bytes], **options: float) -> Iterator[LocalSocket]:
    server = LocalSocket(run_dir, answer, **options)
    with contextlib.closing(server):
        server.open()
        yield server


def connected(run_dir: Path) -> socket.socket:
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    client.connect(str(run_dir / FILE_NAME))  # without a time limit: with one it is refused while others wait
    client.settimeout(PATIENCE_S)
    return client


def refusal(run_dir: Path) -> str:
    with pytest.raises(NodeError) as refused:
        ask(run_dir, timeout_s=PATIENCE_S)
    return str(refused.value)


def test_each_client_gets_one_answer_made_when_it_asks(run_dir: Path) -> None:
    answers = iter([b"first", b"second", LONG])
    with serving(run_dir, lambda: next(answers)):
        assert [ask(run_dir), ask(run_dir), ask(run_dir)] == [b"first", b"second", LONG]


def test_only_root_may_connect(run_dir: Path) -> None:
    """DESIGN §8: owners are nobody else's business."""
    with serving(run_dir, lambda: b"x") as server:
        status = server.path.stat()
        assert stat.S_ISSOCK(status.st_mode)
        assert stat.S_IMODE(status.st_mode) == 0o600
        assert stat.S_IMODE(run_dir.stat().st_mode) == 0o750


def test_the_mode_of_a_directory_that_was_there_before_is_left_alone(run_dir: Path) -> None:
    run_dir.mkdir(mode=0o755)
    with serving(run_dir, lambda: b"x"):
        assert stat.S_IMODE(run_dir.stat().st_mode) == 0o755


def test_nothing_of_it_is_left_at_the_end(run_dir: Path) -> None:
    with serving(run_dir, lambda: b"x"):
        assert os.listdir(run_dir) == [FILE_NAME]
    assert os.listdir(run_dir) == []
    assert "there is no such socket" in refusal(run_dir)


def test_the_socket_of_an_agent_that_died_is_replaced(run_dir: Path) -> None:
    run_dir.mkdir()
    dead = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    dead.bind(str(run_dir / FILE_NAME))
    dead.listen()
    dead.close()
    assert "the agent that made this socket has ended" in refusal(run_dir)
    with serving(run_dir, lambda: b"alive"):
        assert ask(run_dir) == b"alive"


def test_an_agent_that_ends_leaves_the_socket_of_another_one_alone(run_dir: Path) -> None:
    with serving(run_dir, lambda: b"x") as first, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        other.bind(str(run_dir / "other"))
        os.replace(run_dir / "other", first.path)
    assert os.listdir(run_dir) == [FILE_NAME]


def test_a_client_that_does_not_read_is_given_up_and_holds_nobody_up(run_dir: Path) -> None:
    answers = iter([*[LONG] * CLIENTS, b"short"])
    with serving(run_dir, lambda: next(answers), answer_deadline_s=0.2):
        stuck = [connected(run_dir) for _ in range(CLIENTS)]
        assert ask(run_dir, timeout_s=PATIENCE_S) == b"short"
        for client in stuck:
            client.close()


def test_a_client_that_drips_has_no_more_time_than_one_that_does_not_read(run_dir: Path) -> None:
    with serving(run_dir, lambda: LONG, answer_deadline_s=0.3), connected(run_dir) as slow:
        taken = 0
        while part := slow.recv(4096):
            taken += len(part)
            threading.Event().wait(0.01)
        assert taken < len(LONG)


def test_clients_that_go_away_do_no_harm(run_dir: Path) -> None:
    with serving(run_dir, lambda: LONG):
        for _ in range(20):
            connected(run_dir).close()
        assert ask(run_dir, timeout_s=PATIENCE_S) == LONG


def test_more_clients_than_are_served_at_a_time_all_get_their_answer(run_dir: Path) -> None:
    inside = threading.Semaphore(0)
    go = threading.Event()

    def answer() -> bytes:
        inside.release()
        assert go.wait(PATIENCE_S)
        return b"x"

    with serving(run_dir, answer):
        clients = [connected(run_dir) for _ in range(2 * CLIENTS)]
        for _ in range(CLIENTS):
            assert inside.acquire(timeout=PATIENCE_S)
        assert not inside.acquire(timeout=0.05), "one too many is served"
        go.set()
        assert [client.recv(10) for client in clients] == [b"x"] * len(clients)
        for client in clients:
            client.close()


def test_a_client_that_finds_the_queue_full_waits_as_long_as_it_said(run_dir: Path) -> None:
    go = threading.Event()

    def answer() -> bytes:
        assert go.wait(PATIENCE_S)
        return b"x"

    with serving(run_dir, answer), contextlib.ExitStack() as waiting, ThreadPoolExecutor(1) as pool:
        with contextlib.suppress(BlockingIOError):
            while True:
                client = waiting.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
                client.setblocking(False)
                client.connect(str(run_dir / FILE_NAME))
        with pytest.raises(NodeError, match="it did not answer in time"):
            ask(run_dir, timeout_s=0.1)
        late = pool.submit(ask, run_dir, PATIENCE_S)
        go.set()
        assert late.result() == b"x"


def test_an_answer_that_cannot_be_made_is_logged_and_the_next_client_is_served(
    run_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    failures = iter([True, False])

    def answer() -> bytes:
        if next(failures):
            raise ZeroDivisionError("a bug")
        return b"fine"

    with serving(run_dir, answer):
        assert "ended the connection without an answer; its log says why" in refusal(run_dir)
        assert ask(run_dir) == b"fine"
    assert "a bug" in caplog.text


def test_closing_wakes_every_thread_and_does_not_wait_for_a_client_that_is_stuck(run_dir: Path) -> None:
    server = LocalSocket(run_dir, lambda: LONG, answer_deadline_s=60.0)
    server.open()
    with connected(run_dir) as stuck:
        assert stuck.recv(1) == b"x"
        began_s = time.monotonic()
        server.close()
        assert time.monotonic() - began_s < 30.0  # it has 60 s to take its answer


def test_closing_what_was_never_opened_is_nothing(run_dir: Path) -> None:
    LocalSocket(run_dir, lambda: b"x").close()


def test_a_path_that_is_too_long_for_a_socket_is_a_wrong_setting(run_dir: Path) -> None:
    longest = Path("/" + "x" * (MAX_PATH_BYTES - len(FILE_NAME) - 2))
    assert len(str(socket_path(longest))) == MAX_PATH_BYTES
    with pytest.raises(InputError, match="is 1 bytes too long"):
        LocalSocket(Path(f"{longest}y"), lambda: b"x")


def test_a_socket_can_have_the_longest_path(run_dir: Path) -> None:
    folder = run_dir / ("x" * (MAX_PATH_BYTES - len(str(run_dir)) - len(FILE_NAME) - 2))
    with serving(folder, lambda: b"x") as server:
        assert len(str(server.path)) == MAX_PATH_BYTES
        assert ask(folder) == b"x"


def test_a_directory_in_which_no_socket_can_be_made_is_told_in_words() -> None:
    server = LocalSocket(Path("/proc/self"), lambda: b"x")
    with pytest.raises(NodeError, match="cannot listen on /proc/self/sharer.sock: .*`sharer report`"):
        server.open()
