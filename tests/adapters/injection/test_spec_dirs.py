"""Which CDI names resolve: the directories are read as container runtimes were seen to read them (runtime-facts §1)."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from sharer.adapters.injection.paths import HostPaths
from sharer.adapters.injection.spec_dirs import MAX_SPEC_BYTES, Names, SpecDirs
from tests.adapters.injection.hosts import spec_text

A, B = "nvidia.com/gpu=a", "nvidia.com/gpu=b"


@pytest.fixture
def etc(tmp_path: Path) -> Path:
    return made(tmp_path / "etc")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return made(tmp_path / "run")


def made(path: Path) -> Path:
    path.mkdir()
    return path


def look(*directories: Path) -> Names:
    return SpecDirs(lambda: directories).look()


def resolvable(*directories: Path) -> set[str]:
    return set(look(*directories).nodes)


@pytest.mark.parametrize("name", ["x.json", "x.yaml", ".x.json", ".x.yaml"])
def test_json_and_yaml_files_count_and_dot_files_too(etc: Path, name: str) -> None:
    (etc / name).write_text(spec_text("a"))
    assert resolvable(etc) == {A}


@pytest.mark.parametrize("name", ["x.yml", "x.txt", "x.json.tmp", "x", "x.JSON"])
def test_other_endings_do_not_count(etc: Path, name: str) -> None:
    (etc / name).write_text(spec_text("a"))
    assert resolvable(etc) == set()


def test_sub_folders_do_not_count_whatever_they_are_called(etc: Path) -> None:
    made(etc / "x.json")
    (etc / "x.json" / "y.json").write_text(spec_text("a"))
    names = look(etc)
    assert (names.nodes, names.refused) == ({}, {})


def test_a_link_to_a_good_file_counts(etc: Path, tmp_path: Path) -> None:
    (tmp_path / "real").write_text(spec_text("a"))
    (etc / "x.json").symlink_to(tmp_path / "real")
    assert resolvable(etc) == {A}


def test_a_directory_that_is_a_link_is_not_followed(etc: Path, tmp_path: Path) -> None:
    (etc / "x.json").write_text(spec_text("a"))
    (tmp_path / "link").symlink_to(etc)
    assert resolvable(tmp_path / "link") == set()


def test_a_directory_may_be_missing_and_may_come_later(tmp_path: Path) -> None:
    specs = SpecDirs(lambda: [tmp_path / "late"])
    assert specs.look().nodes == {}
    made(tmp_path / "late")
    (tmp_path / "late" / "x.json").write_text(spec_text("a"))
    assert set(specs.look().nodes) == {A}


@pytest.mark.parametrize(
    "bad", ["{", "", spec_text("b", version="9.9.9"), spec_text("b", edits={}), spec_text("b", x=1)]
)
def test_a_bad_file_loses_its_own_devices_only(etc: Path, bad: str) -> None:
    (etc / "good.json").write_text(spec_text("a"))
    (etc / "bad.json").write_text(bad)
    names = look(etc)
    assert set(names.nodes) == {A}
    assert list(names.refused) == [etc / "bad.json"]


def test_the_reason_of_an_unresolvable_name_tells_of_refused_files(etc: Path, run: Path) -> None:
    (etc / "nvidia.json").write_text(spec_text("a", "b", edits={}))
    problem = look(etc, run).problem(A) or ""
    assert problem.startswith(f"no CDI spec in {etc}, {run} names {A}; {etc}/nvidia.json is refused: ")
    assert "empty containerEdits" in problem


def test_a_spec_that_names_gpus_by_number_is_explained(etc: Path) -> None:
    """The toolkit's default until it began to write both."""
    (etc / "nvidia.json").write_text(spec_text("0", "1", "all"))
    problem = look(etc).problem(A) or ""
    assert "those of its kind are called 0, 1, all; " in problem
    assert "--device-name-strategy=uuid" in problem


def test_one_name_in_two_files_of_a_directory_resolves_to_neither(etc: Path) -> None:
    (etc / "x.json").write_text(spec_text("a", "b"))
    (etc / "y.json").write_text(spec_text("a"))
    names = look(etc)
    assert set(names.nodes) == {B}
    assert (
        names.problem(A)
        == f"{A} is in {etc}/x.json and {etc}/y.json, and a name that is there twice resolves to neither; remove one"
    )


