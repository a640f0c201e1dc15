"""Three pages by HTTP, and nothing that a client could do with the rest."""

from __future__ import annotations

import contextlib
import http.client
import logging
import queue
import socket
import threading
from collections.abc import Callable, Iterator, Mapping

import pytest

from sharer.adapters.http import MOST_CLIENTS, MOST_REQUEST_BYTES, HttpServer, Page
from sharer.core.errors import NodeError
from tests.fakes.no_descriptor_left import no_descriptor_left

PATIENCE_S = 10.0
BIG = b"x" * 3_000_000


def fail() -> Page:
    raise ValueError("a bug")


PAGES: Mapping[str, Callable[[], Page]] = {
    "/healthz": lambda: Page(200, b"alive\n"),
    "/readyz": lambda: Page(503, b"no policy\n"),
    "/metrics": lambda: Page(200, BIG, "text/plain; version=0.0.4"),
    "/broken": fail,
}


@contextlib.contextmanager
def serving(request_s: float = 5.0, answer_s: float = 10.0) -> Iterator[tuple[str, int]]:
    server = HttpServer("127.0.0.1", 0, PAGES, request_s=request_s, answer_s=answer_s)
    thread = threading.Thread(target=server.serve)
    thread.start()
    try:
        yield server.address
    finally:
        server.close()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


@pytest.fixture
def address() -> Iterator[tuple[str, int]]:
    with serving() as found:
        yield found


def ask(address: tuple[str, int], path: str, method: str = "GET") -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection(*address, timeout=PATIENCE_S)
    connection.request(method, path)
    answer = connection.getresponse()
    connection.close()
    return answer


def raw(address: tuple[str, int], request: bytes) -> bytes:
    """Everything that comes back for these bytes; empty if the connection is only closed."""
    with socket.create_connection(address, PATIENCE_S) as client:
        client.sendall(request)
        found = b""
        with contextlib.suppress(ConnectionResetError):
            while piece := client.recv(65536):
                found += piece
        return found


def test_a_page_is_given_with_its_status_and_type_and_the_connection_ends(address: tuple[str, int]) -> None:
    answer = ask(address, "/readyz")
    assert (answer.status, answer.read()) == (503, b"no policy\n")
    assert answer.headers["Connection"] == "close"
    assert ask(address, "/healthz?verbose").status == 200
    assert ask(address, "/metrics").headers["Content-Type"] == "text/plain; version=0.0.4"


def test_a_large_page_arrives_whole(address: tuple[str, int]) -> None:
    assert ask(address, "/metrics").read() == BIG


@pytest.mark.parametrize("path", ["/", "/report", "/healthz/", "//healthz", "/%68ealthz", "/metrics/../secret", "*"])
def test_every_other_path_is_not_found(address: tuple[str, int], path: str) -> None:
    assert ask(address, path).status == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "get"])
def test_only_get_is_allowed(address: tuple[str, int], method: str) -> None:
    answer = ask(address, "/healthz", method)
    assert (answer.status, answer.headers["Allow"]) == (405, "GET")


def test_what_is_no_http_is_told_so(address: tuple[str, int]) -> None:
    assert raw(address, b"hello\r\n\r\n").startswith(b"HTTP/1.1 400 ")
    assert raw(address, b"GET /healthz SPDY/3\r\n\r\n").startswith(b"HTTP/1.1 400 ")
    assert raw(address, b"\xff\xfe /healthz HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 405 ")


def test_a_request_that_grows_and_grows_is_refused(address: tuple[str, int]) -> None:
    line = b"GET /healthz HTTP/1.1\r\n"
    header = b"X: " + b"y" * (MOST_REQUEST_BYTES - len(line) - 7)
    assert raw(address, line + header + b"\r\n\r\n").startswith(b"HTTP/1.1 200 ")
    assert raw(address, line + header + b"yy\r\n\r\n").startswith(b"HTTP/1.1 431 ")


def test_a_page_that_fails_is_an_error_and_the_next_one_is_not(address: tuple[str, int]) -> None:
    answer = ask(address, "/broken")
    assert (answer.status, b"ValueError" in answer.read()) == (500, False)
    assert ask(address, "/healthz").status == 200


def test_clients_that_never_finish_their_request_hold_nobody_up(address: tuple[str, int]) -> None:
    """More of them than there is room for: those that have been slow for longest go."""
    with contextlib.ExitStack() as closing:
        slow = [closing.enter_context(socket.create_connection(address, PATIENCE_S)) for _ in range(MOST_CLIENTS + 10)]
        for client in slow:
            with contextlib.suppress(ConnectionError):
                client.sendall(b"GET /healthz HTTP/1.1\r\nX: ")
        assert ask(address, "/healthz").status == 200
        with contextlib.suppress(ConnectionResetError):
            assert slow[0].recv(1) == b""


def test_a_client_that_does_not_ask_in_time_is_dropped() -> None:
    with (
        serving(request_s=0.05) as address,
        socket.create_connection(address, PATIENCE_S) as client,
        contextlib.suppress(ConnectionError),  # it may be dropped before it has said a word
    ):
        client.sendall(b"GET /heal")
        assert client.recv(1) == b""


def test_a_client_that_does_not_take_its_answer_is_dropped() -> None:
    with serving(answer_s=0.1) as address, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(PATIENCE_S)
        client.connect(address)
        client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        threading.Event().wait(2.0)  # it does nothing for longer than it may
        taken = 0
        with contextlib.suppress(ConnectionResetError):
            while piece := client.recv(65536):
                taken += len(piece)
        assert taken < len(BIG)


def test_an_address_that_is_taken_or_none_is_said_with_its_flag(address: tuple[str, int]) -> None:
    with pytest.raises(NodeError, match=r"cannot listen on 127.0.0.1 port \d+ \(--http\)"):
        HttpServer(*address, PAGES)
    with pytest.raises(NodeError, match="cannot listen on example port 80"):
        HttpServer("example", 80, PAGES)


def test_only_the_given_address_is_listened_on(address: tuple[str, int]) -> None:
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", address[1]), PATIENCE_S)


class Said(logging.Handler):
    """What the server logs, as it comes."""

    def __init__(self) -> None:
        super().__init__()
        self.levels: queue.SimpleQueue[int] = queue.SimpleQueue()

    def emit(self, record: logging.LogRecord) -> None:
        self.levels.put(record.levelno)


def test_without_a_descriptor_for_a_client_one_line_says_so_and_the_client_is_served_later() -> None:
    """Reported of plugins that repeat one line for days: whoever tries again each second says it once."""
    server, said = HttpServer("127.0.0.1", 0, PAGES), Said()
    server_log = logging.getLogger("sharer.adapters.http")
    before = server_log.level
    server_log.addHandler(said)
    server_log.setLevel(logging.DEBUG)
    thread = threading.Thread(target=server.serve)
    try:
        with socket.socket() as client:
            client.settimeout(PATIENCE_S)
            thread.start()
            with no_descriptor_left():
                client.connect(server.address)
                levels = [said.levels.get(timeout=PATIENCE_S) for _ in range(3)]
            assert levels == [logging.WARNING, logging.DEBUG, logging.DEBUG]
            client.sendall(b"GET /healthz HTTP/1.1\r\n\r\n")
            assert client.recv(100).startswith(b"HTTP/1.1 200")
    finally:
        server_log.removeHandler(said)
        server_log.setLevel(before)
        server.close()
        thread.join(PATIENCE_S)
