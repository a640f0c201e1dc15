"""What the schema of a custom resource says about an object: what is not in it, what is wrong, what is left of it.

As far as a structural schema goes (apiextensions.k8s.io/v1) and sharer's CRD needs it; CEL rules are not run.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator
from typing import Any

from sharer.simulation.apiserver.statuses import Object

_PRESERVE = "x-kubernetes-preserve-unknown-fields"
_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
}
_LIST_TYPES = ("atomic", "set", "map")
_MAP_TYPES = ("atomic", "granular")
_RFC_3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)")
_NOT_STRUCTURAL = frozenset({"$ref", "definitions", "dependencies", "patternProperties", "uniqueItems"})
_OWN = ("apiVersion", "kind", "metadata")  # of any object; the API server knows their schema itself


def structural_problems(schema: Object, path: str = "") -> Iterator[str]:
    """Why the API server would not take a schema, as far as people get it wrong. A correct one gives nothing."""
    here = path or "<root>"
    kind = schema.get("type")
    if kind not in _TYPES and not schema.get(_PRESERVE) and not schema.get("x-kubernetes-int-or-string"):
        yield f"{here}.type: Required value: must not be empty for specified object fields"
    yield from (
        f"{here}.{word}: Forbidden: not part of a structural schema" for word in _NOT_STRUCTURAL & schema.keys()
    )
    properties, items, rest = schema.get("properties"), schema.get("items"), schema.get("additionalProperties")
    if properties is not None and rest is not None:
        yield f"{here}.additionalProperties: Forbidden: must not be used together with properties"
    if kind == "array" and items is None:
        yield f"{here}.items: Required value: must be specified"
    if kind != "array" and (items is not None or "x-kubernetes-list-type" in schema):
        yield f"{here}.items: Forbidden: only of an array"
    if schema.get("x-kubernetes-list-type", "atomic") not in _LIST_TYPES:
        yield f"{here}.x-kubernetes-list-type: Unsupported value"
    if schema.get("x-kubernetes-list-type") == "map" and not schema.get("x-kubernetes-list-map-keys"):
        yield f"{here}.x-kubernetes-list-map-keys: Required value"
    if schema.get("x-kubernetes-map-type", "atomic") not in _MAP_TYPES:
        yield f"{here}.x-kubernetes-map-type: Unsupported value"
    for name in schema.get("required", ()):
        if name not in (properties or {}) and not schema.get(_PRESERVE):
            yield f"{here}.required: {name} is not a property"
    for name, inner in (properties or {}).items():
        yield from structural_problems(inner, f"{path}.{name}")
    if isinstance(items, dict):
        yield from structural_problems(items, f"{path}[]")
    if isinstance(rest, dict):
        yield from structural_problems(rest, f"{path}.*")


def undeclared(schema: Object, value: object, path: str = "") -> Iterator[str]:
    """The paths of fields that a schema neither declares nor preserves: they are pruned, and an apply is refused."""
    if isinstance(value, dict):
        for name, inner in value.items():
            known = _field(schema, name)
            if not path and name in _OWN:
                continue
            if known is not None:
                yield from undeclared(known, inner, f"{path}.{name}")
            elif not schema.get(_PRESERVE):
                yield f"{path}.{name}"
    elif isinstance(value, list) and isinstance(schema.get("items"), dict):
        for number, inner in enumerate(value):
            yield from undeclared(schema["items"], inner, f"{path}[{number}]")


def pruned(schema: Object, value: Any, path: str = "") -> Any:  # Any: JSON in, JSON out
    """The value without what is undeclared."""
    if isinstance(value, dict):
        kept = {}
        for name, inner in value.items():
            known = _field(schema, name)
            if not path and name in _OWN:
                kept[name] = inner
            elif known is not None:
                kept[name] = pruned(known, inner, f"{path}.{name}")
            elif schema.get(_PRESERVE):
                kept[name] = inner
        return kept
    if isinstance(value, list) and isinstance(schema.get("items"), dict):
        return [pruned(schema["items"], inner, f"{path}[]") for inner in value]
    return value


def wrong_types(schema: Object, value: object, path: str = "") -> Iterator[str]:
    """The paths at which a value is of another type than declared. Null is judged by `problems`."""
    kind = schema.get("type")
    if value is None or kind is None:
        return
    if not isinstance(value, _TYPES[kind]) or (isinstance(value, bool) and kind != "boolean"):
        yield f"{path}: expected {kind}, got {value!r}"
        return
    for name, known, inner in _parts(schema, value, path):
        yield from wrong_types(known, inner, name)


def problems(schema: Object, value: object, path: str = "") -> Iterator[tuple[str, str]]:
    """What is wrong with a value of the right type: the path, and the API server's words."""
    if value is None:
        if not schema.get("nullable"):
            yield path, f'Invalid value: "null": must be of type {schema.get("type")}: "null"'
        return
    if "enum" in schema and value not in schema["enum"]:
        supported = ", ".join(f'"{one}"' for one in schema["enum"])
        yield path, f'Unsupported value: "{value}": supported values: {supported}'
    if isinstance(value, list):
        most = schema.get("maxItems")
        if most is not None and len(value) > most:
            yield path, f"Too many: {len(value)}: must have at most {most} items"
    elif isinstance(value, str):
        yield from _text_problems(schema, value, path)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        least, most = schema.get("minimum"), schema.get("maximum")
        if least is not None and value < least:
            yield path, f"Invalid value: {value}: should be greater than or equal to {least}"
        if most is not None and value > most:
            yield path, f"Invalid value: {value}: should be less than or equal to {most}"
    elif isinstance(value, dict):
        yield from ((f"{path}.{name}", "Required value") for name in schema.get("required", ()) if name not in value)
    for name, known, inner in _parts(schema, value, path):
        yield from problems(known, inner, name)


def _text_problems(schema: Object, value: str, path: str) -> Iterator[tuple[str, str]]:
    if "maxLength" in schema and len(value) > schema["maxLength"]:
        yield path, f"Too long: may not be more than {schema['maxLength']} characters"
    if "pattern" in schema and not re.search(schema["pattern"], value):
        yield path, f"Invalid value: \"{value}\": should match '{schema['pattern']}'"
    if schema.get("format") == "date-time" and not _is_time(value):
        yield path, f'Invalid value: "{value}": must be of type date-time: "{value}"'


def _is_time(text: str) -> bool:
    if not _RFC_3339.fullmatch(text):
        return False
    try:
        datetime.datetime.fromisoformat(text.upper())
    except ValueError:
        return False
    return True


def _parts(schema: Object, value: object, path: str) -> Iterator[tuple[str, Object, object]]:
    """The parts of a value that the schema says something about: path, schema, value."""
    if isinstance(value, dict):
        for name, inner in value.items():
            known = _field(schema, name)
            if known is not None and not (not path and name in _OWN):
                yield f"{path}.{name}", known, inner
    elif isinstance(value, list) and isinstance(schema.get("items"), dict):
        for number, inner in enumerate(value):
            yield f"{path}[{number}]", schema["items"], inner


def _field(schema: Object, name: str) -> Object | None:
    known = (schema.get("properties") or {}).get(name)
    rest = schema.get("additionalProperties")
    found = rest if known is None and isinstance(rest, dict) else known
    return found if isinstance(found, dict) else None
