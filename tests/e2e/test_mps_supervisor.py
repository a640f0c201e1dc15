"""`sharer mps` as a process, with control daemons that are processes too, and an agent that is only its socket."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sharer.adapters.local_socket import LocalSocket
from sharer.adapters.mps import MpsStateFiles
from sharer.adapters.mps.process import from_pid_file, is_alive
from sharer.core.mps.compute_modes import EXCLUSIVE_PROCESS
from sharer.core.mps.state import MpsState, folder_name, why_not_served
from sharer.simulation.mps.steering import FakeClient, FakeMps
from tests.e2e.gpus import A, B
from tests.e2e.process import Agent
from tests.fakes.nvml import InstalledGpus

GPU, OTHER = "nvidia.com/gpu.mps", "nvidia.com/gpu.other"
PATIENCE_S = 30.0


def want(resource: str, *uuids: str) -> dict[str, object]:
    """As the agent's report has it."""
    slices = {uuid: [f"{uuid}::mps-{number}-10240-25" for number in range(2)] for uuid in uuids}
    return {"resource": resource, "slices": slices, "limitsMemory": True, "userId": None}


class SupervisedNode:
    """A node with two GPUs, and at most one supervisor at a time."""

    def __init__(self, root: Path) -> None:
        self.root, self.mps_dir, self.run_dir = root, root / "mps", root / "run"
        self.fake = FakeMps(root / "fake", protocols=[2])
        self.gpus = InstalledGpus(root / "driver", [A, B])
        self.wanted: list[dict[str, object]] | None = [want(GPU, A.uuid, B.uuid)]
        self.agent: LocalSocket | None = None
        self.supervisors: list[Agent] = []
        self.clients: list[FakeClient] = []
        self.start_agent()

    def start_agent(self) -> None:
        """Have somebody answer for the agent."""
        self.agent = LocalSocket(self.run_dir, lambda: json.dumps({"kind": "NodeReport", "mps": self.wanted}).encode())
        self.agent.open()

    def end_agent(self) -> None:
        """Have nobody answer."""
        assert self.agent is not None
        self.agent.close()

    def start(self) -> Agent:
        """Start a supervisor."""
        flags = [
            f"--mps-dir={self.mps_dir}", f"--run-dir={self.run_dir}", f"--mps-control={self.fake.executable}",
            f"--driver-library={self.gpus.path}",
        ]  # fmt: skip
        self.supervisors.append(Agent(flags, command="mps"))
        return self.supervisors[-1]

    def state(self, resource: str = GPU) -> MpsState | None:
        return MpsStateFiles(self.mps_dir).read().get(resource)

    def serves(self, resource: str = GPU, uuid: str = A.uuid) -> bool:
        """Whether an agent would call the GPU's slices healthy."""
        return why_not_served(self.state(resource), uuid, time.time()) is None

    def pipe(self, resource: str = GPU) -> Path:
        return self.mps_dir / folder_name(resource) / "pipe"

    def pid(self, resource: str = GPU) -> int | None:
        return from_pid_file(self.pipe(resource))

    def modes(self) -> tuple[int, int]:
        return self.gpus.compute_mode(A.uuid), self.gpus.compute_mode(B.uuid)

    def client(self, resource: str = GPU) -> FakeClient:
        """A process on the first GPU that was let in."""
        self.clients.append(FakeClient(self.pipe(resource), [A.uuid]))
        assert self.clients[-1].answer() == "OK"
        return self.clients[-1]

    def wait(self, holds: Callable[[], bool], what: str) -> None:
        """Wait until something is so."""
        end_s = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < end_s, f"{what}: {self.state()}\n" + "\n".join(
                one.log for one in self.supervisors
            )
            threading.Event().wait(0.05)

    def close(self) -> None:
        """End everything. Shows the logs, for a test that fails."""
        for supervisor in self.supervisors:
            if supervisor.running:
                supervisor.terminate()
            print("-- the log of a supervisor", *supervisor.lines, sep="\n")
            assert "Traceback" not in supervisor.log
        for client in self.clients:
            client.end()
        self.end_agent()
        self.gpus.close()


