"""HTTP/1.1 in front of `api`: one thread a connection, kept alive; watches as chunked streams."""

from __future__ import annotations

import logging
import select
import socket
import ssl
import struct
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import assert_never
from urllib.parse import parse_qsl, urlsplit

from sharer.simulation.apiserver.api import Api, WatchAnswer
from sharer.simulation.apiserver.faults import Fail, Faults, Hang, Reset
from sharer.simulation.apiserver.journal import Journal
from sharer.simulation.apiserver.records import Request, ServerSettings
from sharer.simulation.apiserver.statuses import Answer, Failure
from sharer.simulation.apiserver.store import Store
from sharer.simulation.apiserver.watcher import Ending, Watcher

MOST_RECEIVED_BYTES = 3 * 2**20
MOST_READ_BYTES = 16 * 2**20  # of a body that is too large all the same: a client that still writes hears no answer
PEER_CHECK_S = 0.3  # how soon a watch whose client has left is given up
LAST_BOOKMARK_S = 2.0  # before the timeout

log = logging.getLogger(__name__)


class HttpServer(ThreadingHTTPServer):
    """Listens from its making to `end`."""

    request_queue_size = 512
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False

    def __init__(
        self,
        port: int,
        tls: ssl.SSLContext | None,
        settings: ServerSettings,
        api: Api,
        store: Store,
        faults: Faults,
        journal: Journal,
        clock: Callable[[], float],
    ) -> None:
        self.settings = settings
        self.api = api
        self.store = store
        self.faults = faults
        self.journal = journal
        self.clock = clock
        self.ended = threading.Event()
        self.broken: set[socket.socket] = set()  # connections that are to end with a reset
        self._tls = tls
        self._lock = threading.Lock()
        self._connections: dict[socket.socket, threading.Thread] = {}
        super().__init__(("127.0.0.1", port), Handler)
        self._listener = threading.Thread(target=self.serve_forever, args=(0.02,), name="apiserver", daemon=True)
        self._listener.start()

    def end(self) -> None:
        """Take no more connections, break those that there are, leave no thread."""
        self.ended.set()
        self.shutdown()
        self._listener.join()
        self.server_close()
        for watcher in self.store.watchers():
            watcher.end(Ending.RESET)
        with self._lock:
            connections = dict(self._connections)
        for connection in connections:
            _shut(connection)
        for thread in connections.values():
            thread.join()

    def process_request(self, request, client_address) -> None:  # type: ignore[no-untyped-def]  # typeshed's union
        """Serve a connection on a thread that `end` knows."""
        thread = threading.Thread(
            target=self.process_request_thread, args=(request, client_address), name="apiserver-client", daemon=True
        )
        with self._lock:
            self._connections[request] = thread
        thread.start()

    def finish_request(self, request, client_address) -> None:  # type: ignore[no-untyped-def]  # typeshed's union
        """The whole life of a connection, on its thread."""
        if self._tls is None:
            super().finish_request(request, client_address)
            return
        secure = self._tls.wrap_socket(request, server_side=True, do_handshake_on_connect=False)
        with self._lock:  # so that `end` can wake the thread that reads from it
            self._connections[secure] = self._connections.pop(request)
        try:
            secure.do_handshake()
            super().finish_request(secure, client_address)
        finally:
            with self._lock:
                self._connections.pop(secure, None)
            self.broken.discard(secure)
            secure.close()

    def shutdown_request(self, request) -> None:  # type: ignore[no-untyped-def]  # typeshed's union
        """The end of a connection: properly, or with a reset."""
        with self._lock:
            self._connections.pop(request, None)
        if request in self.broken:
            self.broken.discard(request)
            self.close_request(request)
        else:
            super().shutdown_request(request)

    def handle_error(self, request, client_address) -> None:  # type: ignore[no-untyped-def]  # typeshed's union
        """A client that leaves in the middle is no error; anything else is a fault of this simulation."""
        level = logging.DEBUG if isinstance(sys.exception(), OSError) else logging.ERROR
        log.log(level, "a connection from %s broke", client_address, exc_info=True)


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: HttpServer

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it
        """The journal is the log."""

    def do_GET(self) -> None:
        """Any method."""
        length = int(self.headers.get("Content-Length") or 0)
        split = urlsplit(self.path)
        query = dict(parse_qsl(split.query, keep_blank_values=True))
        api, target = self.server.api, self.server.api.target(split.path)
        scheme, _, token = (self.headers.get("Authorization") or "").partition(" ")
        request = self.server.journal.arrived(
            Request(
                number=0,
                at_s=self.server.clock(),
                method=self.command,
                path=split.path,
                query=query,
                verb=api.verb(self.command, target, query),
                resource=target.resource if target else None,
                namespace=target.namespace if target else None,
                name=target.name if target else None,
                user_agent=self.headers.get("User-Agent") or "",
                content_type=self.headers.get("Content-Type") or "",
                token=token.strip() if scheme.lower() == "bearer" else None,
            )
        )
        body = self.rfile.read(min(length, MOST_READ_BYTES))
        if length > MOST_RECEIVED_BYTES:
            self.close_connection = True
            self._send(request, Failure(413, f"Request entity too large: limit is {MOST_RECEIVED_BYTES}").answer)
            return
        self._answer(request, body)

    do_POST = do_PATCH = do_DELETE = do_PUT = do_GET  # noqa: N815

    def _answer(self, request: Request, body: bytes) -> None:
        fault = self.server.faults.take(request)
        answer: Answer | WatchAnswer
        match fault:
            case Hang():
                self.server.faults.hang()
                self.close_connection = True
                return
            case Reset():
                self._reset()
                return
            case Fail():
                answer = fault.answer()
            case None:
                try:
                    self.server.api.authenticate(request.token)
                    accept = self.headers.get("Accept") or ""
                    answer = self.server.api.answer(
                        request.verb, request.path, request.query, accept, request.content_type, body
                    )
                except Failure as failure:
                    answer = failure.answer
            case _:
                assert_never(fault)
        if isinstance(answer, WatchAnswer):
            self._stream(request, answer)
        else:
            self._send(request, answer)

    def _send(self, request: Request, answer: Answer) -> None:
        self.server.journal.answered(request, answer.code)
        self.send_response(answer.code)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(answer.body)

    # -- watches

    def _stream(self, request: Request, watch: WatchAnswer) -> None:
        watcher = watch.watcher
        try:
            self.server.journal.answered(request, 200)
            watcher.is_served = True
            self.server.journal.changed()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            how = self._feed(watch)
            self._unfollow(watcher)  # first: whoever sees the end must not find the watch still counted
            self._interrupted(how)
        finally:
            self._unfollow(watcher)

    def _unfollow(self, watcher: Watcher) -> None:
        self.server.store.unfollow(watcher)
        self.server.journal.changed()

    def _feed(self, watch: WatchAnswer) -> tuple[Ending, bytes]:
        """Send events until something ends the stream. Returns what, and the line that it broke in if it did."""
        settings, watcher = self.server.settings, watch.watcher
        begun_s = time.monotonic()
        ends_s = begun_s + (settings.default_watch_s if watch.timeout_s is None else watch.timeout_s)
        bookmark_s = min(begun_s + settings.bookmark_every_s, ends_s - LAST_BOOKMARK_S) if watch.bookmarks else ends_s
        while not self.server.ended.is_set():
            now_s = time.monotonic()
            if now_s >= ends_s:
                return Ending.CLEAN, b""
            if now_s >= bookmark_s:
                self.server.store.bookmark(watcher)
                last_s = ends_s - LAST_BOOKMARK_S
                bookmark_s = min(now_s + settings.bookmark_every_s, last_s) if now_s < last_s else ends_s
            item = watcher.next(min(ends_s - now_s, bookmark_s - now_s, PEER_CHECK_S))
            if isinstance(item, bytes):
                self.wfile.write(b"%x\r\n%b\r\n" % (len(item), item))
            elif item in (Ending.CUT, Ending.HALF_LINE):
                line = watcher.next(0)
                return item, line if isinstance(line, bytes) else b'{"type":"MODIFIED","object":{"metadata":{}}}\n'
            elif item is not None:
                return item, b""
            elif self._peer_has_left():
                return Ending.RESET, b""
        return watcher.ending() or Ending.RESET, b""

    def _interrupted(self, how: tuple[Ending, bytes]) -> None:
        ending, line = how
        half = line[: len(line) // 2]
        match ending:
            case Ending.CLEAN:
                self.wfile.write(b"0\r\n\r\n")
            case Ending.HALF_LINE:
                self.wfile.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(half), half))
            case Ending.CUT:
                self.wfile.write(b"%x\r\n%b" % (len(line), half))
                self.close_connection = True
            case Ending.RESET:
                self._reset()
            case Ending.SILENT:
                while not self._peer_has_left() and not self.server.ended.wait(PEER_CHECK_S):
                    pass
                self.close_connection = True
            case _:
                assert_never(ending)

    def _peer_has_left(self) -> bool:
        """A client sends nothing while it gets a stream: what can be read is the end."""
        poll = select.poll()
        poll.register(self.connection, select.POLLIN)
        return bool(poll.poll(0))

    def _reset(self) -> None:
        """Let the end of the connection be a reset: without a farewell, and with what was not sent dropped."""
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.server.broken.add(self.connection)


def _shut(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        log.debug("a connection had ended by itself")
