from __future__ import annotations

import os
from pathlib import Path

import pytest

from sharer.adapters.mps import logs


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "control.log"


def add(file: Path, text: str) -> None:
    with file.open("a") as out:
        out.write(text)


def test_only_new_whole_lines_are_read_and_without_their_times(file: Path) -> None:
    reader = logs.LogReader([file])
    assert reader.lines() == []
    add(file, "[2026-02-06 09:34:17.770 Control   261] Accepting connection...\n[2026-02-06 09:34")
    assert reader.lines() == ["Accepting connection..."]
    assert reader.lines() == []
    add(file, ":18.1 Other   337] Startup\n")
    assert reader.lines() == ["Startup"]


def test_what_was_there_before_can_be_skipped(file: Path) -> None:
    add(file, "old\n")
    reader = logs.LogReader([file])
    reader.skip()
    add(file, "new\n")
    assert reader.lines() == ["new"]


def test_a_log_that_was_put_aside_or_cut_is_read_from_its_beginning(file: Path) -> None:
    reader = logs.LogReader([file])
    add(file, "one\ntwo\n")
    reader.lines()
    file.write_text("3\n")
    assert reader.lines() == ["3"]
    file.rename(file.with_suffix(".old"))
    add(file, "another file\n")
    assert reader.lines() == ["another file"]


def test_of_a_flood_only_the_end_is_read(file: Path) -> None:
    add(file, "x" * 99 + "\n")
    add(file, ("y" * 99 + "\n") * (logs.MAX_BYTES // 50) + "last\n")
    lines = logs.LogReader([file]).lines()
    assert lines[-1] == "last"
    assert len(lines) <= logs.MAX_BYTES // 100 + 2


@pytest.mark.parametrize("flags", [os.O_APPEND, 0], ids=["appending", "at its place"])
def test_a_log_that_became_too_long_is_cut_while_it_is_written_and_its_end_kept(file: Path, flags: int) -> None:
    line = b"x" * 1023 + b"\n"
    fd = os.open(file, os.O_WRONLY | os.O_CREAT | flags)
    reader = logs.LogReader([file])
    try:
        for _ in range(logs.MAX_LOG_BYTES // 1024 + 1024):
            os.write(fd, line)
        assert reader.lines()
        assert file.stat().st_blocks == 0
        assert (file.parent / "control.log.old").stat().st_size == logs.KEPT_BYTES
        os.write(fd, b"new\n")
        assert reader.lines() == ["new"]
        os.write(fd, b"newer\n")
        assert reader.lines() == ["newer"]
    finally:
        os.close(fd)
    assert file.stat().st_blocks * 512 < logs.KEPT_BYTES


def test_the_first_error_is_the_reason() -> None:
    lines = [
        "Accepting connection...",
        "User did not send valid credentials",
        "Failed to start : no CUDA-capable device is detected",
        "Server 95 exited with status 1",
    ]
    assert logs.first_error(lines) == lines[2]
    assert logs.first_error(lines[:2]) is None


@pytest.mark.parametrize(
    ("line", "is_fatal"),
    [
        ("Server encountered a fatal exception. Shutting down", True),
        ("NEW SERVER 95: Ready", False),
        ("Server 95 exited with status 1", False),
    ],
)
def test_faults_that_others_suffer_from_are_told_apart(line: str, is_fatal: bool) -> None:
    assert logs.fatal([line]) == (line if is_fatal else None)


def test_clients_that_ask_to_be_let_in_are_named_by_their_pids() -> None:
    lines = [
        "NEW CLIENT 7445 from user 0: Server is not ready, push client to pending list",
        "NEW CLIENT 0 from user 1000: Server already exists",
        "NEW SERVER 7447: Ready",
    ]
    assert logs.newcomers(lines) == [7445], "0 is what a daemon in a PID namespace of its own calls all of them"


def test_who_was_let_in_is_told_by_the_server() -> None:
    lines = [
        "Received new client request for {PID: 7446, Context ID: 1}",
        "Client {PID: 7445, Context ID: 0} connected",
        "Creating worker thread for client {PID: 7447, Context ID: 0}",
        "New Client 7448 connected",
    ]
    assert logs.let_in(lines) == [7445, 7448]