@pytest.fixture
def node() -> Iterator[SupervisedNode]:
    with tempfile.TemporaryDirectory(prefix="s-", dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        with contextlib.closing(SupervisedNode(Path(folder))) as made:
            yield made


def test_compute_modes_are_those_of_mps_only_while_mps_is_there(node: SupervisedNode) -> None:
    """P24: under MPS, after a change of strategy, after SIGTERM."""
    supervisor = node.start()
    node.wait(node.serves, "MPS serves")
    assert node.modes() == (EXCLUSIVE_PROCESS, EXCLUSIVE_PROCESS)
    pid = node.pid()
    assert pid is not None
    assert not blocks(pid, signal.SIGTERM), "nobody could end it: its supervisor blocks signals"
    node.wanted = [want(GPU, B.uuid)]
    node.wait(lambda: node.modes() == (0, EXCLUSIVE_PROCESS), "A is shared by time now")
    supervisor.terminate()
    assert node.modes() == (0, 0)
    assert not is_alive(pid)
    assert "told to end" in (why_not_served(node.state(), B.uuid, time.time()) or "")


def test_a_supervisor_that_is_killed_ends_no_client_and_the_next_one_puts_the_modes_back(node: SupervisedNode) -> None:
    """P24: SIGKILL and restart. The next one waits until the first has ended."""
    first = node.start()
    node.wait(node.serves, "MPS serves")
    client, pid = node.client(), node.pid()
    second = node.start()
    second.wait_log("another sharer mps")
    first.kill()
    second.wait_log("serves 2 GPUs")
    assert len(second.said("WARNING nvidia.com")) == 0, "no slice was unhealthy for a moment"
    assert (node.pid(), len(node.fake.starts())) == (pid, 1)
    assert node.modes() == (EXCLUSIVE_PROCESS, EXCLUSIVE_PROCESS)
    node.wanted = []
    node.wait(lambda: node.modes() == (0, 0), "nothing is under MPS any more")
    assert is_alive(client.pid)
    assert node.pid() == pid, "it is not ended while a client lives"


def test_the_agent_s_end_ends_no_client_and_a_supervisor_can_start_without_it(node: SupervisedNode) -> None:
    first = node.start()
    node.wait(node.serves, "MPS serves")
    client, pid = node.client(), node.pid()
    node.end_agent()
    first.wait_log("its last wishes stay in force")
    first.kill()
    second = node.start()
    second.wait_log("serves 2 GPUs")
    assert is_alive(client.pid)
    assert node.pid() == pid
    node.start_agent()
    second.wait_log("the agent answers")


def test_a_daemon_that_is_killed_comes_back_and_holds_up_no_other(node: SupervisedNode) -> None:
    node.wanted = [want(GPU, A.uuid), want(OTHER, B.uuid)]
    supervisor = node.start()
    node.wait(lambda: node.serves() and node.serves(OTHER, B.uuid), "both serve")
    killed = node.pid(OTHER)
    assert killed is not None
    told = len(supervisor.said(f"WARNING {OTHER}: "))
    os.kill(killed, signal.SIGKILL)
    supervisor.wait_log(f"WARNING {OTHER}: ", told + 1)
    assert node.serves()
    node.wait(lambda: node.serves(OTHER, B.uuid) and node.pid(OTHER) != killed, "there is another one")


def test_an_executable_that_comes_late_is_found(node: SupervisedNode) -> None:
    """P40: the daemon's binary is absent; the reason is told, and it starts when it is there."""
    away = node.fake.executable.rename(node.root / "away")
    node.start()
    node.wait(lambda: "--mps-control" in ((node.state() or _NONE).problem or ""), "the reason is told")
    away.rename(node.fake.executable)
    node.wait(node.serves, "MPS serves")


def blocks(pid: int, number: signal.Signals) -> bool:
    """Whether a process blocks a signal."""
    status = Path(f"/proc/{pid}/status").read_text()
    mask = next(line.split()[1] for line in status.splitlines() if line.startswith("SigBlk"))
    return bool(int(mask, 16) & 1 << number - 1)


_NONE = MpsState(resource="", written_at_s=0.0, problem=None)
