"""HTTP for probes and scrapers: a GET of a few fixed paths, and nothing else.

One thread serves every connection without waiting for any of them, so a client that sends or reads slowly holds a
socket for some seconds and nobody up. There are at most `MOST_CLIENTS`; the one that has been slow for longest makes
room for the next. Nothing of a request counts but its first line; each connection is closed after its answer. While
nobody asks, the thread sleeps in one system call.

The standard library's server has a thread for each connection, for as long as a client likes.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from sharer.core.errors import NodeError

MOST_CLIENTS = 64
MOST_REQUEST_BYTES = 8192  # with all headers
REQUEST_S = 5.0  # until a request must be there
ANSWER_S = 10.0  # until an answer must have been taken
_PIECE_BYTES = 65536
_PAUSE_S = 1.0  # after a failed accept: no file descriptor is left, say
_TEXT = "text/plain; charset=utf-8"
_PHRASES = {
    200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 431: "Request Header Fields Too Large",
    500: "Internal Server Error", 503: "Service Unavailable",
}  # fmt: skip

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Page:
    """An answer."""

    status: int
    body: bytes
    content_type: str = _TEXT


Pages = Mapping[str, Callable[[], Page]]
"""By path. Each is called for every request of it, on the server's thread."""


@dataclass(slots=True)
class _Client:
    """One connection."""

    socket: socket.socket
    until_s: float
    request: bytearray = field(default_factory=bytearray)
    answer: memoryview | None = None  # None: the request is not whole yet


