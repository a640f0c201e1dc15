"""The node under test: its first GPU through the plain pynvml, cgroups of our own, programs in them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pynvml

ANSWER_S = 60.0
NO_LIMIT: int = pynvml.NVML_DEVICE_MEMORY_LIMIT_MAX


class Skipped(Exception):  # noqa: N818 - an answer, not a failure
    """This cannot be found out here; the text says why."""


@dataclass(frozen=True, slots=True)
class Got:
    """What the getter answered."""

    code: int  # NVML's; 0: the rest is valid
    soft_bytes: int = 0
    hard_bytes: int | None = None  # None: no limit
    used_bytes: int = 0


class Node:
    """A GPU and a place for cgroups."""

    def __init__(self, library: Path | None, cgroup_root: Path) -> None:
        if not (cgroup_root / "cgroup.controllers").exists():
            raise Skipped(f"{cgroup_root} is not cgroup v2")
        if not os.access(cgroup_root, os.W_OK):
            raise Skipped(f"{cgroup_root} cannot be written: run as root")
        try:
            if library is not None:
                pynvml.nvmlLib = ctypes.CDLL(str(library))
                pynvml.nvmlInitWithFlags(0)
            else:
                pynvml.nvmlInit()
        except (OSError, pynvml.NVMLError) as error:
            raise Skipped(f"there is no NVIDIA driver with a GPU here: {error}") from None
        self.gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
        self.total_bytes: int = pynvml.nvmlDeviceGetMemoryInfo(self.gpu).total
        self._root = cgroup_root
        self._enabled: list[Path] = []
        self.top = cgroup_root / f"sharer-hardware-{os.getpid()}"

    def open(self) -> None:
        """Make the cgroup that everything happens below, with dmem enabled where there is such a controller."""
        self.enable(self._root)
        self.top.mkdir()
        self.enable(self.top)

    def close(self) -> None:
        """Leave everything as it was."""
        for path in sorted(self.top.rglob("*"), reverse=True):
            if path.is_dir():
                self.set(path, 0, NO_LIMIT)
                path.rmdir()
        with contextlib.suppress(FileNotFoundError):
            self.top.rmdir()
        for path in reversed(self._enabled):
            with contextlib.suppress(OSError):
                (path / "cgroup.subtree_control").write_text("-dmem")
        pynvml.nvmlShutdown()

    @property
    def has_dmem(self) -> bool:
        """Whether the kernel has the controller."""
        return "dmem" in (self._root / "cgroup.controllers").read_text().split()

    def enable(self, path: Path) -> None:
        """Let the cgroups below have limits."""
        control = path / "cgroup.subtree_control"
        if self.has_dmem and "dmem" not in control.read_text().split():
            control.write_text("+dmem")
            self._enabled.append(path)

    @contextlib.contextmanager
    def cgroup(self, *names: str) -> Iterator[Path]:
        """A cgroup below the top; with several names, the last of a chain. Gone afterwards, unless it was removed."""
        made, path = [], self.top
        for name in names:
            path = path / name
            path.mkdir()
            made.append(path)
            if name != names[-1]:
                self.enable(path)
        try:
            yield path
        finally:
            for path in reversed(made):
                if path.is_dir():
                    self.set(path, 0, NO_LIMIT)
                    path.rmdir()

    def set(self, cgroup: Path, soft_bytes: int, hard_bytes: int, gpu: object = None) -> int:
        """Set a limit. Returns NVML's code."""
        limits = pynvml.c_nvmlSetMemoryLimits_v1_t()
        limits.nameSpace, limits.softLimit, limits.hardLimit = str(cgroup).encode(), soft_bytes, hard_bytes
        return _code(lambda: pynvml.nvmlDeviceSetMemoryLimits_v1(self.gpu if gpu is None else gpu, limits))

    def get(self, cgroup: Path, gpu: object = None) -> Got:
        """Read a limit."""
        limits = pynvml.c_nvmlGetMemoryLimits_v1_t()
        limits.nameSpace = str(cgroup).encode()
        code = _code(lambda: pynvml.nvmlDeviceGetMemoryLimits_v1(self.gpu if gpu is None else gpu, limits))
        if code != 0:
            return Got(code)
        hard_bytes = None if limits.hardLimit == NO_LIMIT else int(limits.hardLimit)
        return Got(0, int(limits.softLimit), hard_bytes, int(limits.currentUsed))

    @contextlib.contextmanager
    def program(self, cgroup: Path) -> Iterator[Program]:
        """A program in a cgroup. Raises Skipped where CUDA is missing."""
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.hardware.cuda", str(cgroup), "0"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        program = Program(process)
        try:
            yield program
        finally:
            process.kill()
            process.communicate()


class Program:
    """A running `tests.hardware.cuda`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def ask(self, command: str) -> str:
        """Its answer to a command. Raises Skipped if it has none."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(f"{command}\n")
            self._process.stdin.flush()
        answer = self._process.stdout.readline().strip()
        if not answer:
            _, complaints = self._process.communicate()
            raise Skipped(f"the CUDA program ended: {complaints.strip().splitlines()[-1:] or 'without a word'}")
        return answer


def _code(call: object) -> int:
    assert callable(call)
    try:
        call()
    except pynvml.NVMLError as error:
        return int(error.value)
    return 0
