"""The kubelet's checkpoint is read whatever its version, believed only when whole, and never written."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharer.adapters.checkpoint import FILE_NAME, MAX_BYTES, Checkpoint
from sharer.adapters.watch import DirectoryWatch
from sharer.core.errors import NodeError
from sharer.core.holders.evidence import CheckpointEntry, CheckpointReading
from sharer.simulation.kubelet import ContainerSpec
from sharer.simulation.kubelet import write_checkpoint as write_as_a_kubelet
from tests.adapters.real_checkpoint import REAL
from tests.simulation.kubelet.node import GPU, fake_node


class ByHand:
    """A watcher that a test lets call."""

    def __init__(self) -> None:
        self.changed: dict[str, Callable[[], None]] = {}

    def subscribe(self, directory: str, changed: Callable[[], None]) -> Callable[[], None]:
        self.changed[directory] = changed
        return lambda: None


def read(text: bytes, folder: Path) -> CheckpointReading | None:
    path = folder / FILE_NAME
    path.write_bytes(text)
    return Checkpoint(path, ByHand()).read()


def is_read_or_called_damaged(text: bytes, folder: Path) -> bool:
    try:
        return read(text, folder) is not None
    except NodeError as error:
        return "is damaged" in str(error)


def document(entries: object, registered: object = None) -> bytes:
    return json.dumps({"Data": {"PodDeviceEntries": entries, "RegisteredDevices": registered}, "Checksum": 1}).encode()


def entry(ids: object) -> dict[str, object]:
    return {"PodUID": "u", "ContainerName": "c", "ResourceName": "r", "DeviceIDs": ids, "AllocResp": "eA=="}


def test_a_real_kubelets_file_is_read(tmp_path: Path) -> None:
    assert read(REAL, tmp_path) == CheckpointReading(
        serial=1,
        entries=(
            CheckpointEntry(
                uid="6a9f3b1e-4f0d-4d64-9d0a-1b6a3f9d8c11",
                container="c",
                resource="sharer.io/gpu",
                ids=("GPU-0::0",),
            ),
        ),
        registered={"sharer.io/gpu": ("GPU-0::0",)},
    )


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ({"-1": ["a", "b"]}, ("a", "b")),
        ({"0": ["a", "b"], "1": ["b"]}, ("a", "b")),  # a device on two NUMA nodes is named under both
        (["a", "b"], ("a", "b")),  # before Kubernetes 1.20
        ({"0": None, "1": ["a"]}, ("a",)),
        ({}, ()),
        (None, ()),
    ],
)
def test_ids_are_read_once_each_in_every_form_that_kubelets_wrote(
    tmp_path: Path, ids: object, expected: tuple[str, ...]
) -> None:
    found = read(document([entry(ids)]), tmp_path)
    assert found is not None
    assert [one.ids for one in found.entries] == [expected]


@pytest.mark.parametrize("nothing", [None, []])
def test_a_file_without_entries_says_that_nobody_was_given_anything(tmp_path: Path, nothing: object) -> None:
    assert read(document(nothing), tmp_path) == CheckpointReading(serial=1)


def test_fields_of_later_versions_are_passed_over(tmp_path: Path) -> None:
    later = {**entry({"-1": ["a"]}), "Claims": [{"x": 1}]}
    text = json.dumps({"Data": {"PodDeviceEntries": [later], "More": {}}, "Checksum": "text", "Version": "v9"})
    assert read(text.encode(), tmp_path) is not None


def test_without_a_file_nobody_was_given_anything_and_that_is_no_error(tmp_path: Path) -> None:
    """A kubelet that starts without it knows nothing; registering does not wait."""
    assert Checkpoint(tmp_path / FILE_NAME, ByHand()).read() is None
    assert Checkpoint(tmp_path / "no directory" / FILE_NAME, ByHand()).read() is None


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\0" * 512,  # a file that was allocated and never written, after a loss of power
        b"{}",
        b"null",
        b"[]",
        REAL[:200],
        REAL + REAL,
        b"\xff\xfe" + REAL,
        REAL.replace(b'"c"', b'"\xff"'),
        document({"u": 1}),
        document([entry(7)]),
        document([entry({"-1": [7]})]),
        document([{"PodUID": "u"}]),
        document([None]),
        document([], {"r": "a"}),
        b'{"Data":{"x":' + b"[" * 100_000,
    ],
)
def test_a_damaged_file_is_an_error_that_says_so_and_never_an_empty_one(tmp_path: Path, text: bytes) -> None:
    """P32: truncated, empty, other types."""
    with pytest.raises(NodeError, match="is damaged"):
        read(text, tmp_path)


@given(st.binary(max_size=400) | st.integers(0, len(REAL)).map(lambda cut: REAL[:cut] + b"\0" + REAL[cut + 1 :]))
def test_whatever_bytes_are_in_the_file_it_is_read_or_said_to_be_damaged(
    tmp_path_factory: pytest.TempPathFactory, text: bytes
) -> None:
    assert is_read_or_called_damaged(text, tmp_path_factory.mktemp("c"))


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
        max_leaves=8,
    )
)
def test_whatever_json_is_in_it_it_is_read_or_said_to_be_damaged(
    tmp_path_factory: pytest.TempPathFactory, value: object
) -> None:
    folder = tmp_path_factory.mktemp("c")
    for text in (json.dumps(value), json.dumps({"Data": value}), document([value]).decode(), document(value).decode()):
        assert is_read_or_called_damaged(text.encode(), folder)


def test_a_damaged_file_that_is_written_anew_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    path.write_bytes(REAL[:100])
    checkpoint = Checkpoint(path, ByHand())
    with pytest.raises(NodeError):
        checkpoint.read()
    path.write_bytes(REAL)
    assert checkpoint.read() is not None


def test_a_file_is_read_once_for_all_threads(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    path.write_bytes(REAL)
    checkpoint, all_here = Checkpoint(path, ByHand()), threading.Barrier(4)
    found: list[CheckpointReading | None] = []

    def read_together() -> None:
        all_here.wait(60)
        found.append(checkpoint.read())

    threads = [threading.Thread(target=read_together) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(60)
    assert [id(one.entries) for one in found if one is not None] == 4 * [id(checkpoint._last.entries)]


def test_a_file_that_is_far_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    path.touch()
    os.truncate(path, MAX_BYTES + 1)
    with pytest.raises(NodeError, match="larger than"):
        Checkpoint(path, ByHand()).read()


def test_something_else_under_its_name_is_an_error(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).mkdir()
    with pytest.raises(NodeError, match="cannot be read: Is a directory"):
        Checkpoint(tmp_path / FILE_NAME, ByHand()).read()


def test_readings_are_counted_and_an_unchanged_file_is_not_parsed_again(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    path.write_bytes(REAL)
    checkpoint = Checkpoint(path, ByHand())
    first, second = checkpoint.read(), checkpoint.read()
    assert first is not None
    assert second is not None
    assert (first.serial, second.serial) == (1, 2)
    assert first.entries is second.entries


def test_a_file_that_is_replaced_by_one_of_the_same_size_is_read_again(tmp_path: Path) -> None:
    """The kubelet writes a temporary file and renames it, so the inode is another each time."""
    write_as_a_kubelet(tmp_path / FILE_NAME, [], {"a/b": ["1"]})
    checkpoint = Checkpoint(tmp_path / FILE_NAME, ByHand())
    checkpoint.read()
    write_as_a_kubelet(tmp_path / FILE_NAME, [], {"a/b": ["2"]})
    found = checkpoint.read()
    assert found is not None
    assert found.registered == {"a/b": ("2",)}


def test_followers_are_told_of_a_written_file_and_of_nothing_else(tmp_path: Path) -> None:
    watcher, told = ByHand(), []
    path = tmp_path / FILE_NAME
    Checkpoint(path, watcher).follow(lambda: told.append(1))
    look = watcher.changed[str(tmp_path)]
    (tmp_path / "kubelet.sock").touch()
    look()
    assert told == []
    write_as_a_kubelet(path, [], {})
    look()
    look()
    assert told == [1]
    path.unlink()
    look()
    assert told == [1, 1]


@pytest.fixture
def watch() -> Iterator[DirectoryWatch]:
    with contextlib.closing(DirectoryWatch()) as watch:
        yield watch


def test_the_kubelets_write_is_noticed_and_names_every_container_of_the_pod(watch: DirectoryWatch) -> None:
    """Init containers too, which the kubelet's list never names; with the real inotify."""
    with fake_node() as node:
        node.registered("abcd")
        written = threading.Event()
        checkpoint = Checkpoint(node.kubelet.checkpoint, watch)
        checkpoint.follow(written.set)
        pod = node.kubelet.start_pod(
            "p",
            containers=[ContainerSpec(name="c", limits={GPU: 1})],
            init_containers=[
                ContainerSpec(name="i", limits={GPU: 2}),
                ContainerSpec(name="s", limits={GPU: 1}, sidecar=True),
            ],
        )
        assert written.wait(30)
        found = checkpoint.read()
        assert found is not None
        given = {one.container: set(one.ids) for one in found.entries if one.uid == pod.uid}
        assert given == {name: set(pod.ids(GPU, name)) for name in ("i", "s", "c")}
        assert set(found.registered[GPU]) == set("abcd")