class HttpServer:
    """Listens once it is made, and answers while `serve` runs."""

    def __init__(
        self, host: str, port: int, pages: Pages, *, request_s: float = REQUEST_S, answer_s: float = ANSWER_S
    ) -> None:
        """Listen on this one address, or on every one for "". Raises NodeError if it cannot be had."""
        self._pages = pages
        self._request_s, self._answer_s = request_s, answer_s
        self._clients: dict[socket.socket, _Client] = {}  # the longest here first
        self._accept_again_s: float | None = None  # None: connections are accepted
        self._level = logging.WARNING  # of the next failure to accept one: a node may be without descriptors for hours
        self._level = logging.WARNING  # of the next failure to accept one: a node may be without descriptors for hours
        self._level = logging.WARNING  # of the next failure to accept one: a node may be without descriptors for hours
        self._listener = _listen(host, port)
        self._wake, self._woken = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens: for port 0 the one that the system chose."""
        found: tuple[str, int] = self._listener.getsockname()[:2]
        return found

    def close(self) -> None:
        """Have `serve` end soon, also one that has not begun. On any thread."""
        self._wake.close()

    def serve(self) -> None:
        """Answer until closed, and let go of everything then. Once."""
        try:
            while self._round():
                pass
        finally:
            for client in list(self._clients.values()):
                self._drop(client)
            self._listener.close()
            self._woken.close()
            self._selector.close()

    # All below is done in the thread of `serve`.

    def _round(self) -> bool:
        """Wait for something to do, and do it. False: it is the end."""
        for key, _ in self._selector.select(self._left_s()):
            if key.fileobj is self._woken:
                return False
            if key.fileobj is self._listener:
                self._accept()
            elif isinstance(key.data, _Client):
                self._go_on(key.data)
        self._drop_late()
        return True

    def _left_s(self) -> float | None:
        """Until something has to be done without any event; None: never."""
        ends_s = [client.until_s for client in self._clients.values()]
        if self._accept_again_s is not None:
            ends_s.append(self._accept_again_s)
        return max(0.0, min(ends_s) - time.monotonic()) if ends_s else None

    def _accept(self) -> None:
        try:
            one, _ = self._listener.accept()
        except (BlockingIOError, ConnectionError):  # the client has thought better of it
            return
        except OSError as error:
            log.log(self._level, "no HTTP client can be accepted: %s", error.strerror)
            self._level = logging.DEBUG
            self._selector.unregister(self._listener)
            self._accept_again_s = time.monotonic() + _PAUSE_S
            return
        self._level = logging.WARNING
        one.setblocking(False)
        if len(self._clients) >= MOST_CLIENTS:
            self._drop(next(iter(self._clients.values())))
        client = self._clients[one] = _Client(one, time.monotonic() + self._request_s)
        self._selector.register(one, selectors.EVENT_READ, client)

    def _drop_late(self) -> None:
        now_s = time.monotonic()
        for client in [client for client in self._clients.values() if client.until_s <= now_s]:
            self._drop(client)
        if self._accept_again_s is not None and self._accept_again_s <= now_s:
            self._accept_again_s = None
            self._selector.register(self._listener, selectors.EVENT_READ)

    def _drop(self, client: _Client) -> None:
        if self._clients.pop(client.socket, None) is not None:
            self._selector.unregister(client.socket)
            client.socket.close()

    def _go_on(self, client: _Client) -> None:
        """Read some more of a request, or write some more of its answer."""
        try:
            if client.answer is None:
                self._read(client)
            if client.answer is not None:
                sent = client.socket.send(client.answer[:_PIECE_BYTES])
                client.answer = client.answer[sent:]
                if not client.answer:
                    self._end(client)
        except BlockingIOError:
            pass  # it reads slowly
        except OSError:  # it went away
            self._drop(client)

    def _read(self, client: _Client) -> None:
        piece = client.socket.recv(_PIECE_BYTES)
        client.request += piece
        if not piece:
            raise ConnectionResetError
        if len(client.request) > MOST_REQUEST_BYTES:
            page = Page(431, b"the request is too long\n")
        elif b"\r\n\r\n" in client.request or b"\n\n" in client.request:
            page = self._page(bytes(client.request))
        else:
            return
        body = b"" if client.request.startswith(b"HEAD ") else page.body
        head = (
            f"HTTP/1.1 {page.status} {_PHRASES[page.status]}\r\nContent-Type: {page.content_type}\r\n"
            f"Content-Length: {len(page.body)}\r\nConnection: close\r\n"
            + ("Allow: GET\r\n" if page.status == 405 else "")
            + "\r\n"
        )
        client.answer = memoryview(head.encode() + body)
        client.until_s = time.monotonic() + self._answer_s
        self._selector.modify(client.socket, selectors.EVENT_WRITE, client)

    def _page(self, request: bytes) -> Page:
        words = request.split(b"\n", 1)[0].split()
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            return Page(400, b"this is not an HTTP/1 request\n")
        path = words[1].split(b"?", 1)[0].decode("ascii", "replace")
        make = self._pages.get(path)
        if make is None:
            return Page(404, f"there is {', '.join(self._pages)}, and nothing else\n".encode())
        if words[0] != b"GET":
            return Page(405, b"only GET is allowed\n")
        try:
            return make()
        except Exception:  # the thread's boundary: the next request may fare better
            log.exception("%s could not be answered", path)
            return Page(500, b"it could not be answered; the agent's log says why\n")

    def _end(self, client: _Client) -> None:
        """Close. With something left unread, the system would take the answer back."""
        with contextlib.suppress(OSError):
            client.socket.recv(_PIECE_BYTES)
        self._drop(client)


def _listen(host: str, port: int) -> socket.socket:
    try:
        if host:
            [(family, _, _, _, address), *_] = socket.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
            )
            listener = socket.create_server((str(address[0]), port), family=family, backlog=MOST_CLIENTS)
        elif socket.has_dualstack_ipv6():
            listener = socket.create_server(
                ("", port), family=socket.AF_INET6, backlog=MOST_CLIENTS, dualstack_ipv6=True
            )
        else:
            listener = socket.create_server(("", port), backlog=MOST_CLIENTS)
    except OSError as error:
        raise NodeError(
            f"cannot listen on {host or 'any address,'} port {port} (--http): {error.strerror or error}; metrics and"
            " probes are not served"
        ) from error
    listener.setblocking(False)
    return listener
