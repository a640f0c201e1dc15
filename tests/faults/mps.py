"""The MPS control daemon of a node's third GPU and its supervisor, as real processes: how they are harmed."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path

from sharer.adapters.mps.process import from_pid_file, is_alive
from sharer.core.mps.state import folder_name
from sharer.simulation.kubelet import PodStatus
from sharer.simulation.mps.steering import FakeClient, FakeMps
from tests.e2e.node import Node
from tests.e2e.process import Agent
from tests.faults import mps_steps as steps
from tests.faults.mps_steps import MpsStep
from tests.faults.places import END_S, wait_for
from tests.faults.policies import MPS, C

FORGIVEN_S = 8.0  # without a supervisor: what it said last is believed for 15 s, and the next one needs some to begin
FIRM_S = 1.0  # a daemon that was up for so long is the one that is kept
DEFAULT_MODE = 0


class MpsKind(StrEnum):
    """What a node has of MPS."""

    NONE = "no MPS"
    LEGACY = "MPS v2"
    V3 = "MPS v3"


class MpsSide:
    """`sharer mps`, the daemon that it keeps, and the daemon's clients; and since when they are as they are."""

    def __init__(self, node: Node, *, has_v3: bool, variables: Mapping[str, str]) -> None:
        """`variables`: of the supervisor's process. Nothing runs yet."""
        self._node, self._variables = node, variables
        self._dir = node.root / "state/mps"
        self._fake = FakeMps(node.root / "control", protocols=[2, 3] if has_v3 else [2])
        self.supervisor: Agent | None = None
        self.supervisors: list[Agent] = []
        self._gone_s = time.monotonic()  # when there was a supervisor last
        self._clients: dict[str, FakeClient] = {}  # by UID of their pods
        self._hangs = self._is_away = False
        self.is_read_only = False  # the folder in which everything is told
        self._waits_to_start = False  # a supervisor, until it can write there
        self.up_since_s: float | None = None  # the daemon is there, answers and is told of
        self.down_since_s: float | None = None
        self.unnoticed_s: float | None = None  # since when it has failed, for so long that everybody must notice
        self.kept_pid: int | None = None  # of a daemon that nothing has happened to
        self.is_wanted = True  # by the policy. Else it ends with the last pod that holds a slice of it

    @property
    def pid(self) -> int | None:
        """The daemon's process; None: it does not live."""
        found = from_pid_file(self._dir / folder_name(MPS) / "pipe")
        return found if found is not None and is_alive(found) else None

    @property
    def is_deaf(self) -> bool:
        """Whether all that is known of the daemon is that it says nothing."""
        return self._hangs or self.supervisor is None

    def serves_for_s(self) -> float:
        """Since when the daemon is there, answers and is told of; 0: it is not so."""
        return 0.0 if self.up_since_s is None else time.monotonic() - self.up_since_s

    def do(self, step: MpsStep, pod: Callable[[str], PodStatus]) -> None:
        """Let something happen. What cannot happen as things are, does not. `pod`: by name."""
        match step:
            case steps.KillDaemon():
                self._kill_daemon(step.crashes)
            case steps.HangDaemon():
                self._hangs, self.kept_pid = True, None  # silence ends it after a while
                self._behave()
            case steps.FreeDaemon():
                self._hangs = False
                self._behave()
            case steps.TakeControl():
                self._take_control(away=step.away)
            case steps.JoinDaemon():
                self._join(pod(step.name))
            case steps.KillSupervisor():
                if self.supervisor is not None:
                    self.supervisor.kill()
                self._forget_supervisor()
            case steps.StopSupervisor():
                self._stop_supervisor()
            case steps.StartSupervisor():
                self.start()
        self.look()

    def start(self) -> None:
        """Start a supervisor, unless one runs. Where it cannot write, it must say so and end."""
        if self.supervisor is not None:
            return
        node = self._node
        flags = [
            f"--mps-dir={self._dir}", f"--run-dir={node.run_dir}", f"--mps-control={self._fake.executable}",
            f"--driver-library={node.gpus.path}",
        ]  # fmt: skip
        started = Agent(flags, command="mps", variables=self._variables)
        self.supervisors.append(started)
        self._waits_to_start = self.is_read_only
        if self._waits_to_start:
            assert started.wait_end() == 1, started.log
            assert "Read-only file system" in started.log, started.log
        else:
            self.supervisor = started

    def look(self, living: frozenset[str] | None = None) -> None:
        """Take notice of what there is. `living`: UIDs of pods that are not over; None: as before.

        Raises AssertionError if a daemon to which nothing has happened is not there any more: its clients are dead.
        """
        for uid in () if living is None else self._clients.keys() - living:
            self._clients.pop(uid).end()
        now_s = time.monotonic()
        if self.supervisor is not None:
            self._gone_s = now_s
        pid = self.pid
        kept = f"the MPS daemon was process {self.kept_pid}, nothing happened to it, and now it is {pid}"
        assert self.kept_pid in (None, pid), kept
        is_told = now_s - self._gone_s < FORGIVEN_S and not self.is_read_only
        if pid is None or not is_told or self._hangs or self._is_away:
            self.down_since_s, self.up_since_s = self.down_since_s or now_s, None
            return
        self.down_since_s, self.up_since_s = None, self.up_since_s or now_s
        if self.kept_pid is None and self.is_wanted and self.serves_for_s() > FIRM_S:
            self.kept_pid = pid

    def disturb(self, *, may_end: bool = False) -> None:
        """Its state may be doubted for a while. `may_end`: and it is not wanted any more, or not as it was."""
        self.up_since_s = None
        if may_end:
            self.kept_pid = None

    def wait_begun(self) -> None:
        """Until a supervisor that was started has its lock. Before that it is not yet one that works."""
        if self.supervisor is not None:
            wait_locked(self._dir / "supervisor.lock", self.supervisor)

    def refuse_writes(self, *, refused: bool) -> None:
        """Its folder is read-only from now on, or can be written again."""
        self.is_read_only = refused
        self.disturb()
        if not refused and self._waits_to_start:
            self.start()

    def repair(self) -> None:
        """What is away or hangs comes back."""
        self._hangs = False
        self._behave(crashes=0)
        self._take_control(away=False)
        self.start()

    def end(self) -> None:
        """SIGTERM, and nothing of MPS is left: no daemon, and no GPU in another mode."""
        self._stop_supervisor()
        assert self.pid is None, "the daemon outlives a supervisor that was told to end"
        mode = self._node.gpus.compute_mode(C.uuid)
        assert mode == DEFAULT_MODE, f"a supervisor that was told to end has left {C.uuid} in compute mode {mode}"

    def close(self) -> None:
        """End every process, whatever has happened."""
        self._hangs = False
        self._behave()
        for supervisor in self.supervisors:
            if supervisor.running:
                supervisor.kill()
        for client in self._clients.values():
            client.end()
        if (pid := self.pid) is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)  # its session's: its servers too

    def _behave(self, **more: object) -> None:
        self._fake.behave(hang="pipe" if self._hangs else "", **more)

    def _kill_daemon(self, crashes: int) -> None:
        pid = self.pid
        if pid is None:
            return
        self._behave(crashes=len(self._fake.starts()) + crashes)
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not is_alive(pid), "the daemon does not end")
        if crashes and self.supervisor is not None and self.up_since_s is not None:
            self.unnoticed_s = time.monotonic()  # one crash more and it is down for longer than anybody needs to look
        self.kept_pid = self.up_since_s = None

    def _take_control(self, *, away: bool) -> None:
        executable: Path = self._fake.executable
        if away != self._is_away:
            aside = executable.with_name("aside")
            (executable if away else aside).rename(aside if away else executable)
            self._is_away = away

    def _join(self, pod: PodStatus) -> None:
        """CUDA's first call in the pod's main container, by the directory that this was given."""
        given = pod.container().given
        mounts = (
            [] if given is None or pod.phase.terminal else [one for one in given.mounts if "mps" in one.container_path]
        )
        if pod.uid in self._clients or self.serves_for_s() <= FIRM_S:
            return
        for mount in mounts:
            directory = Path(mount.host_path)
            if (directory / "control").exists():  # not if what was given was another interface's
                client = self._clients[pod.uid] = FakeClient(directory, [C.uuid])
                assert (answer := client.answer()) == "OK", f"{pod.name} is not let in by the daemon: {answer}"

    def _stop_supervisor(self) -> None:
        supervisor = self.supervisor
        if supervisor is not None:
            self.wait_begun()
            os.kill(supervisor.pid, signal.SIGTERM)
            assert supervisor.wait_end(END_S) == 0, supervisor.log
            self.kept_pid = None
        self._forget_supervisor()

    def _forget_supervisor(self) -> None:
        self.supervisor, self.unnoticed_s, self._waits_to_start = None, None, False


def wait_locked(lock: Path, process: Agent) -> None:
    """Until a process has its lock, or has ended. Before that it does not even handle a signal by itself."""

    def has_it() -> bool:
        return lock.exists() and lock.read_text().endswith(f" {process.pid}\n")

    wait_for(lambda: not process.running or has_it(), f"process {process.pid} does not begin")
