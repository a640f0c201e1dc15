"""GpuNodes, as agents of any version publish them, in the core's words.

Every field may be missing: an agent may be older than this program, or newer. What is missing and must not be guessed
is None, or a word for it. An object that cannot be read at all, or counts below zero, is a problem of its own and
spoils no other.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Annotated, TypeVar, cast

import msgspec

from sharer.adapters.kube.wire import ObjectMeta, Read
from sharer.core.cluster.facts import GpuNodeFacts
from sharer.core.report.node import (
    LEASE_ANNOTATION,
    GpuStatus,
    HolderReport,
    HostReport,
    PolicyReport,
    ResourceReport,
    WarningReport,
)

T = TypeVar("T", bound=Hashable)

Count = Annotated[int, msgspec.Meta(ge=0)]  # anything below is nobody's count (bug case P38)


class _Host(Read, frozen=True):
    driver: str | None = None
    kernel: str | None = None
    cgroup: str | None = None
    injection: str | None = None
    injection_reason: str | None = None


class _Staged(Read, frozen=True):
    source: str = "unknown"
    hash: str = ""
    seen_at: str = "unknown"
    applies_at: str = "unknown"
    waits_for: str | None = None


class _Policy(Read, frozen=True):
    wanted: str | None = None
    wanted_hash: str | None = None
    in_force: str | None = None
    hash: str | None = None
    refused: str | None = None
    unread: str | None = None
    staged: _Staged | None = None


class _Resource(Read, frozen=True):
    name: str
    strategy: str | None = None
    slices: Count = 0
    held: Count = 0
    free: Count = 0
    over_by: Count = 0
    quarantined: Count = 0
    draining: Count = 0
    unhealthy: Count = 0
    waiting: Count = 0


class _Gpu(Read, frozen=True):
    uuid: str
    gpu_uuid: str = ""  # "" becomes the UUID: a GPU without MIG devices
    index: Count | None = None
    product: str | None = None
    mig_index: Count | None = None
    mig_profile: str | None = None
    memory_bytes: Count | None = None
    compute_capability: str | None = None
    mig_enabled: bool | None = None
    health: str = "unknown"
    reason: str | None = None
    strategy: str | None = None
    resource: str | None = None
    slices: Count = 0
    held: Count = 0
    free: Count = 0
    quarantined: Count = 0
    draining: Count = 0
    promised_bytes: Count | None = None
    largest_free_bytes: Count | None = None
    used_bytes: Count | None = None
    verified: Count | None = None
    not_verified: Count | None = None
    offers_nothing: str | None = None
    waiting: str | None = None


class _Holder(Read, frozen=True):
    id: str
    resource: str = "unknown"
    state: str = "held"
    namespace: str | None = None
    pod: str | None = None
    uid: str | None = None
    container: str | None = None
    promise_bytes: Count | None = None
    used_bytes: Count | None = None
    held_by: str | None = None
    verified_at: str | None = None
    reason: str = ""


class _Warning(Read, frozen=True):
    reason: str = "unknown"
    message: str = ""
    since: str | None = None


class _Status(Read, frozen=True):
    observed_at: str | None = None
    agent: str | None = None
    node: _Host = _Host()
    policy: _Policy = _Policy()
    resources: tuple[_Resource, ...] = ()
    gpus: tuple[_Gpu, ...] = ()
    holders: tuple[_Holder, ...] = ()
    gpus_omitted: Count = 0
    holders_omitted: Count = 0
    warnings: tuple[_Warning, ...] = ()


class _Object(Read, frozen=True):
    metadata: ObjectMeta
    status: _Status | None = None  # None: an agent has made it, and has told nothing yet


class _Named(Read, frozen=True):
    metadata: ObjectMeta


_OBJECT = msgspec.json.Decoder(_Object)
_NAMED = msgspec.json.Decoder(_Named)


class GpuNodeReader:
    """Reads GpuNodes one after the other, and keeps one copy of what they say in the same words. For one thread."""

    def __init__(self) -> None:
        self._known: dict[Hashable, Hashable] = {}

    def read(self, raw: msgspec.Raw) -> GpuNodeFacts | str | None:
        """What the object says; a sentence if it cannot be read, None if there is nothing in it yet."""
        try:
            found = _OBJECT.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            return f"{_name(raw)} cannot be read: {error}; another version of sharer may have written it"
        return None if found.status is None else self._facts(found.metadata, found.status)

    def _facts(self, metadata: ObjectMeta, status: _Status) -> GpuNodeFacts:
        same = self._one
        return GpuNodeFacts(
            name=metadata.name,
            lease=(metadata.annotations or {}).get(LEASE_ANNOTATION),
            observed_at=status.observed_at,
            agent=same(status.agent),
            node=same(msgspec.convert(status.node, HostReport, from_attributes=True)),
            policy=same(msgspec.convert(status.policy, PolicyReport, from_attributes=True)),
            resources=tuple(
                same(msgspec.convert(one, ResourceReport, from_attributes=True)) for one in status.resources
            ),
            gpus=tuple(self._gpu(one) for one in status.gpus),
            holders=tuple(self._holder(one) for one in status.holders),
            gpus_omitted=status.gpus_omitted,
            holders_omitted=status.holders_omitted,
            warnings=tuple(msgspec.convert(one, WarningReport, from_attributes=True) for one in status.warnings),
        )

    def _gpu(self, one: _Gpu) -> GpuStatus:
        same = self._one
        return GpuStatus(
            uuid=one.uuid,
            gpu_uuid=one.uuid if one.gpu_uuid in ("", one.uuid) else same(one.gpu_uuid),
            index=one.index,
            product=same(one.product),
            mig_index=one.mig_index,
            mig_profile=same(one.mig_profile),
            memory_bytes=same(one.memory_bytes),
            compute_capability=same(one.compute_capability),
            mig_enabled=one.mig_enabled,
            health=same(one.health),
            reason=one.reason,
            strategy=same(one.strategy),
            resource=same(one.resource),
            slices=one.slices,
            held=one.held,
            free=one.free,
            quarantined=one.quarantined,
            draining=one.draining,
            promised_bytes=same(one.promised_bytes),
            largest_free_bytes=same(one.largest_free_bytes),
            used_bytes=one.used_bytes,
            verified=one.verified,
            not_verified=one.not_verified,
            offers_nothing=one.offers_nothing,
            waiting=one.waiting,
        )

    def _holder(self, one: _Holder) -> HolderReport:
        same = self._one
        return HolderReport(
            resource=same(one.resource),
            id=one.id,
            state=same(one.state),
            namespace=same(one.namespace),
            pod=one.pod,
            uid=one.uid,
            container=same(one.container),
            promise_bytes=same(one.promise_bytes),
            used_bytes=one.used_bytes,
            held_by=same(one.held_by),
            verified_at=same(one.verified_at),
            reason=same(one.reason),
        )

    def _one(self, value: T) -> T:
        """The first value that was equal: a fleet's 100,000 holders say few different things."""
        return cast(T, self._known.setdefault(value, value))


def _name(raw: msgspec.Raw) -> str:
    try:
        return f"the GpuNode {_NAMED.decode(raw).metadata.name}"
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return "a GpuNode without a name"
