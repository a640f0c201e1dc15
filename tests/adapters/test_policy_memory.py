"""P32: the last good policy after damage of every kind; the agent goes on, with one line in its log."""

from __future__ import annotations

import hashlib
import logging
import os
from pathlib import Path

import pytest

from sharer.adapters.policy_memory import FILE_NAME, LastGoodPolicy
from sharer.core.ports.policy import PolicyText
from tests.fakes.full_disk import full_disk

TEXT = b"rules: []\n# \xe2\x9c\x93\n"
GOOD = PolicyText(source="configmap gpu/p key a100", text=TEXT, digest=hashlib.sha256(TEXT).hexdigest())


def kept(folder: Path) -> Path:
    """A folder's file with a good policy in it."""
    LastGoodPolicy(folder).keep(GOOD)
    return folder / FILE_NAME


def test_a_policy_that_was_kept_is_there_after_a_restart_with_where_it_came_from(tmp_path: Path) -> None:
    kept(tmp_path)
    assert LastGoodPolicy(tmp_path).last_good() == GOOD


def test_the_file_is_a_policy_for_people_too(tmp_path: Path) -> None:
    first, _, rest = kept(tmp_path).read_bytes().partition(b"\n")
    assert first.startswith(b"# ")
    assert rest == TEXT


def test_a_newer_policy_replaces_the_older_one_and_leaves_no_other_file(tmp_path: Path) -> None:
    kept(tmp_path)
    newer = PolicyText(source="a\nb", text=b"", digest=hashlib.sha256(b"").hexdigest())
    LastGoodPolicy(tmp_path).keep(newer)
    found = LastGoodPolicy(tmp_path).last_good()
    assert found is not None
    assert (found.text, found.source) == (b"", "a b")
    assert os.listdir(tmp_path) == [FILE_NAME]


def test_a_missing_file_is_nothing_special(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert LastGoodPolicy(tmp_path / "none").last_good() is None
    assert caplog.records == []


def test_a_run_directory_that_does_not_exist_is_made(tmp_path: Path) -> None:
    assert kept(tmp_path / "run").parent.stat().st_mode & 0o777 == 0o750
    assert (tmp_path / "run" / FILE_NAME).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-3],
        lambda content: content[:20],
        lambda content: b"",
        lambda content: content.replace(b"rules", b"rulez"),
        lambda content: b"\xff\xfe" + content,
        lambda content: content.partition(b"\n")[2],
        lambda content: content + b"more",
    ],
    ids=["truncated", "no text", "empty", "edited", "not UTF-8", "no first line", "longer"],
)
def test_a_damaged_file_is_set_aside_with_one_line_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: object
) -> None:
    assert callable(damage)
    path = kept(tmp_path)
    path.write_bytes(damage(path.read_bytes()))
    assert LastGoodPolicy(tmp_path).last_good() is None
    assert LastGoodPolicy(tmp_path).last_good() is None
    assert len(caplog.records) == 1
    assert f"set aside as {path}.damaged" in caplog.text
    kept(tmp_path)
    assert LastGoodPolicy(tmp_path).last_good() == GOOD


def test_a_directory_in_its_place_is_one_line_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / FILE_NAME).mkdir()
    memory = LastGoodPolicy(tmp_path)
    assert memory.last_good() is None
    memory.keep(GOOD)
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    assert os.listdir(tmp_path) == [FILE_NAME]


def test_a_full_disk_is_one_line_in_the_log_and_the_older_file_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept(tmp_path)
    with full_disk():
        LastGoodPolicy(tmp_path).keep(PolicyText(source="other", text=b"x" * 10_000, digest="0" * 64))
    assert len(caplog.records) == 1
    assert "File too large" in caplog.text
    assert LastGoodPolicy(tmp_path).last_good() == GOOD
    assert os.listdir(tmp_path) == [FILE_NAME]


def test_a_directory_that_cannot_be_written_is_one_line_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    LastGoodPolicy(Path("/proc/self")).keep(GOOD)  # read-only also for root
    assert len(caplog.records) == 1
    assert "a restart with a wrong policy goes back to an older one, or offers nothing new" in caplog.text


def test_what_could_not_be_kept_is_tried_again_at_each_call_and_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    memory = LastGoodPolicy(tmp_path)
    with full_disk(), caplog.at_level(logging.INFO):
        memory.keep(GOOD)
        memory.keep(GOOD)
    assert memory.last_good() is None
    with caplog.at_level(logging.INFO):
        memory.keep(GOOD)
        memory.keep(GOOD)
    assert memory.last_good() == GOOD
    assert [record.levelno for record in caplog.records] == [logging.WARNING, logging.INFO]


def test_what_is_kept_is_not_written_again(tmp_path: Path) -> None:
    """A look every 3 s asks for it."""
    path = kept(tmp_path)
    memory = LastGoodPolicy(tmp_path)
    assert memory.last_good() == GOOD
    before = path.stat()
    memory.keep(GOOD)
    assert path.stat() == before


def test_a_kill_in_the_middle_of_a_write_leaves_the_older_policy(tmp_path: Path) -> None:
    path = kept(tmp_path)
    path.with_name(f".{FILE_NAME}.new").write_bytes(path.read_bytes()[:30])
    assert LastGoodPolicy(tmp_path).last_good() == GOOD
    kept(tmp_path)
    assert os.listdir(tmp_path) == [FILE_NAME]
