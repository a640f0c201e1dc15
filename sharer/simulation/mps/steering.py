"""How a node's fake MPS behaves: a folder with the executable, what it is told, and what it was asked."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from sharer.simulation.mps.manners import COMMANDS, FILE_NAME, STARTS

EXECUTABLE = "nvidia-cuda-mps-control"
NO_MANNERS: dict[str, object] = {
    "protocols": [2, 3],  # what the executable speaks
    "many_users": True,  # it has a mode in which users share a server
    "losing": "",  # first words of a command before which a server that cannot use its GPUs is lost; "": soon
    "gpus": None,  # UUIDs of the GPUs that exist; None: whichever is asked for
    "crashes": 0,  # so many starts end at once
    "v3_breaks": False,  # a daemon of v3 ends at once
    "hang": "",  # it takes questions and does not answer; so do those whose directory has this in its path
    "hangs_on": [],  # first words of commands that never come back
    "servers_stay": False,  # a server outlives its daemon where that is killed, and keeps others off its GPUs
    "refused_users": [],  # user IDs that are turned away
    "linger": "no",  # clients that ended stay listed: "no", "until terminated", "for ever"
    "wedged": False,  # new clients are not let in
    "failures": 0,  # raised by one: all clients fail together
    "server_status": "",  # what it says of a server that is up; "": as is usual
    "pipe_mode": None,  # what it makes of its pipe directory's mode
}


class FakeMps:
    """A fake control executable in a folder of its own. For tests and for `sharer simulate`."""

    def __init__(self, folder: Path, **manners: object) -> None:
        """`manners`: what differs from `NO_MANNERS`."""
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.executable = folder, folder / EXECUTABLE
        self._manners = dict(NO_MANNERS)
        self._lock = threading.Lock()
        self.behave(**manners)
        root = Path(__file__).parents[3]
        code = (
            f"import sys; sys.path.insert(0, {str(root)!r}); from sharer.simulation.mps.control import main; "
            f"sys.exit(main({str(folder)!r}, sys.argv[1:]))"
        )
        self.executable.write_text(f'#!/bin/sh\nexec {sys.executable} -SE -c {shlex.quote(code)} "$@"\n')
        self.executable.chmod(0o755)

    def behave(self, **manners: object) -> None:
        """Change how it behaves, from its next step on."""
        if unknown := manners.keys() - NO_MANNERS.keys():
            raise ValueError(f"the fake MPS knows no {sorted(unknown)}")
        with self._lock:
            self._manners |= manners
            new = self.folder / f".{FILE_NAME}"
            new.write_text(json.dumps(self._manners))
            os.replace(new, self.folder / FILE_NAME)

    def commands(self) -> list[str]:
        """Every command that a daemon was given, in their order: "set_default_…" or "namespace create …"."""
        return _lines(self.folder / COMMANDS)

    def starts(self) -> list[str]:
        """For each start of a daemon its options and its CUDA_VISIBLE_DEVICES."""
        return _lines(self.folder / STARTS)


class FakeClient:
    """A process that connects to a pipe directory as CUDA would, and stays connected until it is ended."""

    def __init__(
        self, directory: Path, gpus: Sequence[str], *, user_id: int | None = None, within: Sequence[str] = ()
    ) -> None:
        """`user_id`: whose process it is; only root can say so. `within`: the command that it is an argument of."""
        root = Path(__file__).parents[3]
        code = (
            f"import sys; sys.path.insert(0, {str(root)!r}); from sharer.simulation.mps.control import be_client; "
            f"sys.exit(be_client({str(directory)!r}, {','.join(gpus)!r}, {user_id}))"
        )
        self._process = subprocess.Popen(
            [*within, sys.executable, "-SE", "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self._process.pid

    def answer(self) -> str:
        """What it was told when it asked to be let in: "OK", or CUDA's error. Waits for it; "": it was told nothing."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def end(self) -> None:
        """End the process, and wait for its end."""
        self._process.kill()
        self._process.communicate()


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except FileNotFoundError:
        return []
