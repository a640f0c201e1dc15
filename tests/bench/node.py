"""A node on which agent and bare plugin are measured: a fake kubelet in this process, both plugins in their own."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import grpc

from sharer.kubeletapi import deviceplugin_pb2 as pb
from sharer.kubeletapi import deviceplugin_pb2_grpc as rpc
from sharer.simulation.hardware import SimulatedGpu, write_sys_root
from sharer.simulation.kubelet import FakeKubelet, KubeletSettings
from tests.fakes.nvml import InstalledGpus

RESOURCE = "nvidia.com/gpu.shared"
BARE_RESOURCE = "example.com/bare"
NODE_NAME = "node-1"  # in Kubernetes: which pods and which Node are the agent's
_OPTIONS = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
)


@dataclass(slots=True)
class Plugin:
    """A registered plugin in its own process."""

    process: subprocess.Popen[bytes]
    started_to_registered_s: float
    stub: rpc.DevicePluginStub
    ids: list[str]

    def allocate(self, device_id: str) -> float:
        """Seconds that one Allocate takes."""
        request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=[device_id])])
        start_s = time.perf_counter()
        self.stub.Allocate(request)
        return time.perf_counter() - start_s

    def prefer(self, available: Sequence[str], size: int) -> float:
        """Seconds that one GetPreferredAllocation takes."""
        one = pb.ContainerPreferredAllocationRequest(available_deviceIDs=available, allocation_size=size)
        request = pb.PreferredAllocationRequest(container_requests=[one])
        start_s = time.perf_counter()
        answer = self.stub.GetPreferredAllocation(request)
        took_s = time.perf_counter() - start_s
        assert len(answer.container_responses[0].deviceIDs) == size
        return took_s

    def resident_mib(self) -> float:
        """Resident memory, in MiB."""
        return resident_mib(self.process.pid)

    def cpu_s(self) -> float:
        """Processor time so far of the threads that live, in seconds. Exact: `stat` counts whole ticks of 10 ms."""
        threads = Path(f"/proc/{self.process.pid}/task").glob("*/schedstat")
        return sum(int(one.read_text().split()[0]) for one in threads) / 1e9


def resident_mib(pid: int) -> float:
    """Resident memory of a process, in MiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


@functools.cache
def environment() -> dict[str, str]:
    """What both plugins run in: with their bytecode kept, as in an image or after `pip install`.

    Without it each start compiles its own sources, which is what would be measured then (DESIGN §10). The first start
    of a process still does; no figure counts it.
    """
    folder = tempfile.mkdtemp(prefix="s-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**inherited, "PYTHONPYCACHEPREFIX": folder}


@contextlib.contextmanager
def open_node(gpus: Sequence[SimulatedGpu], policy: str) -> Iterator[BenchNode]:
    """A node with these GPUs; at the end nothing is left of it."""
    root = Path(tempfile.mkdtemp(prefix="s-"))
    with contextlib.ExitStack() as closing:
        closing.callback(shutil.rmtree, root, ignore_errors=True)
        kubelet = closing.enter_context(FakeKubelet(root, KubeletSettings(podresources_lead_s=0)).start())
        library = closing.enter_context(contextlib.closing(InstalledGpus(root / "driver", gpus)))
        write_sys_root(root / "sys", gpus)
        (root / "policy.yaml").write_text(policy)
        node = BenchNode(root, kubelet, library)
        closing.callback(node.stop)
        yield node


class BenchNode:
    """Where plugins are started."""

    def __init__(self, root: Path, kubelet: FakeKubelet, library: InstalledGpus) -> None:
        self.root, self.log = root, root / "log"
        self.kubelet = kubelet
        self._library = library
        self._processes: list[subprocess.Popen[bytes]] = []

    def start_agent(self, kubernetes: str = "off") -> Plugin:
        """The real agent, on the C library, from process start to registered. Its log is in `log`."""
        root = self.root
        flags = {
            "--policy": root / "policy.yaml", "--device-plugin-dir": self.kubelet.device_plugin_dir,
            "--pod-resources-socket": self.kubelet.podresources_socket, "--cgroup-root": root / "cgroup",
            "--run-dir": root / "run", "--state-dir": root / "state", "--host-root": root, "--dev-root": root / "dev",
            "--proc-root": root / "proc", "--sys-root": root / "sys", "--driver-library": self._library.path,
            "--injection": "envvar", "--kubernetes": kubernetes, "--node-name": NODE_NAME,
        }  # fmt: skip
        usage = [sys.executable, "-m", "sharer", "agent", "--help"]
        known = subprocess.run(usage, check=True, capture_output=True, text=True).stdout
        arguments = [str(part) for flag, value in flags.items() if flag in known for part in (flag, value)]
        return self._start(RESOURCE, ["-m", "sharer", "agent", *arguments])

    def start_bare(self, ids: Sequence[str], imports: Sequence[str] = ()) -> Plugin:
        """The bare plugin with this list; with imports, it weighs what the agent would without product code."""
        (self.root / "ids").write_text("\n".join(ids))
        folder, ids_file = str(self.kubelet.device_plugin_dir), str(self.root / "ids")
        more = [str(self._library.path), *imports] if imports else []
        return self._start(BARE_RESOURCE, ["-m", "tests.bench.bare_process", folder, BARE_RESOURCE, ids_file, *more])

    def _start(self, resource: str, command: Sequence[str]) -> Plugin:
        before, streams = len(self.kubelet.register_calls(resource)), len(self.kubelet.streams(resource))
        start_s = time.perf_counter()
        with self.log.open("ab") as log:
            process = subprocess.Popen([sys.executable, *command], stderr=log, env=environment())
        self._processes.append(process)
        call = self.kubelet.wait_registered(resource, before + 1, timeout_s=60)
        took_s = time.perf_counter() - start_s
        message = self.kubelet.wait_stream(  # a stream of its own, not one of the plugin that was there before
            resource, lambda one: bool(one.messages) and len(self.kubelet.streams(resource)) > streams, 60, "its list"
        ).messages[-1]
        channel = grpc.insecure_channel(f"unix:{self.kubelet.device_plugin_dir / call.endpoint}", options=_OPTIONS)
        return Plugin(process, took_s, rpc.DevicePluginStub(channel), list(message.ids))

    def stop(self) -> None:
        """End every process that was started."""
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.wait(10)
        self._processes.clear()
