"""The API server's refusals, in its own words (api-server-facts.md; messages as sent by 1.36)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import msgspec

Object = dict[str, Any]  # an API object: its schema is the client's business
"""An API object. Never changed once it is stored: a change is a new one."""

REASONS = {
    400: "BadRequest", 401: "Unauthorized", 403: "Forbidden", 404: "NotFound", 405: "MethodNotAllowed", 409: "Conflict",
    410: "Expired", 413: "RequestEntityTooLarge", 415: "UnsupportedMediaType", 422: "Invalid", 429: "TooManyRequests",
    500: "InternalError", 503: "ServiceUnavailable", 504: "Timeout",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A whole HTTP answer."""

    code: int
    body: bytes
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)


class Failure(Exception):  # noqa: N818 - "Status" with status Failure is the API's word
    """A request that is refused."""

    def __init__(
        self,
        code: int,
        message: str,
        *,
        reason: str | None = None,
        details: Object | None = None,
        metadata: Object | None = None,
        retry_after_s: int | None = None,
        plain: bool = False,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self._reason = REASONS.get(code, "") if reason is None else reason
        self._details = details
        self._metadata = metadata
        self._retry_after_s = retry_after_s
        self._plain = plain

    @classmethod
    def no_such_path(cls) -> Self:
        """A path that is not served; also every path of a kind whose definition was deleted. Plain text, not JSON."""
        return cls(404, "404 page not found\n", plain=True)

    @classmethod
    def not_found(cls, qualified: str, name: str) -> Self:
        """No object of that name."""
        return cls(404, f'{qualified} "{name}" not found', details={"name": name, "kind": qualified.partition(".")[0]})

    @classmethod
    def invalid(cls, qualified_kind: str, name: str, field_path: str, problem: str) -> Self:
        """An object that breaks a rule of its kind."""
        return cls(
            422,
            f'{qualified_kind} "{name}" is invalid: {field_path}: {problem}',
            details={"name": name, "causes": [{"field": field_path, "message": problem}]},
        )

    @property
    def status(self) -> Object:
        """The Status object."""
        status: Object = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": self._metadata or {},
            "status": "Failure",
            "message": self.message,
            "reason": self._reason,
            "code": self.code,
        }
        details = dict(self._details or {})
        if self._retry_after_s is not None:
            details["retryAfterSeconds"] = self._retry_after_s
        if details:
            status["details"] = details
        return status

    @property
    def answer(self) -> Answer:
        """As HTTP."""
        headers = {} if self._retry_after_s is None else {"Retry-After": str(self._retry_after_s)}
        if self._plain:
            return Answer(code=self.code, body=self.message.encode(), content_type="text/plain", headers=headers)
        return Answer(code=self.code, body=msgspec.json.encode(self.status), headers=headers)


def success(code: int = 201) -> Answer:
    """A Status that says yes."""
    status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": code}
    return Answer(code=code, body=msgspec.json.encode(status))
