"""One bounded question at a time to a control daemon, through NVIDIA's executable.

`nvidia-cuda-mps-control` is daemon and front end in one. As a front end it finds the daemon by the pipe directory in
its environment, reads commands from standard input (v2) or takes one as arguments (v3), prints what the daemon says,
and ends with 0 unless the daemon is not there (NVIDIA's manual page). A refused command is a text on standard output
with status 0, so every answer is looked at.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from sharer.core.errors import NodeError

NAME = "nvidia-cuda-mps-control"
FOLDERS = (
    "usr/bin",  # most distributions; where the container toolkit puts it (NVIDIA_DRIVER_CAPABILITIES=utility,compute)
    "run/nvidia/driver/usr/bin",  # the GPU operator's driver container
    "usr/local/nvidia/bin",  # GKE, and images made for it
    "home/kubernetes/bin/nvidia/bin",  # GKE's nodes
    "opt/nvidia/bin",
    "run/current-system/sw/bin",  # NixOS
)
ANSWER_S = 4.0  # a daemon answers in milliseconds; the agent believes a state for 15 s
MAX_ANSWER_BYTES = 2**20


class NoAnswerError(NodeError):
    """The daemon did not answer in time, or is not there."""


class Executable:
    """Where the executable is. Looked for at each use, so a driver that comes late is found."""

    def __init__(self, path: Path | None = None, roots: Sequence[Path] = (Path("/"),)) -> None:
        """`path` names the file, and nothing else is tried; otherwise the usual folders below each root, in order."""
        self._path, self._roots = path, tuple(roots)

    def find(self) -> Path:
        """The file. Raises NodeError that says where it was looked for."""
        if self._path is not None:
            if self._path.is_file():
                return self._path.absolute()
            raise NodeError(f"the MPS control executable is not at {self._path} (--mps-control)")
        places = [root / folder / NAME for root in self._roots for folder in FOLDERS]
        for place in places:
            if place.is_file():
                return place
        raise NodeError(
            f"the MPS control executable {NAME} is not installed: it is at none of {len(places)} usual places, from"
            f" {places[0]} to {places[-1]}. It comes with the driver; name it with --mps-control"
        )


class Control:
    """The executable, as the front end of one daemon."""

    def __init__(self, executable: Executable, pipe: Path, log: Path, *, answer_s: float = ANSWER_S) -> None:
        """`pipe` and `log` are the daemon's directories; how long an answer may take is `answer_s`."""
        self._executable, self._answer_s = executable, answer_s
        self.long_s = 2 * answer_s  # for what the daemon has to do something first
        self._environment = environment_for(pipe, log)

    def say(self, command: str, *, within_s: float | None = None) -> str:
        """One command of the legacy interface. Raises NoAnswerError."""
        return self._run((), command + "\n", within_s)

    def tell(self, *arguments: str, within_s: float | None = None) -> str:
        """One command of MPS v3. Raises NoAnswerError, and NodeError for one that is refused."""
        return self._run(("-p", "3", *arguments), "", within_s)

    def help(self, *arguments: str) -> str:
        """What the executable says of its options; needs no daemon. Raises NodeError if it cannot be run."""
        return self._run((*arguments, "-h"), "", None, any_status=True)

    def _run(self, arguments: Sequence[str], commands: str, within_s: float | None, *, any_status: bool = False) -> str:
        executable = self._executable.find()
        wait_s = self._answer_s if within_s is None else within_s
        shown = commands.strip() or " ".join(arguments)
        try:
            status, said = _exchange([str(executable), *arguments], commands.encode(), self._environment, wait_s)
        except subprocess.TimeoutExpired:
            raise NoAnswerError(f"{shown!r} was not answered within {wait_s:g} s") from None
        except OSError as error:
            raise NodeError(f"{executable} cannot be run: {error.strerror}; name it with --mps-control") from error
        if len(said) > MAX_ANSWER_BYTES:
            raise NodeError(f"{shown!r} was answered with more than {MAX_ANSWER_BYTES} bytes: no daemon talks so much")
        answer = said.decode(errors="replace").strip()
        if status != 0 and not any_status:
            # v3 refuses a wrong command by its status too; a daemon that is not there has said nothing else.
            kind = NodeError if arguments and "annot find" not in answer else NoAnswerError
            raise kind(f"{shown!r} failed with status {status}: {answer or 'without a word'}")
        return answer


def _exchange(
    command: Sequence[str], commands: bytes, environment: Mapping[str, str], within_s: float
) -> tuple[int, bytes]:
    """Run a command. Returns its status, and what it printed: no more than one byte beyond what is read of an answer.

    It may talk to a container that has put its own socket in the daemon's place, and that never ends. Raises OSError,
    and subprocess.TimeoutExpired.
    """
    end_s = time.monotonic() + within_s
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment
    ) as started:
        assert started.stdin is not None
        assert started.stdout is not None
        said = b""
        try:
            with contextlib.suppress(BrokenPipeError):
                started.stdin.write(commands)
                started.stdin.close()
            while len(said) <= MAX_ANSWER_BYTES:
                left_s = max(0.0, end_s - time.monotonic())
                if not select.select([started.stdout], [], [], left_s)[0]:
                    raise subprocess.TimeoutExpired(command, within_s)
                piece = os.read(started.stdout.fileno(), MAX_ANSWER_BYTES + 1 - len(said))
                if not piece:
                    return started.wait(max(0.0, end_s - time.monotonic())), said
                said += piece
            return 0, said
        finally:
            started.kill()  # does nothing to one that has ended


def environment_for(
    pipe: Path, log: Path, gpus: Sequence[str] = (), *, inherited: Mapping[str, str] = os.environ
) -> Mapping[str, str]:
    """What the executable is given: these directories, only these GPUs, and nothing of ours that could steer it."""
    kept = {
        name: value
        for name, value in inherited.items()
        if not name.startswith(("CUDA_", "NVIDIA_", "SHARER_", "PYTHON"))
    }
    ours = {"CUDA_MPS_PIPE_DIRECTORY": str(pipe), "CUDA_MPS_LOG_DIRECTORY": str(log)}
    return kept | ours | ({"CUDA_VISIBLE_DEVICES": ",".join(gpus)} if gpus else {})
