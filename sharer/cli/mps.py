"""`sharer mps`: settings, logging and signals around the supervisor of MPS control daemons.

It needs the host's PIDs (the daemon tells a client's cgroup by the PID of its socket's other end, and in a PID
namespace of its own that is 0 for all), the host's /dev/shm and IPC namespace where the legacy interface is used, and
root. Its end is the end of MPS on the node; the agent's is not (gpu-limits §3).
"""

from __future__ import annotations

import contextlib
import logging
import threading
from functools import partial
from pathlib import Path

import click

from sharer.adapters.local_socket import ask
from sharer.adapters.lock import AgentLock
from sharer.adapters.mps import MpsStateFiles
from sharer.adapters.mps.control import Executable
from sharer.adapters.mps.daemon import ControlDaemon
from sharer.adapters.mps.modes import ModeFile
from sharer.adapters.mps.process import is_alive
from sharer.adapters.mps.wanted import WantedFromAgent
from sharer.adapters.nvml import InstalledLibrary, NvmlDriver
from sharer.adapters.processes import ProcFs
from sharer.cli.logs import set_up_logging
from sharer.cli.options import PATH, driver_library_option
from sharer.cli.signals import stop_on_signals
from sharer.core.errors import NodeError
from sharer.flows.supervise.compute_modes import ModeKeeper
from sharer.flows.supervise.supervisor import Supervisor

ANSWER_S = 5.0  # for the agent's report; it comes from memory
BLIND = (
    "sharer mps does not see the host's processes: run it in the host's PID namespace, or clients that died are not"
    " noticed, and the driver cannot tell containers apart"
)

log = logging.getLogger(__name__)


@click.command(
    epilog="""\b
Every option is also a variable: --mps-dir is SHARER_MPS_MPS_DIR.
Example: sharer mps --mps-dir /var/lib/sharer/mps""",
    context_settings={"auto_envvar_prefix": "SHARER_MPS"},
)
@click.option(
    "--mps-dir", type=PATH, default=Path("/var/lib/sharer/mps"), show_default=True,
    metavar="DIR", help="The daemons' directories; the agent's --mps-dir. On the host at the same path.",
)  # fmt: skip
@click.option(
    "--run-dir", type=PATH, default=Path("/run/sharer"), show_default=True, metavar="DIR",
    help="The agent's --run-dir, where its socket is.",
)  # fmt: skip
@click.option(
    "--mps-control", type=PATH, metavar="FILE",
    help="The driver's nvidia-cuda-mps-control. Default: looked for in the usual folders.",
)  # fmt: skip
@driver_library_option
@click.option(
    "--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True, help="How to log."
)
def mps(
    mps_dir: Path,
    run_dir: Path,
    mps_control: Path | None,
    driver_library: Path | None,
    host_root: Path,
    log_format: str,
) -> None:
    """Supervise this node's MPS control daemons until told to stop.

    One daemon for each MPS resource that the agent offers or somebody holds; without an agent those it wanted last.
    SIGTERM ends them and puts compute modes back; the agent's end, and SIGKILL, end none.
    """
    set_up_logging(log_format)
    stop = threading.Event()
    stop_on_signals(stop)
    lock = AgentLock(mps_dir / "supervisor.lock", "sharer mps")
    if not lock.acquire(stop):
        return
    roots = tuple(dict.fromkeys((host_root, Path("/"))))
    driver = NvmlDriver(InstalledLibrary(driver_library, roots))
    try:
        supervisor(mps_dir, run_dir, Executable(mps_control, roots), driver, host_root).run(stop)
    finally:
        with contextlib.suppress(NodeError):  # NVML hangs; the process ends all the same
            driver.close()
        lock.release()
    log.info("stopped")


def supervisor(mps_dir: Path, run_dir: Path, executable: Executable, driver: NvmlDriver, host_root: Path) -> Supervisor:
    """The supervisor of this node's daemons."""
    sees_the_host = ProcFs(Path("/proc")).sees_the_host()
    states = MpsStateFiles(mps_dir)

    def on_host(path: Path) -> str:
        return "/" + str(path.relative_to(host_root)) if path.is_relative_to(host_root) else str(path)

    def make_daemon(resource: str) -> ControlDaemon:
        known = is_alive if sees_the_host else lambda _pid: True  # nothing is done to a client for want of knowledge
        return ControlDaemon(mps_dir, resource, executable, on_host=on_host, is_alive=known)

    return Supervisor(
        WantedFromAgent(mps_dir, partial(ask, run_dir, ANSWER_S)),
        states,
        ModeKeeper(driver, ModeFile(mps_dir)),
        make_daemon,
        earlier=tuple(states.read()),
        warnings=() if sees_the_host else (BLIND,),
    )
