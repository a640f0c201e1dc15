"""MPS on a simulated node: the code of `sharer mps` with a fake `nvidia-cuda-mps-control`, which is a real executable.

It asks the agent what is wanted, as on a real node, and the agent reads what it writes.
"""

from __future__ import annotations

import logging
import threading
from functools import partial
from pathlib import Path

from sharer.adapters.documents import read_node_report
from sharer.adapters.local_socket import ask
from sharer.adapters.mps import MpsStateFiles
from sharer.adapters.mps.control import Executable
from sharer.adapters.mps.daemon import ControlDaemon
from sharer.adapters.mps.modes import ModeFile
from sharer.adapters.mps.wanted import WantedFromAgent
from sharer.core.errors import NodeError
from sharer.flows.supervise.compute_modes import ModeKeeper
from sharer.flows.supervise.supervisor import END_S, Supervisor
from sharer.simulation.gpus import SimulatedGpus
from sharer.simulation.mps.steering import FakeMps

_ANSWER_S = 5.0  # for the agent's report
_SETTLE_S = 0.5  # the fake's server is gone within 0.3 s where it cannot use its GPU
_RETRY_S = 0.05  # between two questions for it, at the start
_OURS = ("sharer.flows.supervise", "sharer.adapters.mps")


class SimulatedSupervisor:
    """`sharer mps` in a thread."""

    def __init__(self, root: Path, run_dir: Path, mps_dir: Path, gpus: SimulatedGpus) -> None:
        """`run_dir` and `mps_dir` are the agent's."""
        fake = FakeMps(root / "mps-control")
        self._supervisor = Supervisor(
            WantedFromAgent(mps_dir, partial(ask, run_dir, _ANSWER_S)),
            MpsStateFiles(mps_dir),
            ModeKeeper(gpus, ModeFile(mps_dir)),
            lambda resource: ControlDaemon(mps_dir, resource, Executable(fake.executable)),
            settle_s=_SETTLE_S,
        )
        self._run_dir, self._stop = run_dir, threading.Event()
        self._thread = threading.Thread(target=self._run, name="simulated-supervisor")

    def start(self) -> None:
        """Begin to follow the agent."""
        self._thread.start()

    def close(self) -> None:
        """End the daemons and their clients. Raises NodeError if that does not come to an end."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(2 * END_S)
            if self._thread.is_alive():
                raise NodeError(f"the MPS supervisor did not stop within {2 * END_S:g} s")

    def _run(self) -> None:
        """Begin as soon as the agent knows what it wants, so that nobody has to wait for the next cycle."""
        while not self._stop.is_set() and not self._is_wanted():
            self._stop.wait(_RETRY_S)
        self._supervisor.run(self._stop)

    def _is_wanted(self) -> bool:
        try:
            return read_node_report(ask(self._run_dir, _ANSWER_S), "the agent's report").mps is not None
        except NodeError:
            return False


def speaker(record: logging.LogRecord) -> str:
    """Who on a simulated node has logged this: "agent", or "mps" for the supervisor."""
    return "mps" if record.name.startswith(_OURS) else "agent"
