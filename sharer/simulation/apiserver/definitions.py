"""Kinds that a CustomResourceDefinition brings: their schema, their short names, and the columns of `kubectl get`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sharer.simulation.apiserver.kinds import Kind
from sharer.simulation.apiserver.schemas import problems, pruned, structural_problems, undeclared, wrong_types
from sharer.simulation.apiserver.statuses import Failure, Object

_COLUMN_TYPES = ("integer", "number", "string", "boolean", "date")
_PATH = re.compile(r"(\.[A-Za-z_][A-Za-z0-9_-]*(\[\*\])?)+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One printer column."""

    name: str
    type: str  # "integer", "number", "string", "boolean" or "date"
    path: str  # ".status.summary.gpus"; after [*], the first value is printed
    priority: int = 0  # above 0: only with -o wide
    format: str = ""
    description: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """One version of a custom kind."""

    kind: Kind
    schema: Object
    columns: tuple[Column, ...] = ()
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()

    def refuse_for_apply(self, wanted: Object) -> None:
        """Raises Failure (500, without a reason) for what an apply cannot even parse (api-server-facts §3)."""
        found = [f"{path}: field not declared in schema" for path in undeclared(self.schema, wanted)]
        found += wrong_types(self.schema, wanted)
        if found:
            raise Failure(
                500,
                f"failed to create typed patch object (/{wanted['metadata'].get('name')};"
                f" {self.kind.api_version}, Kind={self.kind.kind}): {'; '.join(found)}",
                reason="",
            )

    def prune(self, obj: Object, field_validation: str) -> tuple[Object, Mapping[str, str]]:
        """The object without unknown fields, and headers that warn of them; if told to be strict, Failure (400)."""
        unknown = [path.lstrip(".") for path in undeclared(self.schema, obj)]
        if not unknown:
            return obj, {}
        said = ", ".join(f'unknown field "{path}"' for path in unknown)
        if field_validation == "Strict":
            raise Failure(
                400,
                f'{self.kind.kind} in version "{self.kind.version}" cannot be handled as a {self.kind.kind}:'
                f" strict decoding error: {said}",
            )
        kept = pruned(self.schema, obj)
        assert isinstance(kept, dict)
        return kept, {} if field_validation == "Ignore" else {"Warning": f'299 - "{said}"'}

    def check(self, obj: Object) -> None:
        """Raises Failure (422) for what breaks the schema."""
        name = str(obj["metadata"]["name"])
        found = [(path.partition(":")[0], f"Invalid value: {path.partition(': ')[2]}")
                 for path in wrong_types(self.schema, obj)] or list(problems(self.schema, obj))  # fmt: skip
        if found:
            listed = [f"{path.lstrip('.')}: {problem}" for path, problem in found]
            said = listed[0] if len(listed) == 1 else f"[{', '.join(listed)}]"
            raise Failure(
                422,
                f'{self.kind.qualified_kind} "{name}" is invalid: {said}',
                details={"name": name, "causes": [{"field": path.lstrip("."), "message": p} for path, p in found]},
            )


class Definitions:
    """What is known of custom kinds; one without a definition takes every object as it is."""

    def __init__(self) -> None:
        self._by_kind: dict[Kind, Definition] = {}

    def of(self, kind: Kind) -> Definition | None:
        """The definition of a kind; None: it has none."""
        return self._by_kind.get(kind)

    def put(self, definition: Definition) -> None:
        """Replace a kind's definition."""
        self._by_kind[definition.kind] = definition

    def remove(self, kind: Kind) -> None:
        """Forget a kind's definition."""
        self._by_kind.pop(kind, None)


def read_definition(crd: Object, known: Iterable[Kind]) -> Definition:
    """The stored version of a CustomResourceDefinition; its kind is one of those that are known, if it is the same.

    Raises ValueError with everything that the API server would not take.
    """
    spec, names = crd["spec"], crd["spec"]["names"]
    version = next(one for one in spec["versions"] if one["storage"])
    kind = Kind(
        group=spec["group"],
        version=version["name"],
        kind=names["kind"],
        plural=names["plural"],
        namespaced=spec["scope"] == "Namespaced",
        subresources=tuple(version.get("subresources") or ()),
        custom=True,
    )
    schema = version["schema"]["openAPIV3Schema"]
    columns = tuple(
        Column(
            name=one["name"],
            type=one["type"],
            path=one["jsonPath"],
            priority=one.get("priority", 0),
            format=one.get("format", ""),
            description=one.get("description", ""),
        )
        for one in version.get("additionalPrinterColumns") or ()
    )
    wrong = list(structural_problems(schema))
    wrong += [f"column {one.name}: {one.type} is no type" for one in columns if one.type not in _COLUMN_TYPES]
    wrong += [f"column {one.name}: {one.path} is no JSONPath" for one in columns if not _PATH.fullmatch(one.path)]
    if crd["metadata"]["name"] != f"{names['plural']}.{spec['group']}":
        wrong.append(f"metadata.name: must be {names['plural']}.{spec['group']}")
    if wrong:
        raise ValueError(f"CustomResourceDefinition {crd['metadata']['name']}: {'; '.join(wrong)}")
    return Definition(
        kind=next((one for one in known if one == kind), kind),
        schema=schema,
        columns=columns,
        short_names=tuple(names.get("shortNames") or ()),
        categories=tuple(names.get("categories") or ()),
    )
