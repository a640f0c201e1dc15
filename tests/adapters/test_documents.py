from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
import yaml

from sharer.adapters.documents import read_inventory, read_node_report, to_bytes, to_json, to_yaml
from sharer.core.errors import InputError
from sharer.core.report.inventory import report_inventory
from tests.core.builders import gpu, mig, node, policy, time_slicing
from tests.core.evidence import held, key
from tests.core.nodes import known, report

INVENTORY = node(gpu(0), gpu(1, mig_enabled=True, mig_devices=(mig(0, "1g.10gb+me"),)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    used_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    kind: ClassVar[str] = "Whole"
    many_parts: tuple[Part, ...]
    one_part: Part | None = None
    free_text: Mapping[str, str] = field(default_factory=dict)


def document() -> dict[str, Any]:  # Any: JSON
    found: dict[str, Any] = json.loads(to_json(report_inventory(INVENTORY)))
    return found


def refusal(raw: object) -> str:
    with pytest.raises(InputError) as refused:
        read_inventory(json.dumps(raw).encode(), "node.json")
    return str(refused.value)


def test_a_document_begins_with_version_and_kind_and_writes_fields_in_camel_case() -> None:
    written = to_json(Whole(many_parts=(Part(used_bytes=1),), free_text={"a_name": "kept"}))
    assert list(json.loads(written).items()) == [
        ("apiVersion", "sharer.dev/v1alpha1"),
        ("kind", "Whole"),
        ("manyParts", [{"usedBytes": 1}]),
        ("onePart", None),
        ("freeText", {"a_name": "kept"}),
    ]


def test_unknown_is_written_as_null_and_never_left_out() -> None:
    assert json.loads(to_json(Whole(many_parts=(), one_part=Part(used_bytes=None))))["onePart"] == {"usedBytes": None}


def test_yaml_says_the_same_as_json() -> None:
    report = report_inventory(INVENTORY)
    assert yaml.safe_load(to_yaml(report)) == json.loads(to_json(report))


def test_an_inventory_is_read_back_from_json_and_from_yaml() -> None:
    report = report_inventory(INVENTORY)
    assert read_inventory(to_json(report).encode(), "x") == INVENTORY
    assert read_inventory(to_yaml(report).encode(), "x") == INVENTORY


def test_a_field_that_is_not_known_is_refused_with_file_and_path() -> None:
    changed = document()
    changed["gpus"][1]["migDevices"][0]["memoryByte"] = 1
    assert refusal(changed).startswith("node.json: gpus[1].migDevices[0]: object contains unknown field memoryByte")


def test_a_value_of_another_type_is_refused_with_file_and_path() -> None:
    changed = document()
    changed["gpus"][0]["index"] = "0"
    assert refusal(changed).startswith("node.json: gpus[0].index: expected int, got str")


def test_a_document_of_another_kind_is_refused() -> None:
    assert refusal({**document(), "kind": "Plan"}).startswith(
        "node.json: has apiVersion 'sharer.dev/v1alpha1' and kind 'Plan'; expected 'sharer.dev/v1alpha1' and 'Invent"
    )


@pytest.mark.parametrize("text", [b"", b"[]", b"7", b"{", b"a: [", b"\xff\xfe\x00", b'{"a": \xff}'])
def test_whatever_the_bytes_are_the_answer_is_a_refusal_that_names_the_file(text: bytes) -> None:
    with pytest.raises(InputError, match=r"^node\.json: "):
        read_inventory(text, "node.json")


# ---- node reports


def test_a_node_report_is_the_same_after_it_was_sent() -> None:
    sent = report(known(INVENTORY, policy(time_slicing(4)), entries=held(key(0, 20480))))
    text = to_bytes(sent)
    assert b"\n" not in text
    assert read_node_report(text, "the socket") == sent


def test_a_node_report_of_another_kind_of_agent_is_refused_with_where_it_came_from() -> None:
    with pytest.raises(InputError, match="the socket: .*; the agent there may be another version than this program"):
        read_node_report(to_bytes(report_inventory(INVENTORY)), "the socket")
