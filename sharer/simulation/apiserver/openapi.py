"""OpenAPI v3, as far as kubectl asks before it applies: which kinds there are, and that dry runs and strictness work.

The schema of a custom kind is its definition's; of a built-in kind no more is said than that it is an object.
"""

from __future__ import annotations

import hashlib

import msgspec

from sharer.simulation.apiserver.definitions import Definitions
from sharer.simulation.apiserver.kinds import Kind, Kinds
from sharer.simulation.apiserver.statuses import Object

_WRITE_PARAMETERS = [
    {"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": True}}
    for name in ("dryRun", "fieldManager", "fieldValidation")
]
_ACTIONS = {"get": "get", "put": "put", "patch": "patch", "delete": "delete"}


def openapi(kinds: Kinds, definitions: Definitions) -> dict[str, Object]:
    """The documents by path: the index, and one for each group and version."""
    documents: dict[str, Object] = {}
    for group, version in sorted({(kind.group, kind.version) for kind in kinds.all}):
        place = f"apis/{group}/{version}" if group else f"api/{version}"
        mine = [kind for kind in kinds.all if (kind.group, kind.version) == (group, version)]
        documents[place] = _document(mine, definitions)
    index = {
        place: {"serverRelativeURL": f"/openapi/v3/{place}?hash={_hash(document)}"}
        for place, document in documents.items()
    }
    return {"/openapi/v3": {"paths": index}} | {f"/openapi/v3/{place}": one for place, one in documents.items()}


def _document(kinds: list[Kind], definitions: Definitions) -> Object:
    paths: Object = {}
    schemas: Object = {}
    for kind in kinds:
        name = _schema_name(kind)
        definition = definitions.of(kind)
        schema = {"type": "object"} if definition is None else definition.schema
        schemas[name] = {**schema, "x-kubernetes-group-version-kind": [_gvk(kind)]}
        collection = f"/apis/{kind.group}/{kind.version}" if kind.group else f"/api/{kind.version}"
        collection += "/namespaces/{namespace}" if kind.namespaced else ""
        collection += f"/{kind.plural}"
        paths[collection] = {"get": _operation(kind, name, "list"), "post": _operation(kind, name, "post")}
        paths[f"{collection}/{{name}}"] = {
            method: _operation(kind, name, action) for method, action in _ACTIONS.items()
        }
    return {
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": "simulated"},
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _operation(kind: Kind, schema: str, action: str) -> Object:
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}
    return {
        "responses": {"200": {"description": "OK", "content": content}},
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": _gvk(kind),
        "parameters": [] if action in ("get", "list") else _WRITE_PARAMETERS,
    }


def _gvk(kind: Kind) -> Object:
    return {"group": kind.group, "version": kind.version, "kind": kind.kind}


def _schema_name(kind: Kind) -> str:
    domain = ".".join(reversed(kind.group.split("."))) if kind.group else "io.k8s.api.core"
    return f"{domain}.{kind.version}.{kind.kind}"


def _hash(document: Object) -> str:
    return hashlib.sha256(msgspec.json.encode(document)).hexdigest()[:16].upper()
