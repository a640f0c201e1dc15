"""Tables, as `kubectl get` asks for them (`as=Table`): the server prints, the client only aligns.

Pods and Nodes have the columns that people know, custom kinds those of their definition, everything else name and age.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sharer.simulation.apiserver.definitions import Column, Definition
from sharer.simulation.apiserver.kinds import NODE, POD, Kind
from sharer.simulation.apiserver.statuses import Object

MEDIA_TYPE = {"as": "Table", "v": "v1", "g": "meta.k8s.io"}
_UNKNOWN = "<unknown>"
_NONE = "<none>"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Printed:
    """A column, and what it shows of an object."""

    column: Column
    cell: Callable[[Object], object]


def wants_table(accept: str) -> bool:
    """Whether a client's first choice is a table."""
    first, *parameters = (part.strip() for part in accept.partition(",")[0].split(";"))
    asked = dict(part.partition("=")[::2] for part in parameters)
    return first == "application/json" and asked == MEDIA_TYPE


def table(
    kind: Kind, definition: Definition | None, objects: Iterable[Object], metadata: Object, include: str
) -> Object:
    """A table of these objects. `include` is the query's includeObject: None, Object or (usually) Metadata."""
    printed = _columns(kind, definition)
    rows = [{"cells": [one.cell(obj) for one in printed], **_included(obj, include)} for obj in objects]
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata,
        "columnDefinitions": [
            {
                "name": one.column.name,
                "type": "string" if one.column.type == "date" and definition is None else one.column.type,
                "format": "name" if one.column.path == ".metadata.name" else one.column.format,
                "description": one.column.description,
                "priority": one.column.priority,
            }
            for one in printed
        ],
        "rows": rows,
    }


def _included(obj: Object, include: str) -> Object:
    match include:
        case "None":
            return {}
        case "Object":
            return {"object": obj}
        case _:
            return {
                "object": {
                    "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": obj["metadata"],
                }
            }  # fmt: skip


def _columns(kind: Kind, definition: Definition | None) -> Sequence[_Printed]:
    name = _at("Name", "string", ".metadata.name")
    if definition is not None:
        columns = definition.columns or (Column(name="Age", type="date", path=".metadata.creationTimestamp"),)
        return (name, *(_Printed(column=one, cell=_cell(one)) for one in columns))
    age = _at("Age", "date", ".metadata.creationTimestamp")
    if kind is POD:
        return (
            name, _shown("Ready", _ready), _shown("Status", _pod_status), _shown("Restarts", _restarts), age,
            _at("IP", "string", ".status.podIP", 1), _at("Node", "string", ".spec.nodeName", 1),
        )  # fmt: skip
    if kind is NODE:
        return (
            name, _shown("Status", _node_status), _shown("Roles", _roles), age,
            _at("Version", "string", ".status.nodeInfo.kubeletVersion"),
        )  # fmt: skip
    return name, age


def _at(name: str, of: str, path: str, priority: int = 0) -> _Printed:
    column = Column(name=name, type=of, path=path, priority=priority)
    return _Printed(column=column, cell=_cell(column))


def _shown(name: str, cell: Callable[[Object], object]) -> _Printed:
    return _Printed(column=Column(name=name, type="string", path=""), cell=cell)


def _cell(column: Column) -> Callable[[Object], object]:
    """What a column shows: null where there is nothing, of several values the first."""
    steps = column.path.strip(".").split(".")

    def cell(obj: Object) -> object:
        found: Any = obj
        for step in steps:
            found = found.get(step.removesuffix("[*]")) if isinstance(found, dict) else None
            if step.endswith("[*]"):
                found = found[0] if found else None
        if column.type == "date":
            return _UNKNOWN if found is None else age(str(found), datetime.datetime.now(datetime.UTC))
        if found is None:
            return None
        return int(found) if column.type == "integer" else str(found)

    return cell


def age(since: str, now: datetime.datetime) -> str:
    """How long ago a time was, in kubectl's words.

    >>> age("2026-01-01T00:00:00Z", datetime.datetime(2026, 1, 1, 3, 5, tzinfo=datetime.UTC))
    '3h5m'
    """
    seconds = int((now - datetime.datetime.fromisoformat(since.upper())).total_seconds())
    if seconds < 120:
        return f"{max(seconds, 0)}s"
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if minutes < 10:
        return f"{minutes}m{seconds % 60}s" if seconds % 60 else f"{minutes}m"
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return f"{hours}h{minutes % 60}m" if minutes % 60 else f"{hours}h"
    if hours < 48:
        return f"{hours}h"
    if days < 8:
        return f"{days}d{hours % 24}h" if hours % 24 else f"{days}d"
    return f"{days}d" if days < 730 else f"{days // 365}y"


def _ready(pod: Object) -> str:
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    ready = sum(bool(one.get("ready")) for one in statuses)
    return f"{ready}/{len((pod.get('spec') or {}).get('containers') or ())}"


def _pod_status(pod: Object) -> str:
    if pod["metadata"].get("deletionTimestamp"):
        return "Terminating"
    status: Mapping[str, Any] = pod.get("status") or {}
    return str(status.get("reason") or status.get("phase") or _UNKNOWN)


def _restarts(pod: Object) -> str:
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    return str(sum(int(one.get("restartCount", 0)) for one in statuses))


def _node_status(node: Object) -> str:
    conditions = (node.get("status") or {}).get("conditions") or ()
    ready = next((one.get("status") for one in conditions if one.get("type") == "Ready"), None)
    words = ["Ready" if ready == "True" else "NotReady" if ready == "False" else "Unknown"]
    if (node.get("spec") or {}).get("unschedulable"):
        words.append("SchedulingDisabled")
    return ",".join(words)


def _roles(node: Object) -> str:
    prefix = "node-role.kubernetes.io/"
    labels = node["metadata"].get("labels") or {}
    return ",".join(sorted(label.removeprefix(prefix) for label in labels if label.startswith(prefix))) or _NONE
