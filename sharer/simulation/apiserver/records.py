"""What the simulated API server tells whoever drives it: plain values, safe to keep and to compare."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request as it arrived, and what became of it."""

    number: int  # counts all requests of this server, from 1
    at_s: float  # on the server's clock
    method: str
    path: str
    query: Mapping[str, str]
    verb: str  # as in a rule: "list", "watch", "patch"; for a path that is no resource the method in small letters
    resource: str | None = None  # as in a rule: "pods", "pods/eviction"; None: no resource, such as /version
    namespace: str | None = None
    name: str | None = None
    user_agent: str = ""
    content_type: str = ""
    token: str | None = None  # bearer token; None: no Authorization header
    code: int | None = None  # HTTP status of the answer; None: none was sent (yet)


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchInfo:
    """A watch that is being served."""

    resource: str
    namespace: str | None
    field_selector: str
    since: int  # the resourceVersion it started from


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule of a Role or ClusterRole. "*" stands for everything."""

    groups: tuple[str, ...]
    resources: tuple[str, ...]  # "pods", "pods/eviction"
    verbs: tuple[str, ...]
    names: tuple[str, ...] = ()  # resourceNames; empty: any
    namespace: str | None = None  # of the Role; None: a ClusterRole bound for the whole cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """How this server differs from a default 1.36."""

    history: int = 1000  # changes that a watch can go back to
    bookmark_every_s: float = 60.0
    default_watch_s: float = 1800.0  # of a watch without timeoutSeconds
    user: str = "system:serviceaccount:sharer:sharer-agent"  # in refusals: whoever asks
    git_version: str = "v1.36.2"
    requests_kept: int = 50_000
