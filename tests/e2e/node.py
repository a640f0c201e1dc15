"""A node on which the real agent runs as a process: a kubelet, GPUs behind a real `libnvidia-ml.so.1`, files.

Everything is below one folder with a short path. The agent is given that folder as the host's root, so it sees nothing
of this machine, and the C library is steered from here while the agent has it open.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path

import grpc
import yaml

from sharer.kubeletapi import deviceplugin_pb2 as api
from sharer.kubeletapi import deviceplugin_pb2_grpc as api_grpc
from sharer.simulation.cgroups import PodCgroups, write_host_pids
from sharer.simulation.hardware import SimulatedGpu, SimulatedMig, write_sys_root
from sharer.simulation.kubelet import FakeKubelet, KubeletSettings, ListMessage, SocketState, Stream
from sharer.simulation.memory_limits import LimitBackend
from tests.e2e.gpus import GPU, policy
from tests.e2e.process import PATIENCE_S, Agent
from tests.fakes.nvml import InstalledGpus

IGNORED_XID = 31  # an application's page fault: by default no news about the GPU
_OUR_SOCKET = re.compile(r"sharer-[^/]+\.sock")
_NODES_OF_ALL = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")


class Node:
    """A node and its agents, of which one at a time should run."""

    def __init__(
        self,
        root: Path,
        gpus: Sequence[SimulatedGpu],
        *,
        settings: KubeletSettings | None = None,
        driver_installed: bool = True,
        limit_backend: LimitBackend = LimitBackend.NONE,
    ) -> None:
        self.root, self.limit_backend = root, limit_backend
        self.run_dir, self.policy_file = root / "run/sharer", root / "policy.yaml"
        self.etc_cdi, self.run_cdi = root / "etc/cdi", root / "run/cdi"
        for folder in ("dev", "etc/cdi", "run/cdi", "var", "device-plugins"):
            (root / folder).mkdir(parents=True)
        (root / "var/run").symlink_to("/run")
        (root / "sys/fs/cgroup/kubepods").mkdir(parents=True)  # cgroup v2, as a kubelet has it before its first pod
        (root / "sys/fs/cgroup/cgroup.controllers").touch()
        self.gpus = InstalledGpus(root / "driver", gpus, installed=driver_installed, limit_backend=limit_backend)
        self.write_device_files(gpus)
        self.write_policy(policy())
        self.kubelet = FakeKubelet(
            root,
            settings or KubeletSettings(podresources_lead_s=0, sources_ready_after_s=0, numa_nodes=(0, 1)),
        )
        self.cgroups = PodCgroups(self.kubelet, root / "sys/fs/cgroup", root / "proc")
        self.directory = self.kubelet.device_plugin_dir
        self.agents: list[Agent] = []
        self.cut_off = 0  # Register calls that an agent was killed in, and the kubelet may still be busy with
        self.rivals = 0  # streams of another plugin under our resource's name, which we cannot end

    # -- files of the host

    def write_device_files(self, gpus: Sequence[SimulatedGpu]) -> None:
        """Add what /dev, /proc and /sys show of these GPUs. The device nodes are links to a real one."""
        write_sys_root(self.root / "sys", gpus)
        write_host_pids(self.root / "proc")
        for name in _NODES_OF_ALL:
            self._make_device_node(name)
        for gpu in gpus:
            self._make_device_node(f"nvidia{gpu.minor_number}")
            for mig in gpu.mig_devices:
                for file, minor in _accesses(gpu, mig).items():
                    access = self.root / "proc" / file
                    access.parent.mkdir(parents=True, exist_ok=True)
                    access.write_text(f"DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: 1\n")
                    self._make_device_node(f"nvidia-caps/nvidia-cap{minor}")

    def write_policy(self, text: str) -> None:
        """Put another policy in place, in one step."""
        new = self.policy_file.with_suffix(".new")
        new.write_text(text)
        new.replace(self.policy_file)

    def write_driver_spec(self, gpus: Sequence[SimulatedGpu]) -> None:
        """The CDI spec that NVIDIA's toolkit would write for these GPUs and their MIG devices."""
        nodes: dict[str, list[str]] = {}
        for gpu in gpus:
            nodes[gpu.uuid] = [f"nvidia{gpu.minor_number}"]
            for mig in gpu.mig_devices:
                caps = [f"nvidia-caps/nvidia-cap{minor}" for minor in _accesses(gpu, mig).values()]
                nodes[mig.uuid] = [*nodes[gpu.uuid], *caps]
        devices = "".join(
            f"- name: {uuid}\n  containerEdits:\n    deviceNodes:\n"
            + "".join(f"    - path: /dev/{name}\n" for name in names)
            for uuid, names in nodes.items()
        )
        new = self.etc_cdi / "nvidia.new"  # which no runtime reads
        new.write_text(
            f"cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n{devices}"
            "containerEdits:\n  env:\n  - NVIDIA_VISIBLE_DEVICES=void\n"
            "  deviceNodes:\n  - path: /dev/nvidiactl\n  - path: /dev/nvidia-uvm\n"
        )
        new.replace(new.with_suffix(".yaml"))

    def cdi_files(self) -> list[Path]:
        """What a container runtime would read."""
        found = (*self.etc_cdi.iterdir(), *self.run_cdi.iterdir())
        return [path for path in found if path.suffix in (".json", ".yaml")]

    def cdi_names(self) -> set[str]:
        """What a container runtime would resolve here: the names in every spec of both directories."""
        specs = [yaml.safe_load(path.read_text()) for path in self.cdi_files()]
        return {f"{spec['kind']}={device['name']}" for spec in specs for device in spec["devices"]}

    def cgroup_of(self, uid: str, container: str | None = None) -> Path:
        """The cgroup of a pod, or of one of its containers, as a path from here."""
        path = self.root / "sys/fs/cgroup"
        return path / (f"kubepods/burstable/pod{uid}" if container is None else self.cgroups.path(uid, container)[1:])

    def on_host(self, path: str) -> Path:
        """Where a path of the host is from here."""
        return self.root / path.lstrip("/")

    def our_sockets(self) -> list[str]:
        """The agent's socket files."""
        return sorted(name for name in os.listdir(self.directory) if _OUR_SOCKET.fullmatch(name))

    # -- the agent

    def start_agent(
        self,
        *flags: str,
        injection: str = "device-nodes",
        variables: Mapping[str, str] | None = None,
        below: Sequence[str] = (),
    ) -> Agent:
        """Start the agent; see `Agent`. A flag given here replaces the usual one."""
        root = self.root
        usual = {
            "node-name": self.kubelet.settings.node_name,
            "policy": self.policy_file,
            "device-plugin-dir": self.directory,
            "pod-resources-socket": self.kubelet.podresources_socket,
            "run-dir": self.run_dir,
            "state-dir": root / "state",
            "host-root": root,
            "dev-root": root / "dev",
            "proc-root": root / "proc",
            "sys-root": root / "sys",
            "cgroup-root": root / "sys/fs/cgroup",
            "driver-library": self.gpus.path,
            "injection": injection,
        }
        arguments = [*(f"--{name}={value}" for name, value in usual.items()), *flags]
        agent = Agent(arguments, variables=variables, below=below)
        self.agents.append(agent)
        return agent

    def wake(self, gpu: SimulatedGpu) -> None:
        """Wake the agent before its next look is due, by an XID that means nothing. Only to save a test's time."""
        self.gpus.wait_for_calls("nvmlEventSetWait_v2", 1)  # it listens
        self.gpus.xid(gpu.uuid, IGNORED_XID)

    # -- what the kubelet sees

    def lists(self, resource: str = GPU) -> list[ListMessage]:
        """Every list received on the latest stream of a resource."""
        streams = self.kubelet.streams(resource)
        return list(streams[-1].messages) if streams else []

    def ids(self, resource: str = GPU) -> tuple[str, ...]:
        """The IDs of the latest list, in its order."""
        return self.lists(resource)[-1].ids

    def unhealthy(self, resource: str = GPU) -> set[str]:
        """The IDs of the latest list that are not Healthy."""
        last = self.lists(resource)[-1]
        return set(last.ids) - last.healthy_ids

    def wait(self, holds: Callable[[], bool], what: str, timeout_s: float = PATIENCE_S) -> None:
        """Wait for something that the kubelet can see. Fails as soon as no agent runs any more that could bring it."""
        end_s = time.monotonic() + timeout_s
        while not self.comes_true(holds, min(1.0, max(0.0, end_s - time.monotonic()))):
            assert any(agent.running for agent in self.agents), f"{what}: the agent has ended"
            assert time.monotonic() < end_s, f"{what}: not within {timeout_s:g} s; {self.kubelet.register_calls()[-3:]}"

    def comes_true(self, holds: Callable[[], bool], within_s: float) -> bool:
        """The same as a question: False if it has not come in time."""
        try:
            self.kubelet.wait_for(holds, within_s)
        except TimeoutError:
            return False
        return True

    def wait_unhealthy(self, ids: Collection[str], resource: str = GPU) -> ListMessage:
        """Wait until just these IDs of the latest list are not Healthy. Returns that list."""
        wanted = set(ids)
        self.wait(lambda: bool(self.lists(resource)) and self.unhealthy(resource) == wanted, f"{resource}: unhealthy")
        return self.lists(resource)[-1]

    def wait_listed(self, count: int, resource: str = GPU, timeout_s: float = PATIENCE_S) -> Stream:
        """Wait until a live stream's latest list has so many IDs. Returns the stream."""

        def listed() -> bool:
            streams = self.kubelet.live_streams(resource)
            return bool(streams) and bool(streams[-1].messages) and len(streams[-1].messages[-1].devices) == count

        self.wait(listed, f"{resource}: a list of {count} IDs", timeout_s)
        return self.kubelet.live_streams(resource)[-1]

    @contextlib.contextmanager
    def plugin(self, resource: str = GPU) -> Iterator[Plugin]:
        """The agent's socket for a resource, for calls that a kubelet makes only on its own terms."""
        options = (("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1))
        with grpc.insecure_channel(f"unix:{self.kubelet.plugin_socket(resource)}", options=options) as channel:
            yield Plugin(channel)

    # -- the end

    def _may_be_gone(self, now_s: float) -> bool:
        """Whether an agent has just been told to end: a busy kubelet may read the call when its socket is gone."""
        told = [one.told_to_end_s for one in self.agents if one.told_to_end_s is not None]
        return any(0 <= now_s - one_s < PATIENCE_S for one_s in told)

    def check(self) -> None:
        """What must be true of every agent, whatever a test did to it."""
        for agent in self.agents:
            assert "Traceback" not in agent.log, agent.log
        for call in self.kubelet.register_calls():
            if not _OUR_SOCKET.fullmatch(call.endpoint):
                continue  # a rival's
            assert call.version == "v1beta1"
            assert call.socket is SocketState.SERVING or self._may_be_gone(call.at_s), "registered before serving"
            assert call.deadline_s is not None
            assert call.deadline_s > 15
            assert call.live_streams <= self.rivals, "two streams of one resource (contract row 14)"
            assert call.calls_in_progress <= self.cut_off, "two Register calls of one resource at a time"
            if call.answered_options is not None:
                assert call.options == call.answered_options
        for stream in self.kubelet.streams():
            for message in stream.messages:
                check_list(message)

    def close(self) -> None:
        """End everything. Shows the agents' logs, for a test that fails."""
        for number, agent in enumerate(self.agents):
            if agent.running:
                agent.kill()
            print(f"-- the log of agent {number}", *agent.lines, sep="\n")
        self.gpus.close()

    def _make_device_node(self, name: str) -> None:
        path = self.root / "dev" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_symlink():
            path.symlink_to("/dev/null")


def _accesses(gpu: SimulatedGpu, mig: SimulatedMig) -> dict[str, int]:
    """The files below /proc that give access to a MIG device, and the minor number that each of them tells."""
    instance = f"driver/nvidia/capabilities/gpu{gpu.minor_number}/mig/gi{mig.gpu_instance_id}"
    minor = 64 * (gpu.minor_number or 0) + 2 * mig.gpu_instance_id
    return {f"{instance}/access": minor, f"{instance}/ci{mig.compute_instance_id}/access": minor + 1}


class Plugin:
    """Calls to the agent as the kubelet makes them, and as it never would."""

    def __init__(self, channel: grpc.Channel) -> None:
        self.stub = api_grpc.DevicePluginStub(channel)

    def allocate(self, *containers: Sequence[str]) -> list[api.ContainerAllocateResponse]:
        """Allocate, one request for each container. Raises grpc.RpcError."""
        requests = [api.ContainerAllocateRequest(devices_ids=ids) for ids in containers]
        answer = self.stub.Allocate(api.AllocateRequest(container_requests=requests), timeout=PATIENCE_S)
        return list(answer.container_responses)

    def prefer(self, available: Sequence[str], size: int, must_include: Sequence[str] = ()) -> list[str]:
        """GetPreferredAllocation for one container. Raises grpc.RpcError."""
        request = api.ContainerPreferredAllocationRequest(
            available_deviceIDs=available, must_include_deviceIDs=must_include, allocation_size=size
        )
        answer = self.stub.GetPreferredAllocation(
            api.PreferredAllocationRequest(container_requests=[request]), timeout=PATIENCE_S
        )
        [container] = answer.container_responses
        return list(container.deviceIDs)


def check_list(message: ListMessage) -> None:
    """Contract row 19 (and 27), for one list."""
    assert len(set(message.ids)) == len(message.ids)
    assert all(0 < len(one) <= 63 for one in message.ids)
    assert {device.health for device in message.devices} <= {"Healthy", "Unhealthy"}
    nodes = [device.numa_nodes for device in message.devices]
    assert all(number >= 0 for numbers in nodes for number in numbers)
    assert all(nodes) or not any(nodes), "topology on some devices only"


@contextlib.contextmanager
def open_node(
    *gpus: SimulatedGpu,
    settings: KubeletSettings | None = None,
    driver_installed: bool = True,
    limit_backend: LimitBackend = LimitBackend.NONE,
) -> Iterator[Node]:
    """A node with these GPUs, whose kubelet and agent are not started yet. At the end nothing of it is left."""
    with tempfile.TemporaryDirectory(prefix="s-", dir="/tmp") as folder:
        node = Node(
            Path(folder), gpus, settings=settings, driver_installed=driver_installed, limit_backend=limit_backend
        )
        with contextlib.closing(node), node.kubelet, contextlib.closing(node.cgroups):
            node.cgroups.start()
            yield node
            node.check()
