"""Which objects to follow, and what they are at one moment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic, Protocol, TypeVar

import msgspec

from sharer.adapters.kube.calls import Call
from sharer.adapters.kube.wire import ObjectMeta, Page
from sharer.core.values import dataclass


class HasMetadata(Protocol):
    """Any object on the wire."""

    @property
    def metadata(self) -> ObjectMeta:
        """Its identity and version."""
        ...


W = TypeVar("W", bound=HasMetadata)
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Collection(Generic[W, T]):
    """Objects that one list names, and how they are read."""

    call: Call  # the list; its query holds the selector
    one: msgspec.json.Decoder[W]
    page: msgspec.json.Decoder[Page[W]]
    seen: Callable[[W], T]  # in the core's words; two that are equal are no change
    missed: str  # what does not work while they are not followed, for people


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot(Generic[T]):
    """All objects of a collection at one moment."""

    objects: Mapping[str, T]  # by UID
    synced_at_s: float  # when the API server last confirmed it
    resource_version: str
