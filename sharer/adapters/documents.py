"""Documents as JSON and YAML: what `core/report` makes, in camelCase and with `apiVersion` and `kind` (DESIGN §8).

The schema of a document is its dataclass: a msgspec struct with the same fields is made from it, once, and that is what
is written and what a file is checked against.
"""

from __future__ import annotations

import functools
import io
import operator
import types
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Protocol, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from sharer.core.errors import InputError
from sharer.core.inventory import Inventory
from sharer.core.report.inventory import InventoryReport, camel_case, inventory_from
from sharer.core.report.node import NodeReport

API_VERSION = "sharer.dev/v1alpha1"


class Document(Protocol):
    """A frozen dataclass that is printed as a whole."""

    @property
    def kind(self) -> str:
        """What it calls itself."""
        ...


D = TypeVar("D", InventoryReport, NodeReport)


def to_json(document: Document) -> str:
    """The document as indented JSON, with a line end."""
    return msgspec.json.format(msgspec.json.encode(_plain(document)), indent=2).decode() + "\n"


def json_pieces(document: Document) -> Iterator[str]:
    """The text of `to_json` in pieces, for documents so long that they should not lie in memory several times over."""
    yield f'{{\n  "apiVersion": "{API_VERSION}",\n  "kind": "{document.kind}"'
    for name, value in _top(document):
        yield f',\n  "{name}": '
        if isinstance(value, tuple) and value:
            for number, one in enumerate(value):
                yield ("," if number else "[") + "\n    " + _json(one).replace("\n", "\n    ")
            yield "\n  ]"
        else:
            yield _json(value).replace("\n", "\n  ")
    yield "\n}\n"


def compact_pieces(document: Document) -> Iterator[bytes]:
    """The text of `to_bytes` in pieces, likewise."""
    yield f'{{"apiVersion":"{API_VERSION}","kind":"{document.kind}"'.encode()
    for name, value in _top(document):
        yield f',"{name}":'.encode()
        yield from _compact(value)
    yield b"}"


def _compact(value: object) -> Iterator[bytes]:
    """A field of a document; of a long list, also one below it, no more than one element at a time."""
    if isinstance(value, tuple):
        for number, one in enumerate(value):
            yield (b"," if number else b"[") + msgspec.json.encode(_structured(one))
        yield b"]" if value else b"[]"
    elif is_dataclass(value):
        for number, one in enumerate(fields(value)):
            yield f'{"," if number else "{"}"{camel_case(one.name)}":'.encode()
            yield from _compact(getattr(value, one.name))
        yield b"}"
    else:
        yield msgspec.json.encode(value)


def yaml_pieces(document: Document) -> Iterator[str]:
    """The text of `to_yaml` in pieces, likewise."""
    yield f"apiVersion: {API_VERSION}\nkind: {document.kind}\n"
    for name, value in _top(document):
        if isinstance(value, tuple) and value:
            yield f"{name}:\n"
            for one in value:
                yield msgspec.yaml.encode([_builtins(one)]).decode()
        else:
            yield msgspec.yaml.encode({name: _builtins(value)}).decode()


def to_bytes(document: Document) -> bytes:
    """The document as JSON for programs, without a line end anywhere.

    Made from its pieces: as a whole, a report of 2,000 slices would lie in memory three times over, 3 MB of an agent's.
    """
    text = io.BytesIO()
    text.writelines(compact_pieces(document))
    return text.getvalue()


def to_yaml(document: Document) -> str:
    """The document as YAML."""
    return msgspec.yaml.encode(_plain(document)).decode()


def read_inventory(text: bytes, source: str) -> Inventory:
    """The inventory in an Inventory document, JSON or YAML. Raises InputError that names the source and the path."""
    try:
        report = _read(text, InventoryReport)
        return inventory_from(report)
    except InputError as error:
        raise InputError(f"{source}: {error}; `sharer devices -o json` prints an inventory as it should be") from error


def read_node_report(text: bytes, source: str) -> NodeReport:
    """The report in a NodeReport document. Fields that are not known here are left out: the agent may be newer.

    Raises InputError that names the source and the path.
    """
    try:
        return _read(text, NodeReport, strict=False)
    except InputError as error:
        raise InputError(f"{source}: {error}; the agent there may be another version than this program") from error


