"""Follows a Dockerfile's first stage without an engine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.tasks import ROOT

TARGET = "/opt/sharer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """What the stage made, elsewhere than in an image."""

    root: Path

    @classmethod
    def build(cls, dockerfile: Path, folder: Path) -> Image:
        """Do what COPY and RUN lines say, below this folder. Raises AssertionError in the failing line's words."""
        root, source = folder / "sharer", folder / "src"
        source.mkdir()
        for line in first_stage(dockerfile.read_text()):
            word, _, rest = line.partition(" ")
            if word == "COPY":
                *names, into = rest.split()
                for name in names:
                    _copy(ROOT / name, source / into if len(names) == 1 and into != "./" else source / into / name)
            elif word == "RUN":
                _run(rest.replace(TARGET, str(root)).replace("python3 -m", f"{sys.executable} -m"), source)
        return cls(root=root)

    @property
    def packages(self) -> Path:
        """Where its modules lie."""
        (found,) = self.root.glob("lib/python3*/site-packages")
        return found

    def sharer(self, *arguments: str) -> str:
        """What the entry point prints."""
        return self._call("sharer", *arguments)

    def python(self, *arguments: str) -> str:
        """What its Python prints."""
        return self._call("python", *arguments)

    def _call(self, program: str, *arguments: str) -> str:
        command = [str(self.root / "bin" / program), *arguments]
        environment = {"PYTHONDONTWRITEBYTECODE": "1", "PATH": os.environ["PATH"], "HOME": "/"}
        done = subprocess.run(command, capture_output=True, text=True, cwd="/", env=environment, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def first_stage(text: str) -> list[str]:
    """Its instructions, one line each."""
    stages = re.split(r"^FROM .*$", text.replace("\\\n", ""), flags=re.MULTILINE)
    return [line.strip() for line in stages[1].splitlines() if line.strip() and not line.startswith("#")]


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy(source, target)


def _run(command: str, folder: Path) -> None:
    done = subprocess.run(["sh", "-ec", command], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
