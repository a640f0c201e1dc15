"""`sharer agent` as a process of its own: what it logs, what it holds open, how it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

PATIENCE_S = 30.0  # beside a whole test suite everything takes several times as long
ENDS_S = 10.0  # told to end while something hangs: 5 s by contract row 40, and as many for a busy machine


def quickest_s(do: Callable[[], object], tries: int = 5) -> float:
    """How long something takes, in seconds: the least of some tries, since a busy machine is no slowness of ours."""
    took_s = []
    for _ in range(tries):
        began_s = time.monotonic()
        do()
        took_s.append(time.monotonic() - began_s)
    return min(took_s)


class Agent:
    """One run of the agent. Its log is read on a thread as it comes."""

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        variables: Mapping[str, str] | None = None,
        below: Sequence[str] = (),
        command: str = "agent",
    ) -> None:
        """`below`: a command that ends by executing what follows it, such as `env`; so the process stays the same.

        `command`: of sharer's, one that runs until it is told to stop.
        """
        self.told_to_end_s: float | None = None  # when; None: never
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("SHARER_")}
        self._process = subprocess.Popen(
            [*below, sys.executable, "-m", "sharer", command, *arguments],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**inherited, **(variables or {})},
        )
        self._changed = threading.Condition()
        self._lines: list[str] = []
        self._silent = False  # nothing more will be logged
        self._reader = threading.Thread(target=self._read, name="agent-log", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    @property
    def lines(self) -> list[str]:
        """What it has logged so far."""
        with self._changed:
            return list(self._lines)

    @property
    def log(self) -> str:
        """The same as one text."""
        return "\n".join(self.lines)

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def said(self, text: str) -> list[str]:
        """The lines so far with this text."""
        return [line for line in self.lines if text in line]

    def wait_log(self, text: str, count: int = 1, timeout_s: float = PATIENCE_S) -> str:
        """Wait until so many lines have this text. Returns the last of them."""
        with self._changed:
            self._changed.wait_for(lambda: self._silent or len(self.said(text)) >= count, timeout_s)
        found = self.said(text)
        assert len(found) >= count, f"{text!r} was logged {len(found)} times, not {count}. The log:\n{self.log}"
        return found[count - 1]

    def terminate(self) -> float:
        """SIGTERM, and wait for the end. Returns how long that took in seconds; its status must be 0."""
        self.told_to_end_s = began_s = time.monotonic()
        self._process.send_signal(signal.SIGTERM)
        assert self.wait_end() == 0, self.log
        return time.monotonic() - began_s

    def kill(self) -> None:
        """SIGKILL."""
        self.told_to_end_s = time.monotonic()
        self._process.kill()
        self.wait_end()

    def wait_end(self, timeout_s: float = PATIENCE_S) -> int:
        """Wait for the end. Returns the exit status."""
        status = self._process.wait(timeout_s)
        self._reader.join(PATIENCE_S)
        return status

    def threads(self) -> int:
        """How many threads it has now."""
        return len(os.listdir(f"/proc/{self.pid}/task"))

    def cpu_s(self) -> float:
        """Processor time so far of the threads that live, in seconds. Exact: `stat` counts whole ticks of 10 ms."""
        threads = Path(f"/proc/{self.pid}/task").glob("*/schedstat")
        return sum(int(one.read_text().split()[0]) for one in threads) / 1e9

    def open_files(self) -> list[str]:
        """What its file descriptors are now: "/tmp/…", "socket:[…]", "anon_inode:inotify"."""
        found = []
        for descriptor in Path(f"/proc/{self.pid}/fd").iterdir():
            try:
                found.append(os.readlink(descriptor))
            except FileNotFoundError:
                continue  # closed meanwhile
        return sorted(found)

    def _read(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as stream:
            for line in stream:
                with self._changed:
                    self._lines.append(line.rstrip("\n"))
                    self._changed.notify_all()
        with self._changed:
            self._silent = True
            self._changed.notify_all()
