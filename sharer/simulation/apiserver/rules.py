"""What the API server checks of an object before it stores it, as far as sharer's writes can get it wrong."""

from __future__ import annotations

import re
from typing import Any

from sharer.simulation.apiserver.kinds import EVENT, LEASE, Kind
from sharer.simulation.apiserver.statuses import Failure, Object

MOST_STORED_BYTES = 1536 * 1024  # etcd's limit
_MICRO_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}(Z|[+-]\d\d:\d\d)")
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_EVENT_SCOPE = "default"


def check(kind: Kind, obj: Object) -> None:
    """Raises Failure: 422 for a broken rule, 500 for what an apply cannot even parse (api-server-facts §3, §6)."""
    name = obj["metadata"]["name"]
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise Failure.invalid(kind.qualified_kind, str(name), "metadata.name", f'Invalid value: "{name}": not a name')
    if kind is EVENT:
        _check_event(obj, name)
    elif kind is LEASE:
        _check_lease(obj, name)


def _check_event(obj: Object, name: str) -> None:
    about = (obj.get("involvedObject") or {}).get("namespace") or ""
    namespace = obj["metadata"]["namespace"]
    if about != namespace and not (about == "" and namespace == _EVENT_SCOPE):
        raise Failure.invalid(
            "Event", name, "involvedObject.namespace", f'Invalid value: "{about}": does not match event.namespace'
        )


def _check_lease(obj: Object, name: str) -> None:
    spec: dict[str, Any] = obj.get("spec") or {}
    for field in ("renewTime", "acquireTime"):
        time = spec.get(field)
        if time is not None and not _MICRO_TIME.fullmatch(str(time)):
            raise Failure(500, f'failed to create typed patch object: .spec.{field}: parsing time "{time}"')
    duration = spec.get("leaseDurationSeconds")
    if duration is not None and duration <= 0:
        raise Failure.invalid(
            LEASE.qualified_kind,
            name,
            "spec.leaseDurationSeconds",
            f"Invalid value: {duration}: must be greater than 0",
        )
