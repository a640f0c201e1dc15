"""Bytes to the API server and back, over the official client: its authentication and its connections, nothing more.

Importing this module imports `kubernetes`: some 25 MiB and 0.15 to 0.35 s (DESIGN §10). Only `connect` does, after the
kubelet knows us.
"""
# mypy: untyped-calls-exclude="kubernetes"
# The official client is typed in part.

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from typing import assert_never

from kubernetes.client.api_client import ApiClient
from kubernetes.client.configuration import Configuration
from kubernetes.client.exceptions import ApiException
from kubernetes.client.rest import RESTResponse
from kubernetes.config.config_exception import ConfigException
from kubernetes.config.incluster_config import InClusterConfigLoader
from kubernetes.config.kube_config import load_kube_config
from urllib3.exceptions import HTTPError
from yaml import YAMLError

from sharer.adapters.kube.access import InCluster, KubeAccess, Kubeconfig
from sharer.adapters.kube.calls import Call
from sharer.adapters.kube.counters import KubeCounters, Tally
from sharer.adapters.kube.errors import ApiError, no_access, refused, unreachable
from sharer.adapters.kube.timings import KubeTimings
from sharer.core.holders.observations import ApiTroubleKind

MOST_ANSWER_BYTES = 64 * 2**20  # a page; of 500 GpuNodes with 160 holders each it has some 50 MB
MOST_LINE_BYTES = 8 * 2**20  # of one watch event; an object has at most 1.5 MiB
_CHUNK_BYTES = 2**16
_TOKEN = "authorization"  # the header, as the client spells it
_BAD_ACCESS = (ConfigException, YAMLError, OSError, ValueError, TypeError, LookupError, AttributeError)  # as found
_ERRORS = (HTTPError, ApiException, ConfigException, OSError)  # ConfigException: the token is re-read, and empty

log = logging.getLogger(__name__)


