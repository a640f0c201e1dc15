"""The CRD of GpuNodes: it takes what agents publish, whatever their version, and shows it in one line."""

from __future__ import annotations

import re
import types
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any, get_args, get_origin, get_type_hints

import jsonschema
import pytest
from cel_expr_python import cel
from hypothesis import given, settings
from hypothesis import strategies as st

from sharer.core.known import Known
from sharer.core.report import gpu_node_size
from sharer.core.report.gpu_node import Summary
from sharer.core.report.inventory import camel_case
from sharer.core.report.node import NodeStatus
from sharer.simulation.apiserver import GPU_NODE, ApiServer
from sharer.simulation.apiserver.definitions import read_definition
from sharer.simulation.apiserver.schemas import problems, structural_problems, undeclared, wrong_types
from tests.core.report.sliced import crowded, sliced
from tests.deploy.crd import gpu_node_crd
from tests.deploy.gpu_nodes import published

Schema = dict[str, Any]


def schema() -> Schema:
    found = gpu_node_crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    assert isinstance(found, dict)
    return found


def nodes(one: Schema, path: str = "") -> Iterator[tuple[str, Schema]]:
    """Every schema in a schema, with its path."""
    yield path, one
    for name, inner in one.get("properties", {}).items():
        yield from nodes(inner, f"{path}.{name}")
    if "items" in one:
        yield from nodes(one["items"], f"{path}[]")


# ---- schema and program say the same


def described(value: type, path: str) -> Iterator[tuple[str, bool]]:
    """Every field that is published, by its path in the schema, and whether it may be null."""
    for one in fields(value):
        if one.name == "used_bytes":
            continue
        hint, is_null = get_type_hints(value)[one.name], False
        if get_origin(hint) is types.UnionType:
            is_null = type(None) in get_args(hint)
            hint = next(part for part in get_args(hint) if part is not type(None))
        here = f"{path}.{camel_case(one.name)}"
        yield here, is_null
        if get_origin(hint) is tuple:
            hint, here = get_args(hint)[0], f"{here}[]"
        if is_dataclass(hint) and isinstance(hint, type):
            yield from described(hint, here)


def test_the_schema_has_just_the_fields_that_are_published_and_null_where_they_may_be() -> None:
    ours = dict([*described(NodeStatus, ".status"), (".status.summary", False), *described(Summary, ".status.summary")])
    theirs = {
        path: bool(one.get("nullable"))
        for path, one in nodes(schema())
        if path.startswith(".status.") and not path.endswith("[]")
    }
    assert theirs == ours


def test_the_schema_is_structural_and_the_columns_are_fields_of_it() -> None:
    assert list(structural_problems(schema())) == []
    known = {path for path, _ in nodes(schema())} | {".metadata.creationTimestamp"}
    columns = read_definition(gpu_node_crd(), [GPU_NODE]).columns
    assert {column.path for column in columns} <= known
    types_of = {path: one.get("type") for path, one in nodes(schema())}
    for column in columns:
        if column.type != "date":
            assert types_of[column.path] == column.type, column.name


def test_lists_are_as_long_as_agents_make_them() -> None:
    limits = {path: one["maxItems"] for path, one in nodes(schema()) if "maxItems" in one}
    assert limits == {
        ".status.resources": gpu_node_size.MOST_RESOURCES,
        ".status.gpus": gpu_node_size.MOST_GPUS,
        ".status.holders": gpu_node_size.MOST_HOLDERS,
        ".status.warnings": gpu_node_size.MOST_WARNINGS,
    }


def test_lists_and_parts_are_written_whole() -> None:
    """One writer: keeping books on each field of each holder costs 18 KB an object (api-server-facts §3)."""
    for path, one in nodes(schema()):
        if one["type"] == "array":
            assert one["x-kubernetes-list-type"] == "atomic", path


def test_no_version_of_the_agent_is_refused_for_a_word_or_a_field_that_is_new() -> None:
    """An agent newer than its CRD could not write at all, and would be told so by a 500 (api-server-facts §3)."""
    for path, one in nodes(schema()):
        assert "enum" not in one, path
        assert "maxLength" not in one, path
        if one["type"] == "object" and path.startswith(".status"):
            assert one["x-kubernetes-preserve-unknown-fields"], path


# ---- what is published fits


def as_json_schema(one: Any) -> Any:
    """The same schema for a validator that knows nothing of Kubernetes: nullable is a second type."""
    if isinstance(one, list):
        return [as_json_schema(inner) for inner in one]
    if not isinstance(one, dict):
        return one
    made = {key: as_json_schema(inner) for key, inner in one.items() if key != "nullable"}
    return {**made, "type": [one["type"], "null"]} if one.get("nullable") is True else made


@pytest.mark.parametrize("what", [Known(), sliced(), sliced(holders=3), crowded(192, "p")])
def test_what_is_published_fits_the_schema(what: Known) -> None:
    obj = published(what)
    jsonschema.validate(obj, as_json_schema(schema()))
    assert list(undeclared(schema(), obj)) == []
    assert list(wrong_types(schema(), obj)) == []
    assert list(problems(schema(), obj)) == []


@settings(max_examples=30, deadline=None)
@given(count=st.integers(1, 12), gpus=st.integers(1, 4), holders=st.integers(0, 48))
def test_no_node_is_refused_by_a_rule_of_the_crd(count: int, gpus: int, holders: int) -> None:
    assert broken_rules(published(sliced(count, gpus=gpus, holders=holders))) == []


def test_a_rule_refuses_what_no_node_may_say() -> None:
    """P38."""
    obj = published(sliced(4))
    obj["status"]["resources"][0]["free"] = 5
    assert broken_rules(obj) == ["more slices are free than there are"]


def broken_rules(obj: dict[str, Any]) -> list[str]:
    """The messages of the CEL rules that an object breaks."""
    environment = cel.NewEnv(variables={"self": cel.Type.DYN})
    return [
        rule["message"]
        for path, one in nodes(schema())
        for rule in one.get("x-kubernetes-validations", ())
        for value in values_at(obj, path)
        if not environment.compile(rule["rule"]).eval(data={"self": value}).value()
    ]


def values_at(obj: Any, path: str) -> list[Any]:
    found = [obj]
    for step in re.findall(r"\.[^.\[]+|\[\]", path):
        found = [item for value in found for item in value] if step == "[]" else [value[step[1:]] for value in found]
    return found


def test_every_list_that_a_rule_goes_through_is_bounded() -> None:
    """Without maxItems the API server refuses the CRD: "estimated rule cost exceeds budget" (api-server-facts §3)."""
    by_path = dict(nodes(schema()))
    for path, one in by_path.items():
        if "x-kubernetes-validations" in one:
            for place in re.finditer(r"\[\]", path):
                assert "maxItems" in by_path[path[: place.start()]], path


def test_a_server_with_this_crd_takes_it_and_shows_it() -> None:
    with ApiServer() as server:
        kind = server.define(gpu_node_crd())
        assert kind == GPU_NODE
