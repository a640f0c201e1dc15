"""What goes wrong with a request, mapped once: who must act, and when it is worth asking again."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

import msgspec

from sharer.adapters.kube.access import KubeAccess, Kubeconfig
from sharer.adapters.kube.calls import Call
from sharer.adapters.kube.wire import Status
from sharer.core.api_error import ApiError as ApiError  # the adapter's own modules take it from here
from sharer.core.holders.observations import ApiTroubleKind

_KINDS = {
    401: ApiTroubleKind.UNAUTHORIZED,
    403: ApiTroubleKind.FORBIDDEN,
    410: ApiTroubleKind.EXPIRED,
    429: ApiTroubleKind.THROTTLED,
}
_SCHEMA_PROBLEM = "failed to create typed"  # sent as HTTP 500 (api-server-facts §3): asking again would never help
_CONNECTION = re.compile(r"HTTPS?Connection(?:Pool)?\(host='([^']*)', port=(\d+)\): ")  # urllib3's
_ERRNO = re.compile(r"\[Errno -?\d+\] ")
_TITLE = re.compile(r"^Invalid kube-config(?: file)?\. ")  # the official client's
_MOST_QUOTED = 300  # characters of an answer that end up in a message


def refused(call: Call, code: int, headers: Mapping[str, str], body: bytes) -> ApiError:
    """The error for an answer that is not a success."""
    status = _status(body)
    said = status.message or body[:_MOST_QUOTED].decode(errors="replace").strip() or "without a reason"
    return _error(call, code, said, status, _retry_after_s(headers.get("Retry-After"), status))


def refused_in_stream(call: Call, event: msgspec.Raw) -> ApiError:
    """The error for an ERROR event in a watch that began well."""
    status = _status(bytes(event))
    return _error(call, status.code or 500, status.message or "without a reason", status, _retry_after_s(None, status))


def unreachable(call: Call, error: Exception) -> ApiError:
    """The error for a request that got no answer, or half of one."""
    first = error.args[0] if error.args else None
    said = _plainly(first if isinstance(first, str) else str(error)) or type(error).__name__
    return ApiError(
        f"the API server cannot be reached to {call.verb} {call.what}: {said[:_MOST_QUOTED]}",
        kind=ApiTroubleKind.UNREACHABLE,
    )


def cut_short(call: Call, lasted_s: float) -> ApiError:
    """The error for a watch that ended properly, but so soon that the next one must wait."""
    return ApiError(
        f"the API server, or a proxy before it, ended the watch of {call.what} after {lasted_s:.1f} s",
        kind=ApiTroubleKind.UNREACHABLE,
    )


def unforeseen(call: Call, error: Exception) -> ApiError:
    """The error for a failure of our own while an answer was taken in."""
    return ApiError(
        f"sharer failed over the answer to {call.verb} {call.what}; please report this {type(error).__name__}: {error}",
        kind=ApiTroubleKind.SERVER,
    )


def no_access(access: KubeAccess, error: Exception) -> ApiError:
    """The error for credentials that cannot even be read."""
    said = _plainly(str(error))[:_MOST_QUOTED].rstrip(".")
    if isinstance(access, Kubeconfig) and os.pathsep not in str(access.path) and not access.path.exists():
        said = "there is no such file"
    elif isinstance(error, UnicodeDecodeError):
        said = "it is not text in UTF-8"
    elif isinstance(error, LookupError):
        said = f"it is not written as a kubeconfig is ({said})"
    elif isinstance(error, (TypeError, AttributeError)):
        said = "it is not written as a kubeconfig is"
    return ApiError(
        f"{access} cannot be used to reach the API server: {said}",
        kind=ApiTroubleKind.UNAUTHORIZED,
    )


def unreadable(call: Call, error: Exception) -> ApiError:
    """The error for an answer that makes no sense."""
    return ApiError(
        f"the API server's answer to {call.verb} {call.what} cannot be read: {error}; is it a Kubernetes API server,"
        " and of a version that this sharer knows?",
        kind=ApiTroubleKind.SERVER,
    )


def _plainly(said: str) -> str:
    """What a library says, in one line and without its own objects, numbers and titles."""
    in_one_line = " ".join(said.split())
    return _TITLE.sub("", _ERRNO.sub("", _CONNECTION.sub(r"port \2 of \1: ", in_one_line)))


def _error(call: Call, code: int, said: str, status: Status, retry_after_s: float | None) -> ApiError:
    kind = _KINDS.get(code, ApiTroubleKind.REFUSED if code < 500 else ApiTroubleKind.SERVER)
    if code == 500 and _SCHEMA_PROBLEM in said:
        kind = ApiTroubleKind.REFUSED
    match kind:
        case ApiTroubleKind.FORBIDDEN:
            message = (
                f"sharer may not {call.verb} {call.plural} {call.scope}; grant it {call.rule}."
                f" The API server says: {said}"
            )
        case ApiTroubleKind.UNAUTHORIZED:
            message = (
                f"the API server does not know sharer's credentials ({call.verb} {call.what}: {said});"
                " look at the service account's token, or the kubeconfig's user"
            )
        case ApiTroubleKind.EXPIRED:
            message = f"the API server has forgotten the version that sharer knows of {call.what}: {said}"
        case _:
            message = f"the API server refuses to {call.verb} {call.what}: {code}, {said}"
    causes = tuple(cause.reason for cause in status.details.causes) if status.details is not None else ()
    return ApiError(message, kind=kind, code=code, retry_after_s=retry_after_s, causes=causes)


def _status(body: bytes) -> Status:
    """The Status in an answer; an empty one if it is something else, as load balancers and 404s send."""
    try:
        return msgspec.json.decode(body, type=Status)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Status()


def _retry_after_s(header: str | None, status: Status) -> float | None:
    """None: it does not say, or says at once, as some proxies do; then the pauses are our own, and grow."""
    if header is not None and header.strip().isdecimal():
        told_s = float(header)
    else:
        told_s = float(status.details.retry_after_seconds) if status.details is not None else 0.0
    return told_s if told_s > 0 else None
