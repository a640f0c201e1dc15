"""Folders that are read-only for one process (`tests/fakes/read_only.c`), seen from such a process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.read_only import ReadOnlyFolders

WRITES = {
    "open": "(a / 'f').write_text('y')",
    "create": "(a / 'g').write_text('y')",
    "mkdir": "(a / 'd').mkdir()",
    "unlink": "(a / 'f').unlink()",
    "unlink below an open folder": "os.unlink('f', dir_fd=os.open(a, os.O_RDONLY))",
    "replace": "os.replace(a.parent / 'b', a / 'q')",
    "chmod": "(a / 'f').chmod(0o600)",
    "bind": "socket.socket(socket.AF_UNIX).bind(str(a / 's'))",
}
READS = {
    "read": "(a / 'f').read_text()",
    "a folder that is there": "a.mkdir(exist_ok=True)",
    "a file that is not": "(a / 'none').unlink(missing_ok=True)",
    "beside it": "(a.parent / 'b' / 'x').write_text('y')",
}


def outcome(tmp_path: Path, call: str, *, refused: bool) -> str:
    """What a process is told that does this to folder `a`."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "a/f").touch()
    folders = ReadOnlyFolders(tmp_path / "steering", [tmp_path / "b/c", tmp_path / "a"])
    folders.refuse(tmp_path / "a", refused=refused)
    code = f"import os, socket, sys\nfrom pathlib import Path\na = Path(sys.argv[1])\ntry:\n {call}\n"
    code += " print('done')\nexcept OSError as error:\n print(error.strerror)\n"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "a")],
        env={**os.environ, **folders.variables},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


@pytest.mark.parametrize("call", WRITES.values(), ids=WRITES.keys())
def test_whatever_would_change_something_is_refused_while_it_should_be(tmp_path: Path, call: str) -> None:
    assert outcome(tmp_path, call, refused=True) == "Read-only file system"


@pytest.mark.parametrize("call", WRITES.values(), ids=WRITES.keys())
def test_and_goes_as_ever_while_it_should_not(tmp_path: Path, call: str) -> None:
    assert outcome(tmp_path, call, refused=False) == "done"


@pytest.mark.parametrize("call", READS.values(), ids=READS.keys())
def test_what_changes_nothing_there_goes_as_ever(tmp_path: Path, call: str) -> None:
    assert outcome(tmp_path, call, refused=True) == "done"


def test_the_file_system_says_that_it_is_read_only(tmp_path: Path) -> None:
    asked = "if os.statvfs(a).f_flag & os.ST_RDONLY: raise OSError(0, 'read-only')"
    assert outcome(tmp_path, asked, refused=True) == "read-only"