class Transport:
    """Sends requests from any thread. A 401 makes the client anew, from files as they are now, and tries once more."""

    def __init__(self, access: KubeAccess, timings: KubeTimings, user_agent: str) -> None:
        self._access = access
        self._timings = timings
        self._user_agent = user_agent
        self._tally = Tally()
        self._lock = threading.Lock()
        self._client: ApiClient | None = None  # None: to be made at the next request
        self.date: str | None = None  # of the last successful answer, as HTTP writes it; None: it said none

    def send(self, call: Call) -> bytes:
        """The whole body of a successful answer. Raises ApiError."""
        with self._errors_of(call):
            response = self._request(call)
            return _body(response)

    def open(self, call: Call, silence_s: float) -> Stream:
        """A successful answer that goes on for long. Without a byte for so long it ends in an ApiError.

        Its beginning must come as soon as any answer: the API server sends the head of a watch at once.
        """
        with self._errors_of(call):
            response = self._request(call)
            connection = response.response.connection
            if connection is not None and connection.sock is not None:  # None: it is over already
                connection.sock.settimeout(silence_s)
            return Stream(call, response, self._tally)

    def server(self) -> str:
        """The API server's address. Raises ApiError if it cannot be read where it stands."""
        host = self._ready_client().configuration.host
        assert isinstance(host, str)
        return host

    def counters(self) -> KubeCounters:
        """What was asked how often."""
        return self._tally.snapshot()

    def close(self) -> None:
        """Close the connections that nobody uses just now."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    def _request(self, call: Call) -> RESTResponse:
        for last_try in (False, True):
            client = self._ready_client()
            self._tally.request(call.verb, call.resource.plural)
            response = self._call(client, call)
            if 200 <= response.status < 300:
                self.date = response.headers.get("Date")
                return response
            error = refused(call, response.status, response.headers, _body(response))
            if error.kind is not ApiTroubleKind.UNAUTHORIZED or last_try:
                raise error
            self._tally.error(call.verb, error.code)
            self._forget(client)
        raise AssertionError("the second try returns or raises")

    def _call(self, client: ApiClient, call: Call) -> RESTResponse:
        wanted = {"Accept": "application/json"}
        if call.content_type is not None:
            wanted["Content-Type"] = call.content_type
        method, url, headers, body, form = client.param_serialize(
            call.method,
            call.path,
            query_params=list(call.query.items()),
            header_params=wanted,
            body=None if call.body is None else dict(call.body),
            auth_settings=["BearerToken"],
        )
        timeouts_s = (self._timings.connect_timeout_s, self._timings.answer_timeout_s)
        return client.call_api(method, url, self._sendable(headers), body, form, _request_timeout=timeouts_s)

    def _sendable(self, headers: dict[str, str]) -> dict[str, str]:
        """Without the line end of a token's file, as kubectl reads it. Raises ApiError, which does not quote the token.

        http.client would, in the message of its ValueError.
        """
        if (token := headers.get(_TOKEN)) is not None:
            headers[_TOKEN] = token = token.strip()
            if not (token.isascii() and token.isprintable()):
                raise no_access(self._access, ValueError("its token has a character that no HTTP header can carry"))
        return headers

    def _ready_client(self) -> ApiClient:
        with self._lock:
            if self._client is None:
                self._client = ApiClient(_configuration(self._access))
                self._client.user_agent = self._user_agent
            return self._client

    def _forget(self, client: ApiClient) -> None:
        """Make a new client at the next request, unless somebody has already done so."""
        with self._lock:
            if self._client is client:
                self._client = None
                client.close()

    @contextlib.contextmanager
    def _errors_of(self, call: Call) -> Iterator[None]:
        try:
            yield
        except ApiError as error:
            self._tally.error(call.verb, error.code)
            raise
        except _ERRORS as error:
            self._tally.error(call.verb, None)
            raise unreachable(call, error) from error


class Stream:
    """The lines of an answer that goes on for long. One thread reads; any thread may close."""

    def __init__(self, call: Call, response: RESTResponse, tally: Tally) -> None:
        self._call = call
        self._response = response
        self._tally = tally

    def lines(self) -> Iterator[bytes]:
        """Whole lines, as they come, until the server ends the stream; half a line at the end is dropped.

        Raises ApiError if the connection breaks, is silent for too long, or carries a line beyond all measure.
        """
        pieces: list[bytes] = []  # of the line that is still coming
        try:
            for chunk in self._response.response.stream(_CHUNK_BYTES, decode_content=True):
                *lines, rest = chunk.split(b"\n")
                if lines:
                    lines[0] = b"".join([*pieces, lines[0]])
                    pieces = []
                    yield from (line for line in lines if line.strip())
                pieces.append(rest)
                if len(pieces) * _CHUNK_BYTES > MOST_LINE_BYTES and sum(map(len, pieces)) > MOST_LINE_BYTES:
                    raise HTTPError(f"an event of more than {MOST_LINE_BYTES} bytes")
        except (HTTPError, OSError) as error:
            self._tally.error(self._call.verb, None)
            raise unreachable(self._call, error) from error

    def stop(self) -> None:
        """From another thread: let `lines` end now."""
        with contextlib.suppress(HTTPError, OSError, ValueError, RuntimeError):  # it has ended by itself
            self._response.response.shutdown()

    def close(self) -> None:
        """From the reading thread: give the connection up. It is in the middle of an answer, so it cannot be reused."""
        self._response.response.close()


def _body(response: RESTResponse) -> bytes:
    """The whole answer. Raises HTTPError if it is beyond all measure."""
    body = response.response.read(MOST_ANSWER_BYTES + 1, decode_content=True)
    assert isinstance(body, bytes)
    if len(body) > MOST_ANSWER_BYTES:
        response.response.close()
        raise HTTPError(f"an answer of more than {MOST_ANSWER_BYTES} bytes")
    return body


def _configuration(access: KubeAccess) -> Configuration:
    """Raises ApiError if a file is missing or wrong."""
    configuration = Configuration()
    try:
        _load(access, configuration)
    except _BAD_ACCESS as error:
        raise no_access(access, error) from error
    configuration.retries = False  # otherwise a 429 sleeps inside the call
    configuration.keep_alive = True  # the kernel notices a peer that is gone
    return configuration


def _load(access: KubeAccess, configuration: Configuration) -> None:
    match access:
        case InCluster():
            loader = InClusterConfigLoader(
                token_filename=str(access.directory / "token"),
                cert_filename=str(access.directory / "ca.crt"),
                environ=access.environment,
            )
            loader.load_and_set(configuration)  # re-reads the token every minute by itself
        case Kubeconfig():
            with _heard() as said:
                load_kube_config(
                    config_file=str(access.path),
                    context=access.context,
                    client_configuration=configuration,
                    persist_config=False,
                )
            if said and not configuration.api_key and configuration.cert_file is None:
                raise ConfigException(f"its command for credentials gave none: {said[0].removeprefix('exec: ')}")
        case _:
            assert_never(access)


@contextlib.contextmanager
def _heard() -> Iterator[list[str]]:
    """What this thread says meanwhile in the root logger's name.

    The official client does, where a command that a kubeconfig names gives no credentials, and goes on as nobody.
    """
    said: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.name == "root" and record.thread == threading.get_ident():
                said.append(record.getMessage())

    listener = Listener()
    logging.getLogger().addHandler(listener)
    try:
        yield said
    finally:
        logging.getLogger().removeHandler(listener)
