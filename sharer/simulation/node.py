"""A node without hardware that the real agent runs on: simulated GPUs, a kubelet, and what the host has in files.

Everything is below one temporary folder, which is also what the agent takes for the host's root; nothing outside it is
read or written. The agent runs in a thread of this process with its own code from `daemon.run` down; gRPC, sockets,
checkpoint and pynvml are the real ones.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import resources
from pathlib import Path

from sharer import daemon
from sharer.adapters.documents import read_node_report
from sharer.adapters.local_socket import ask
from sharer.core.errors import NodeError, SharerError
from sharer.core.report.node import NodeReport
from sharer.core.slices.plan import Plan
from sharer.settings import Settings
from sharer.simulation.cgroups import SANDBOX, PodCgroups, write_host_pids
from sharer.simulation.describe import simulated_driver
from sharer.simulation.hardware import SimulatedGpu, write_sys_root
from sharer.simulation.kubelet import FakeKubelet, KubeletSettings
from sharer.simulation.supervision import SimulatedSupervisor

STOP_DEADLINE_S = 15.0
PATIENCE_S = 20.0
_CYCLE_S = 1.25  # of the agent: a demo is shorter where it looks more often than on a real node
_ASK_S = 0.05  # between two questions for the agent's report: nobody tells when it has changed
_SHARED_DEVICE_NODES = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")
_LONGEST_TEMPORARY = 30  # characters of $TMPDIR that leave room for a socket's name: 107 bytes in all

Listener = Callable[[logging.LogRecord], None]
"""Given what the agent logs from INFO on, on any thread. Must not raise."""


class SimulatedNode:
    """A node with a running kubelet and agent; `open_node` makes one."""

    def __init__(self, root: Path, gpus: Sequence[SimulatedGpu], policy: bytes, *, mps: bool = False) -> None:
        """`mps`: its MPS control daemons are supervised, so that MPS slices can be used."""
        self.root = root
        self._run_dir, self._cgroup_root, self._mps_dir = root / "run", root / "sys/fs/cgroup", root / "state/mps"
        self.gpus = simulated_driver(gpus)
        numa_nodes = sorted({gpu.numa_node for gpu in gpus if gpu.numa_node is not None}) or [0]
        self.kubelet = FakeKubelet(root, KubeletSettings(numa_nodes=tuple(numa_nodes), podresources_lead_s=0.0))
        self._cgroups = PodCgroups(self.kubelet, self._cgroup_root, root / "proc")
        self._write_files(gpus, policy)
        self._stop = threading.Event()
        self._agent = threading.Thread(target=self._run_agent, name="simulated-agent")
        self._supervisor = SimulatedSupervisor(root, self._run_dir, self._mps_dir, self.gpus) if mps else None
        self._failure: SharerError | None = None

    def start(self) -> None:
        """Start the kubelet, then the agent. The kubelet counts as one that has run for long: its list is believed."""
        self.kubelet.start()
        os.utime(self.kubelet.podresources_socket, (0, 0))
        self._cgroups.start()
        self._agent.start()
        if self._supervisor is not None:
            self._supervisor.start()

    def close(self) -> None:
        """Stop the agent, then the kubelet. Raises NodeError if the agent does not stop, or why it had failed."""
        self._stop.set()
        if self._supervisor is not None:
            self._supervisor.close()
        if self._agent.ident is not None:
            self._agent.join(STOP_DEADLINE_S)
        self._cgroups.close()
        self.kubelet.close()
        if self._agent.is_alive():
            raise NodeError(f"the agent did not stop within {STOP_DEADLINE_S:g} s")
        if self._failure is not None:
            raise self._failure

    def write_policy(self, policy: bytes) -> None:
        """Put another policy in the file that the agent follows, in one step."""
        new = self.root / "policy.new"
        new.write_bytes(policy)
        new.replace(self.root / "policy.yaml")

    def end_pod(self, name: str, namespace: str) -> None:
        """A pod is deleted, and has left nothing behind when the kubelet forgets it."""
        self._cgroups.end_pod(self.kubelet.pod(name, namespace).uid)
        self.kubelet.delete_pod(name, namespace=namespace)

    def cgroup(self, uid: str, container: str | None = None) -> Path:
        """The cgroup of a pod, or of one of its containers."""
        leaf = self._cgroup_root / self._cgroups.path(uid, container or SANDBOX).lstrip("/")
        return leaf.parent if container is None else leaf

    def listed(self, resource: str) -> tuple[str, ...]:
        """The IDs of the last list that the kubelet was sent of a resource; none before the first."""
        streams = self.kubelet.streams(resource)
        return streams[-1].messages[-1].ids if streams and streams[-1].messages else ()

    def report(self) -> NodeReport:
        """What the agent answers on its local socket. Raises NodeError."""
        return read_node_report(ask(self._run_dir), "the agent's report")

    def wait_report(self, holds: Callable[[NodeReport], bool], what: str, timeout_s: float = PATIENCE_S) -> NodeReport:
        """Ask the agent until its report is as it should be. Raises NodeError if that does not come, or it ends."""
        until_s = time.monotonic() + timeout_s
        while not holds(report := self.report()):
            if time.monotonic() > until_s:
                raise NodeError(f"the agent's report did not show within {timeout_s:g} s: {what}")
            self._stop.wait(_ASK_S)
        return report

    def wait_until(self, holds: Callable[[], bool], what: str, timeout_s: float = PATIENCE_S) -> None:
        """Wait for something that the kubelet can see. Raises NodeError if it does not come, or the agent ends."""
        try:
            self.kubelet.wait_for(lambda: self._failure is not None or holds(), timeout_s, what)
        except TimeoutError as error:
            raise NodeError(str(error)) from error
        if self._failure is not None:
            raise self._failure

    def wait_advertised(self, plan: Plan) -> None:
        """Wait until the kubelet counts every slice of a plan as allocatable. Raises NodeError."""
        for resource in plan.resources:
            wanted = (len(resource.slices), len(resource.slices))
            self.wait_until(lambda: self.kubelet.capacity(resource.name) == wanted, f"{resource.name} at {wanted}")  # noqa: B023

    def _run_agent(self) -> None:
        settings = Settings(
            node_name=self.kubelet.settings.node_name,
            policy=self.root / "policy.yaml",
            device_plugin_dir=self.kubelet.device_plugin_dir,
            pod_resources_socket=self.kubelet.podresources_socket,
            run_dir=self._run_dir,
            state_dir=self.root / "state",
            mps_dir=self._mps_dir,
            host_root=self.root,
            dev_root=self.root / "dev",
            proc_root=self.root / "proc",
            sys_root=self.root / "sys",
            cgroup_root=self._cgroup_root,
        )
        try:
            daemon.run(settings, self._stop, library=self.gpus.library, cycle_s=_CYCLE_S)
        except SharerError as error:
            self._failure = error

    def _write_files(self, gpus: Sequence[SimulatedGpu], policy: bytes) -> None:
        """The policy, and what the host's /dev, /proc and /sys show of the GPUs."""
        self.write_policy(policy)
        write_sys_root(self.root / "sys", gpus)
        write_host_pids(self.root / "proc")
        dev, capabilities = self.root / "dev", self.root / "proc/driver/nvidia/capabilities"
        numbers = [gpu.minor_number for gpu in gpus if gpu.minor_number is not None]
        for name in (*_SHARED_DEVICE_NODES, *(f"nvidia{number}" for number in numbers)):
            _write_device_node(dev / name)
        minor = 0
        for gpu in gpus:
            for mig in gpu.mig_devices:
                instance = capabilities / f"gpu{gpu.minor_number}/mig/gi{mig.gpu_instance_id}"
                for access in (instance / "access", instance / f"ci{mig.compute_instance_id}/access"):
                    minor += 1
                    access.parent.mkdir(parents=True, exist_ok=True)
                    access.write_text(f"DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: 1\n")
                    _write_device_node(dev / f"nvidia-caps/nvidia-cap{minor}")


