"""A node with the fake MPS as real processes, and one daemon's keeper on it, whose clock the tests turn."""

from __future__ import annotations

import contextlib
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from sharer.adapters.mps.control import Executable
from sharer.adapters.mps.daemon import ControlDaemon
from sharer.adapters.mps.process import from_pid_file
from sharer.adapters.mps.states import MpsStateFiles
from sharer.core.mps.state import MpsState, MpsWanted, folder_name
from sharer.flows.supervise.keep_daemon import Keeper
from sharer.simulation.mps.steering import FakeClient, FakeMps

RESOURCE = "nvidia.com/gpu.mps"
A, B = "GPU-a", "GPU-b"
PATIENCE_S = 30.0
PAUSE_S = 0.02
SLOW_S = 0.05  # turned of the clock where a process is slow only because the machine is busy
ANSWER_S = 10.0


def slices(gpu: str, *ends: str) -> tuple[str, ...]:
    """The device IDs of a GPU's slices by their endings: "0-20480-25"."""
    return tuple(f"{gpu}::mps-{end}" for end in ends)


def want(user_id: int | None = None, **gpus: tuple[str, ...]) -> MpsWanted:
    """Of GPUs a, b, …, each with the endings of its slices' IDs."""
    found = {f"GPU-{gpu}": slices(f"GPU-{gpu}", *ends) for gpu, ends in gpus.items()}
    return MpsWanted(resource=RESOURCE, slices=found, limits_memory=True, user_id=user_id)


TWO_GPUS = want(a=("0-20480-25", "1-20480-25"), b=("0-20480-25",))


class MpsNode:
    """Steps are made by hand, and the time between them is what a test says."""

    def __init__(self, root: Path, *, answer_s: float = ANSWER_S, **manners: object) -> None:
        """`answer_s`: how long a daemon may take for an answer, in real time."""
        self.root, self.mps_dir, self.answer_s = root, root / "mps", answer_s
        self.fake = FakeMps(root / "fake", **manners)
        self.states = MpsStateFiles(self.mps_dir, now_s=lambda: self.now_s, wall_s=lambda: self.now_s)
        self.folder = self.mps_dir / folder_name(RESOURCE)
        self.pipe = self.folder / "pipe"
        self.now_s = 0.0
        self.wanted: MpsWanted | None = TWO_GPUS
        self.clients: list[FakeClient] = []
        self.restart()

    def restart(self) -> None:
        """A new supervisor, that knows nothing of the one before."""
        executable = Executable(self.fake.executable)
        self.daemon = ControlDaemon(self.mps_dir, RESOURCE, executable, answer_s=self.answer_s)
        self.keeper = Keeper(RESOURCE, self.daemon, self.states)

    def step(self, after_s: float = 0.3) -> MpsState | None:
        """The state after one more step; None: nothing is said of the daemon any more."""
        self.now_s += after_s
        self.keeper.step(self.wanted, now_s=self.now_s, wall_s=self.now_s)
        return self.states.read().get(RESOURCE)

    def until(self, holds: Callable[[MpsState], bool], after_s: float = 0.3, *, hangs: bool = False) -> MpsState:
        """Step until a state is so. Fails if it does not come to that.

        `hangs`: silence means that. Else it means that a process is about to be there, and the clock is hardly turned.
        """
        state, end_s = None, time.monotonic() + PATIENCE_S
        while time.monotonic() < end_s:
            silent = state is not None and "does not answer" in (state.problem or "")
            state = self.step(SLOW_S if silent and not hangs else after_s)
            if state is not None and holds(state):
                return state
            threading.Event().wait(PAUSE_S)  # real processes need real time
        raise AssertionError(f"it did not come to that: {state}\n{self.fake.commands()[-5:]}\n{self.log()}")

    def until_serving(self, after_s: float = 1.0) -> MpsState:
        """Step until clients are served on every GPU."""
        return self.until(
            lambda state: state.problem is None and not any(gpu.problem for gpu in state.gpus.values()), after_s
        )

    def client(
        self, gpu: str, directory: Path | None = None, user_id: int | None = None, *, within: Sequence[str] = ()
    ) -> FakeClient:
        """A process that connects; `within`: what runs it."""
        made = FakeClient(directory or self.pipe, [gpu], user_id=user_id, within=within)
        self.clients.append(made)
        return made

    def pid(self) -> int | None:
        """The daemon's, by its own file."""
        return from_pid_file(self.pipe)

    def log(self) -> str:
        """What the daemon logged."""
        path = self.folder / "log/control.log"
        return path.read_text() if path.exists() else ""

    def close(self) -> None:
        """End everything."""
        self.fake.behave(hang="", hangs_on=[])
        for client in self.clients:
            client.end()
        self.daemon.stop(at_once=True)


@contextlib.contextmanager
def mps_node(*, answer_s: float = ANSWER_S, **manners: object) -> Iterator[MpsNode]:
    """A node whose paths are short enough for sockets, and open to other users."""
    with tempfile.TemporaryDirectory(prefix="s-", dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        with contextlib.closing(MpsNode(Path(folder), answer_s=answer_s, **manners)) as node:
            yield node