def test_of_two_directories_the_later_one_counts(etc: Path, run: Path) -> None:
    (etc / "x.json").write_text(spec_text("a", edits={"deviceNodes": [{"path": "/dev/old"}]}))
    (run / "x.json").write_text(spec_text("a", edits={"deviceNodes": [{"path": "/dev/new"}]}))
    assert look(etc, run).nodes[A] == ("/dev/new",)
    assert look(run, etc).nodes[A] == ("/dev/old",)


def test_a_conflict_is_not_healed_by_another_directory(etc: Path, run: Path) -> None:
    """So the CDI library does it, whichever of the directories has the conflict."""
    for path in (etc / "x.json", etc / "y.json", run / "x.json"):
        path.write_text(spec_text("a"))
    assert resolvable(etc, run) == set()
    assert resolvable(run, etc) == set()


def test_a_pipe_is_refused_without_waiting_for_its_other_end(etc: Path) -> None:
    os.mkfifo(etc / "x.json")
    assert look(etc).refused == {etc / "x.json": "it is not a file"}


def test_a_link_to_nowhere_is_refused(etc: Path) -> None:
    (etc / "x.json").symlink_to("/nowhere")
    assert look(etc).refused == {etc / "x.json": "it cannot be looked at"}


def test_a_huge_file_is_refused_unread(etc: Path) -> None:
    with (etc / "x.json").open("wb") as file:
        file.truncate(MAX_SPEC_BYTES + 1)
    assert look(etc).refused == {etc / "x.json": f"it is larger than {MAX_SPEC_BYTES} bytes"}


# ---- looked at every few seconds


def replaced(path: Path) -> None:
    path.with_suffix(".tmp").write_text(spec_text("b"))
    path.with_suffix(".tmp").rename(path)


@pytest.mark.parametrize(
    "change",
    [
        lambda path: path.write_text(spec_text("b")),
        replaced,
        lambda path: path.unlink(),
        lambda path: (path.parent / "y.json").write_text(spec_text("b")),
    ],
)
def test_whatever_changes_is_seen_at_the_next_look(etc: Path, change: Callable[[Path], object]) -> None:
    (etc / "x.json").write_text(spec_text("a"))
    specs = SpecDirs(lambda: [etc])
    before = specs.look()
    change(etc / "x.json")
    assert set(specs.look().nodes) != set(before.nodes)


def test_while_nothing_changes_the_answer_is_the_same_object(etc: Path) -> None:
    (etc / "x.json").write_text(spec_text("a"))
    specs = SpecDirs(lambda: [etc])
    assert specs.look() is specs.look()


# ---- the host's paths


def test_a_path_of_the_host_is_followed_as_the_host_would(tmp_path: Path) -> None:
    """/var/run is a link to /run on most hosts: followed from a pod it would lead into the pod's own /run."""
    made(tmp_path / "var")
    (tmp_path / "var/run").symlink_to("/run")
    assert HostPaths(host_root=tmp_path).below("/var/run/cdi") == tmp_path / "run/cdi"


@pytest.mark.parametrize(
    ("target", "expected"),
    [("../run", "run/cdi"), ("/../run/.", "run/cdi"), ("../../../run", "run/cdi"), ("x", "var/x/cdi")],
)
def test_relative_links_and_dots_stay_below_the_host_s_root(tmp_path: Path, target: str, expected: str) -> None:
    made(tmp_path / "var")
    (tmp_path / "var/run").symlink_to(target)
    assert HostPaths(host_root=tmp_path).below("/var/run/cdi") == tmp_path / expected


def test_links_in_a_circle_end(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("/b")
    (tmp_path / "b").symlink_to("/a")
    assert not HostPaths(host_root=tmp_path).below("/a/cdi").exists()


def test_on_a_host_without_links_the_path_is_simply_below_the_root(tmp_path: Path) -> None:
    assert HostPaths(host_root=tmp_path).below("/etc/cdi") == tmp_path / "etc/cdi"