@contextlib.contextmanager
def open_node(
    gpus: Sequence[SimulatedGpu], policy: bytes, hear: Listener, *, mps: bool = False
) -> Iterator[SimulatedNode]:
    """A node with these GPUs, on which the agent follows this policy. At the end nothing is left of it.

    `mps`: MPS slices are to be used. Raises NodeError if the agent cannot run or does not stop.
    """
    with _temporary_folder() as root, _listening(hear):
        node = SimulatedNode(root, gpus, policy, mps=mps)
        with contextlib.closing(node):
            node.start()
            yield node


def default_policy() -> bytes:
    """The text of the policy that comes with the simulation."""
    return resources.files("sharer.simulation").joinpath("policy.yaml").read_bytes()


@contextlib.contextmanager
def _temporary_folder() -> Iterator[Path]:
    """A folder that is gone afterwards, with a path short enough for sockets in it."""
    usual = tempfile.gettempdir()
    root = Path(tempfile.mkdtemp(prefix="s-", dir=usual if len(usual) <= _LONGEST_TEMPORARY else "/tmp"))
    try:
        yield root
    finally:
        shutil.rmtree(root)


@contextlib.contextmanager
def _listening(hear: Listener) -> Iterator[None]:
    ear, logger = _Ear(hear), logging.getLogger("sharer")
    level = logger.level
    logger.addHandler(ear)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(level)
        logger.removeHandler(ear)


class _Ear(logging.Handler):
    def __init__(self, hear: Listener) -> None:
        super().__init__()
        self._hear = hear

    def emit(self, record: logging.LogRecord) -> None:
        self._hear(record)


def _write_device_node(path: Path) -> None:
    """A character device without the right to make one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to("/dev/null")
