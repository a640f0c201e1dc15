"""The script asks what it should, leaves nothing behind, and on a node without a GPU says so."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest

from sharer.core.quantities import GIB
from sharer.simulation.hardware import SimulatedGpu
from sharer.simulation.memory_limits import LimitBackend
from tests.fakes.cgroups import FakeCgroups
from tests.fakes.nvml import InstalledGpus
from tests.fakes.real_cgroups import open_real_cgroups
from tests.hardware.questions import QUESTIONS

GPU = SimulatedGpu(uuid="GPU-a", memory_bytes=80 * GIB)


def run(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "tests.hardware", *arguments], capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_every_question_is_asked_of_a_simulated_driver_and_nothing_is_left(tmp_path: Path) -> None:
    with contextlib.ExitStack() as closing:
        try:
            tree = closing.enter_context(open_real_cgroups())
        except OSError as error:
            pytest.skip(str(error))
        gpus = closing.enter_context(
            contextlib.closing(InstalledGpus(tmp_path / "driver", [GPU], limit_backend=LimitBackend.MISC))
        )
        said = run("--library", str(gpus.path), "--cgroup-root", str(tree.root))
        assert said.count("\n    ") == len(QUESTIONS)
        assert "failed:" not in said
        assert "hard 2 GiB, soft 0 B, used 0 B" in said
        assert gpus.limited("GPU-a") == {}
        assert {path.name for path in tree.root.iterdir() if path.is_dir()} == {"kubepods"}


def test_without_a_driver_it_says_so(tmp_path: Path) -> None:
    tree = FakeCgroups(tmp_path / "node")
    said = run("--library", str(tmp_path / "none.so"), "--cgroup-root", str(tree.root))
    assert said.startswith("skipped: there is no NVIDIA driver with a GPU here")


def test_without_the_second_version_of_cgroups_it_says_so(tmp_path: Path) -> None:
    assert run("--cgroup-root", str(tmp_path)) == f"skipped: {tmp_path} is not cgroup v2\n"
