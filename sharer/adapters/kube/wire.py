"""The few fields that sharer reads, as msgspec decodes them. Everything else is skipped without being built."""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

W = TypeVar("W")


class Read(msgspec.Struct, frozen=True, kw_only=True, rename="camel", gc=False):
    """Fields in camelCase, unknown ones skipped."""


class ListMeta(Read, frozen=True):
    """Of a list, or a bookmark."""

    resource_version: str
    continue_: str = msgspec.field(name="continue", default="")


class Page(msgspec.Struct, Generic[W], frozen=True, kw_only=True):
    """One page of a list."""

    metadata: ListMeta
    items: list[W] | None = None


class WatchEvent(Read, frozen=True):
    """One line of a watch."""

    type: str
    object: msgspec.Raw


class Bookmark(Read, frozen=True):
    """The object of a BOOKMARK."""

    metadata: ListMeta


class StatusCause(Read, frozen=True):
    """A machine-readable part of a refusal."""

    reason: str = ""


class StatusDetails(Read, frozen=True):
    """More about a refusal."""

    retry_after_seconds: int = 0
    causes: tuple[StatusCause, ...] = ()


class Status(Read, frozen=True):
    """A refusal."""

    message: str = ""
    reason: str = ""
    code: int = 0
    details: StatusDetails | None = None


class ObjectMeta(Read, frozen=True):
    """Of any object."""

    name: str
    uid: str
    namespace: str = ""
    resource_version: str = ""
    deletion_timestamp: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class ContainerResources(Read, frozen=True):
    """What a container asks for."""

    limits: dict[str, str] | None = None


class Container(Read, frozen=True):
    """A container of a pod's spec."""

    name: str
    resources: ContainerResources = ContainerResources()
    restart_policy: str | None = None


class PodSpec(Read, frozen=True):
    """Of a pod."""

    node_name: str | None = None
    init_containers: list[Container] | None = None
    containers: list[Container] | None = None


class ContainerStatus(Read, frozen=True):
    """A container as the kubelet last reported it."""

    name: str
    container_id: str = msgspec.field(name="containerID", default="")  # "containerd://<id>"; "" before the first start


class PodStatus(Read, frozen=True):
    """Of a pod."""

    phase: str = ""
    init_container_statuses: list[ContainerStatus] | None = None  # sidecars too
    container_statuses: list[ContainerStatus] | None = None


class Pod(Read, frozen=True):
    """A pod."""

    metadata: ObjectMeta
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class Bare(Read, frozen=True):
    """Any object of which only the metadata matters: a Node, the answer to a write."""

    metadata: ObjectMeta


class ConfigMap(Read, frozen=True):
    """A ConfigMap."""

    metadata: ObjectMeta
    data: dict[str, str] | None = None
    binary_data: dict[str, bytes] | None = None  # base64 on the wire
