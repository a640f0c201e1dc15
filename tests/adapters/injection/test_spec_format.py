"""A CDI spec's text is accepted exactly where a container runtime would accept it (runtime-facts §1)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharer.adapters.injection.spec_format import VERSIONS, SpecRefused, read_spec, write_spec
from tests.adapters.injection.hosts import spec_text

TOOLKIT_YAML = """\
---
cdiVersion: 0.5.0
containerEdits:
  deviceNodes:
  - path: /dev/nvidiactl
  env:
  - NVIDIA_VISIBLE_DEVICES=void
  hooks:
  - args: [nvidia-cdi-hook, create-symlinks, --link, "../libcuda.so.1::/usr/lib/libcuda.so"]
    hookName: createContainer
    path: /usr/bin/nvidia-cdi-hook
    timeout: 5
  mounts:
  - containerPath: /usr/bin/nvidia-smi
    hostPath: /usr/bin/nvidia-smi
    options: [ro, nosuid, nodev, rbind, rprivate]
devices:
- name: 0
  containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
      hostPath: /run/nvidia/driver/dev/nvidia0
      major: 195
      fileMode: 438
- name: all
  containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
kind: nvidia.com/gpu
"""


MOUNT = {"hostPath": "/a", "containerPath": "/b"}


def refusal(text: str | bytes) -> str:
    with pytest.raises(SpecRefused) as refused:
        read_spec(text.encode() if isinstance(text, str) else text)
    return str(refused.value)


def changed(**changes: object) -> str:
    """A good spec of one device, with these keys of the file different."""
    return json.dumps({**json.loads(spec_text("a")), **changes})


def with_edits(**edits: object) -> str:
    return spec_text("a", edits=edits, version="1.0.0")


def test_what_nvidia_s_toolkit_writes_is_read() -> None:
    spec = read_spec(TOOLKIT_YAML.encode())
    assert spec.kind == "nvidia.com/gpu"
    assert [device.name for device in spec.devices or ()] == ["0", "all"]


def test_json_and_yaml_are_told_apart_by_their_text_as_in_the_runtime() -> None:
    assert read_spec(spec_text("a").encode()) == read_spec(
        b"cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices: [{name: a, containerEdits: {env: [X=1]}}]"
    )


@pytest.mark.parametrize("null", ["", "~", "null"])
def test_nothing_written_after_a_key_is_the_same_as_no_key(null: str) -> None:
    device = f"{{name: a, containerEdits: {{env: [X=1], hooks: {null}}}}}"
    text = f"cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ncontainerEdits: {null}\ndevices: [{device}]"
    assert read_spec(text.encode()) == read_spec(spec_text("a").encode())


@pytest.mark.parametrize("version", VERSIONS)
def test_versions_from_0_3_0_to_1_0_0_are_accepted(version: str) -> None:
    assert read_spec(spec_text("a", version=version).encode()).cdi_version == version


@pytest.mark.parametrize("version", ["0.2.0", "1.1.0", "2.0.0", "", "v0.5.0", "0.5"])
def test_any_other_version_refuses_the_file_and_the_reason_lists_the_known_ones(version: str) -> None:
    assert "is not one of 0.3.0, 0.4.0" in refusal(spec_text("a", version=version))


@pytest.mark.parametrize(
    ("text", "lowest"),
    [
        (spec_text("a", version="0.3.0", edits={"mounts": [MOUNT | {"type": "bind"}]}), "0.4.0"),
        (spec_text("a", version="0.4.0", edits={"deviceNodes": [{"path": "/a", "hostPath": "/b"}]}), "0.5.0"),
        (spec_text("0", version="0.4.0"), "0.5.0"),
        (spec_text("a", version="0.5.0", annotations={"a.b/c": "d"}), "0.6.0"),
        (spec_text("a", version="0.5.0", kind="nvidia.com/gpu.x"), "0.6.0"),
        (spec_text("a", version="0.6.0", edits={"additionalGids": [5]}), "0.7.0"),
        (spec_text("a", version="0.6.0", edits={"intelRdt": {"closID": "x"}}), "0.7.0"),
    ],
)  # fmt: skip
def test_a_file_that_uses_more_than_its_version_has_is_refused(text: str, lowest: str) -> None:
    assert f"what the file uses came with {lowest}" in refusal(text)


@pytest.mark.parametrize("length", range(0, 60, 7))
def test_a_truncated_file_is_refused(length: int) -> None:
    refusal(spec_text("a")[:length])


def test_a_truncated_yaml_file_is_refused() -> None:
    refusal(TOOLKIT_YAML[: TOOLKIT_YAML.index("devices:")])


@pytest.mark.parametrize(
    "text",
    [
        changed(more=1),
        with_edits(environment=["X=1"]),
        with_edits(deviceNodes=[{"path": "/a", "mode": 1}]),
        with_edits(netDevices=[{"hostInterfaceName": "a", "name": "b"}]),  # came with 1.1.0
    ],
)
def test_an_unknown_field_anywhere_refuses_the_file(text: str) -> None:
    assert "unknown field" in refusal(text)


@pytest.mark.parametrize("empty", [{}, {"env": []}, {"env": None, "mounts": []}])
def test_one_device_with_empty_edits_refuses_the_whole_file(empty: dict[str, Any]) -> None:
    text = json.loads(spec_text("good"))
    text["devices"].append({"name": "bad", "containerEdits": empty})
    assert "device 'bad' has empty containerEdits" in refusal(json.dumps(text))


@pytest.mark.parametrize("devices", [[], None])
def test_a_file_without_devices_is_refused(devices: list[object] | None) -> None:
    assert "has no devices" in refusal(changed(devices=devices))


def test_a_device_that_is_there_twice_refuses_the_file() -> None:
    assert "device 'a' is there twice" in refusal(spec_text("a", "a"))


@pytest.mark.parametrize("name", ["", "a b", "-a", "a-", "a/b", "a=b", "ä"])
def test_a_device_name_with_other_characters_refuses_the_file(name: str) -> None:
    assert "device name" in refusal(spec_text(name))


def test_a_device_id_of_ours_is_a_valid_device_name() -> None:
    read_spec(spec_text("GPU-aaaaaaaa-0000-0000-0000-000000000000::mps-3-20480-25", version="0.3.0").encode())


@pytest.mark.parametrize("kind", ["", "gpu", "nvidia.com/", "/gpu", "nvidia.com/gpu=all", "1.com/gpu", "a/b/c"])
def test_a_kind_that_is_none_refuses_the_file(kind: str) -> None:
    assert "is not of the form vendor.com/class" in refusal(changed(kind=kind))


@pytest.mark.parametrize(
    "edits",
    [
        {"env": ["X"]},
        {"env": ["=1"]},
        {"deviceNodes": [{"path": ""}]},
        {"deviceNodes": [{"path": "/a", "type": "x"}]},
        {"deviceNodes": [{"path": "/a", "permissions": "rwq"}]},
        {"hooks": [{"hookName": "whenever", "path": "/a"}]},
        {"hooks": [{"hookName": "prestart"}]},
        {"hooks": [{"hookName": "prestart", "path": "/a", "env": ["X"]}]},
        {"mounts": [{"hostPath": "", "containerPath": "/a"}]},
        {"mounts": [{"hostPath": "/a"}]},
    ],
)
def test_an_edit_that_cannot_be_made_refuses_the_file(edits: dict[str, object]) -> None:
    assert "device 'a'" in refusal(with_edits(**edits))
    assert "containerEdits" in refusal(changed(cdiVersion="1.0.0", containerEdits=edits))


@pytest.mark.parametrize(
    "text", [b"", b"\xff\xfe\xff", b"- a", b"a: [", b"&a [*a]", b"[" * 100_000, b"{" * 100_000, b"x: " * 9]
)
def test_no_text_whatever_does_more_than_refuse_its_file(text: bytes) -> None:
    assert refusal(text)


@given(text=st.binary(max_size=200))
def test_random_bytes_are_refused_in_words(text: bytes) -> None:
    assert refusal(text)


def test_the_nodes_that_a_runtime_looks_at_are_the_device_s_and_the_file_s() -> None:
    spec = read_spec(TOOLKIT_YAML.encode())
    assert spec.devices is not None
    first, second = spec.devices
    assert spec.needed_nodes(first) == ["/dev/nvidiactl", "/run/nvidia/driver/dev/nvidia0"]
    assert spec.needed_nodes(second) == ["/dev/nvidiactl", "/dev/nvidia0"]


def test_a_node_with_type_and_number_is_made_without_a_look_at_the_host() -> None:
    spec = read_spec(with_edits(deviceNodes=[{"path": "/dev/a", "type": "c", "major": 195}]).encode())
    assert spec.needed_nodes((spec.devices or [])[0]) == []


# ---- what we write


def test_our_own_spec_is_accepted_by_every_runtime_that_reads_cdi() -> None:
    """The lowest version that fits (runtime-facts §1.11), nothing empty, and nothing besides the variables."""
    text = write_spec("sharer.dev/slice", {"GPU-b::ts-1": ["X=2"], "GPU-a::ts-0": ["X=1", "Y=a,b=c"]})
    assert json.loads(text) == {
        "cdiVersion": "0.3.0",
        "kind": "sharer.dev/slice",
        "devices": [
            {"name": "GPU-a::ts-0", "containerEdits": {"env": ["X=1", "Y=a,b=c"]}},
            {"name": "GPU-b::ts-1", "containerEdits": {"env": ["X=2"]}},
        ],
    }
    read_spec(text)


def test_a_name_that_begins_with_a_digit_needs_a_later_version() -> None:
    assert json.loads(write_spec("sharer.dev/slice", {"0-a::ts-0": ["X=1"]}))["cdiVersion"] == "0.5.0"
