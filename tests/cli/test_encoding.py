"""Terminals that do not speak UTF-8."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.running import write_policy
from tests.tasks import ROOT


@pytest.mark.parametrize("encoding", ["latin-1", "ascii", "utf-8"])
def test_what_a_terminal_cannot_show_is_shown_as_numbers_and_ends_nothing(tmp_path: Path, encoding: str) -> None:
    """Reported of many a tool in Python: one letter of somebody's name, and there is a traceback for an answer."""
    path = write_policy(tmp_path, strategy="“time-slicing”", slices=4)
    done = subprocess.run(
        [sys.executable, "-m", "sharer", "policy", "check", path],
        cwd=ROOT, env={**os.environ, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}, capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == b""
    assert b"did you mean 'time-slicing'" in done.stdout