def _plain(document: Document) -> dict[str, object]:
    struct = msgspec.convert(document, _struct(type(document), strict=True), from_attributes=True)
    return {"apiVersion": API_VERSION, "kind": document.kind, **msgspec.to_builtins(struct)}


def _top(document: Document) -> Iterator[tuple[str, object]]:
    names = fields(document)  # type: ignore[arg-type]  # `Document` cannot say that it is a dataclass
    return ((camel_case(one.name), getattr(document, one.name)) for one in names)


def _json(value: object) -> str:
    """A field of a document, or one of a field's values, as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(_structured(value)), indent=2).decode()


def _builtins(value: object) -> object:
    return msgspec.to_builtins(_structured(value))


def _structured(value: object) -> object:
    if not is_dataclass(value):
        return value
    return msgspec.convert(value, _struct(type(value), strict=True), from_attributes=True)


def _read(text: bytes, document: type[D], *, strict: bool = True) -> D:
    raw = _decode(text)
    if not isinstance(raw, dict):
        held = "nothing" if raw is None else f"a {type(raw).__name__}"
        raise InputError(f"holds {held}, not a document of kind {document.kind}")
    found = {name: raw.pop(name, None) for name in ("apiVersion", "kind")}
    if found != {"apiVersion": API_VERSION, "kind": document.kind}:
        raise InputError(
            f"has apiVersion {found['apiVersion']!r} and kind {found['kind']!r};"
            f" expected {API_VERSION!r} and {document.kind!r}"
        )
    try:
        struct = msgspec.convert(raw, _struct(document, strict))
    except msgspec.ValidationError as error:
        raise InputError(_in_words(str(error))) from error
    return msgspec.convert(struct, document, from_attributes=True)


def _decode(text: bytes) -> object:
    try:
        if text.lstrip().startswith(b"{"):
            return msgspec.json.decode(text)
        return msgspec.yaml.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"is neither JSON nor YAML: {' '.join(str(error).split())}") from error


def _in_words(error: str) -> str:
    """msgspec's sentence with its path in front: `gpus[0].index: expected int, got str`."""
    message, _, path = error.partition(" - at `$")
    message = message[0].lower() + message[1:].replace("`", "")
    path = path.rstrip("`").lstrip(".")
    return f"{path}: {message}" if path else message


_STRUCTS: dict[tuple[type, bool], type[msgspec.Struct]] = {}


def _struct(document: type, strict: bool) -> type[msgspec.Struct]:
    """The struct with a dataclass's fields in camelCase. If strict, it refuses fields that it does not know."""
    key = (document, strict)
    if key not in _STRUCTS:
        _STRUCTS[key] = _make_struct(document, strict)
    return _STRUCTS[key]


def _make_struct(document: type, strict: bool) -> type[msgspec.Struct]:
    hints = get_type_hints(document)
    own: list[Any] = []  # Any: msgspec's own signature, a field with or without a default
    for one in fields(document):
        mirrored = _mirrored(hints[one.name], strict)
        if one.default_factory is not MISSING:
            own.append((one.name, mirrored, msgspec.field(default_factory=one.default_factory)))
        elif one.default is not MISSING:
            own.append((one.name, mirrored, one.default))
        else:
            own.append((one.name, mirrored))
    return msgspec.defstruct(document.__name__, own, rename="camel", forbid_unknown_fields=strict, kw_only=True)


def _mirrored(hint: Any, strict: bool) -> Any:  # Any: type annotations are values of no common type
    """A field's type with every dataclass in it replaced by its struct."""
    if is_dataclass(hint):
        return _struct(hint, strict)  # type: ignore[arg-type]  # a class, never an instance: it stood in an annotation
    arguments = tuple(_mirrored(argument, strict) for argument in get_args(hint))
    origin = get_origin(hint)
    if origin in (types.UnionType, Union):
        return functools.reduce(operator.or_, arguments)
    if origin is Mapping:
        origin = dict
    return hint if origin is None else origin[arguments]
