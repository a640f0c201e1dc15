"""Events as core/v1 objects whose names follow from what they are about, so that they merge and survive restarts.

The API server merges nothing by itself; `kubectl describe` shows only Events that carry the object's UID
(api-server-facts §6).
"""

from __future__ import annotations

import datetime
import hashlib

from sharer.core.ports.api import ApiEvent

COMPONENT = "sharer"
CLUSTER_SCOPE_NAMESPACE = "default"  # where Events about Nodes must be
_MOST_NAME = 230  # characters of the object's name in the Event's, which has at most 253
_MOST_MESSAGE = 1024


def event_namespace(event: ApiEvent) -> str:
    """Where the Event belongs."""
    return event.namespace or CLUSTER_SCOPE_NAMESPACE


def event_object(event: ApiEvent) -> tuple[str, dict[str, object]]:
    """The Event's name and fields. The same object, reason and part of it give the same name, whatever the message."""
    said = "\n".join((event.kind, event.namespace or "", event.name, event.uid, event.reason, event.about))
    name = f"{event.name[:_MOST_NAME].rstrip('.-')}.{hashlib.sha256(said.encode()).hexdigest()[:16]}"
    about = {"apiVersion": "v1", "kind": event.kind, "name": event.name, "uid": event.uid}
    if event.namespace is not None:
        about["namespace"] = event.namespace
    return name, {
        "involvedObject": about,
        "type": "Warning" if event.is_warning else "Normal",
        "reason": event.reason,
        "message": event.message[:_MOST_MESSAGE],
        "count": event.count,
        "firstTimestamp": _time(event.first_s),
        "lastTimestamp": _time(event.last_s),
        "source": {"component": COMPONENT, "host": event.node_name},
        "reportingComponent": COMPONENT,
        "reportingInstance": event.node_name,
    }


def _time(unix_s: float) -> str:
    return datetime.datetime.fromtimestamp(unix_s, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
