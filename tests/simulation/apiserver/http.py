"""A bare HTTP client for the tests of the simulated API server: nothing between the test and the bytes."""

from __future__ import annotations

import http.client
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import msgspec

from sharer.simulation.apiserver import ApiServer

PATIENCE_S = 10.0
APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"
PODS = "/api/v1/namespaces/default/pods"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A whole answer."""

    code: int
    body: bytes
    headers: Mapping[str, str]

    @property
    def json(self) -> Any:  # an API object: its schema is the test's business
        return msgspec.json.decode(self.body)

    @property
    def names(self) -> list[str]:
        """Of the items of a list."""
        return [item["metadata"]["name"] for item in self.json["items"]]

    @property
    def refusal(self) -> tuple[int, str]:
        """Code and message of a refusal."""
        return self.code, self.json["message"]


class Http:
    """Requests, each over a connection of its own."""

    def __init__(self, server: ApiServer, token: str | None = None) -> None:
        self._address = server.url.removeprefix("http://")
        self._token = token

    def get(self, path: str, **query: object) -> Reply:
        return self.send("GET", path, None, "", **query)

    def post(self, path: str, body: object, **query: object) -> Reply:
        return self.send("POST", path, body, "application/json", **query)

    def put(self, path: str, body: object, **query: object) -> Reply:
        return self.send("PUT", path, body, "application/json", **query)

    def apply(self, path: str, body: object, manager: str = "test", **query: object) -> Reply:
        return self.send("PATCH", path, body, APPLY, fieldManager=manager, **query)

    def merge(self, path: str, body: object, **query: object) -> Reply:
        return self.send("PATCH", path, body, MERGE, **query)

    def delete(self, path: str, body: object = None, **query: object) -> Reply:
        return self.send("DELETE", path, body, "application/json", **query)

    def get_as(self, accept: str, path: str, **query: object) -> Reply:
        """What a client gets that asks for something else than plain JSON."""
        return _whole(*self._open("GET", path, None, "", query, accept))

    def send(self, method: str, path: str, body: object = None, content_type: str = "", **query: object) -> Reply:
        return _whole(*self._open(method, path, body, content_type, query))

    def watch(self, path: str, **query: object) -> Watch:
        connection, response = self._open("GET", path, None, "", {"watch": 1, **query})
        return Watch(connection, response)

    def _open(
        self,
        method: str,
        path: str,
        body: object,
        content_type: str,
        query: Mapping[str, object],
        accept: str = "",
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        connection = http.client.HTTPConnection(self._address, timeout=PATIENCE_S)
        given = {"Content-Type": content_type, "Accept": accept}
        headers = {"User-Agent": "test", **{name: value for name, value in given.items() if value}}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        target = f"{path}?{urlencode(query)}" if query else path
        connection.request(method, target, None if body is None else msgspec.json.encode(body), headers)
        return connection, connection.getresponse()


def _whole(connection: http.client.HTTPConnection, response: http.client.HTTPResponse) -> Reply:
    try:
        return Reply(code=response.status, body=response.read(), headers=dict(response.headers))
    finally:
        connection.close()


class Watch:
    """A watch in progress."""

    def __init__(self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse) -> None:
        self._connection = connection
        self._response = response
        self.code = response.status

    def next(self) -> tuple[str, Any]:
        """The next event: its type and object."""
        line = self._response.readline()
        assert line.endswith(b"\n"), f"the watch ended with {line!r}"
        event = msgspec.json.decode(line)
        return event["type"], event["object"]

    def rest(self) -> bytes:
        """Everything up to the proper end of the stream."""
        return self._response.read()

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def events(watch: Watch, count: int) -> Iterator[tuple[str, str]]:
    """The next events: type and name."""
    for _ in range(count):
        kind, obj = watch.next()
        yield kind, obj["metadata"]["name"]
