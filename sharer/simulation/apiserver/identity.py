"""Which object a write is about, which part of it, and which version: what its path and its body must agree on."""

from __future__ import annotations

from sharer.simulation.apiserver.kinds import Kind, Target
from sharer.simulation.apiserver.statuses import Failure, Object
from sharer.simulation.apiserver.store import Stored


def identified(target: Target, obj: Object) -> Object:
    """The object with the path's identity. Raises Failure (400) if it says that it is another one."""
    kind = target.kind
    if (obj.get("apiVersion"), obj.get("kind")) != (kind.api_version, kind.kind):
        raise Failure(
            400, f"{obj.get('apiVersion')}, Kind={obj.get('kind')} does not match {kind.api_version}, Kind={kind.kind}"
        )
    metadata = dict(obj.get("metadata") or {})
    if target.name is not None and metadata.setdefault("name", target.name) != target.name:
        raise Failure(
            400, f"the name of the object ({metadata['name']}) does not match the name on the URL ({target.name})"
        )
    if kind.namespaced and metadata.setdefault("namespace", target.namespace) != target.namespace:
        raise Failure(400, "the namespace of the provided object does not match the namespace sent on the request")
    return {**obj, "metadata": metadata}


def part(target: Target, obj: Object) -> Object:
    """What a write through this path can change: `status` or everything else. The rest is dropped without a word."""
    if target.subresource == "status":
        return {key: value for key, value in obj.items() if key == "status"}
    return main_part(target.kind, obj)


def main_part(kind: Kind, obj: Object) -> Object:
    """Everything that is not written through a path of its own."""
    if "status" not in kind.subresources:
        return obj
    return {key: value for key, value in obj.items() if key != "status"}


def check_version(target: Target, before: Stored | None, wanted: Object) -> None:
    """Raises Failure: 422 for another object of the name, 409 for another version than there is."""
    metadata = wanted.get("metadata") or {}
    qualified = target.kind.qualified
    present = before.obj["metadata"] if before is not None else {}
    if target.subresource is None and metadata.get("uid") and before is not None and metadata["uid"] != present["uid"]:
        raise Failure.invalid(
            target.kind.qualified_kind,
            str(target.name),
            "metadata.uid",
            f'Invalid value: "{metadata["uid"]}": field is immutable',
        )
    if metadata.get("resourceVersion") and metadata["resourceVersion"] != present.get("resourceVersion"):
        raise Failure(
            409,
            f'Operation cannot be fulfilled on {qualified} "{target.name}": the object has been modified; '
            "please apply your changes to the latest version and try again",
        )
