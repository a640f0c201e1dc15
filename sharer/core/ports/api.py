"""The API server: how current a thing is that is followed, and what is told about pods and nodes."""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

from sharer.core.holders.observations import ApiSync
from sharer.core.values import dataclass


class Followed(Protocol):
    """Something that is followed through the API server."""

    @property
    def sync(self) -> ApiSync:
        """How current it is, and what is in the way."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiEvent:
    """News about an object, for `kubectl describe` and `kubectl events`."""

    kind: str  # "Pod" or "Node"
    namespace: str | None  # None: a cluster-scoped object
    name: str
    uid: str  # without it `kubectl describe` does not show the Event
    reason: str  # one word, "LimitNotEnforced"
    message: str
    about: str  # which part of the object, "main GPU-5a3f…"; with object and reason it names the Event
    is_warning: bool
    count: int  # how often it happened
    first_s: float  # on the wall clock, seconds since 1970
    last_s: float
    node_name: str  # where it was noticed


class Eviction(StrEnum):
    """What became of a wish to evict a pod."""

    ACCEPTED = "accepted"  # it is ending now, or was before
    BLOCKED = "blocked"  # a disruption budget does not allow it just now
    GONE = "gone"  # there is no pod of that name and UID any more


class ApiWriter(Protocol):
    """What sharer tells the API server about pods and nodes."""

    def tell(self, event: ApiEvent) -> None:
        """Publish an Event; the same object, reason and part of it update one Event. Raises NodeError."""
        ...

    def evict(self, namespace: str, name: str, uid: str) -> Eviction:
        """Ask for the end of exactly this pod, by its own grace period. Raises NodeError if nothing was decided."""
        ...
