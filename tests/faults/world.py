"""A node on which a sequence happens: the fake kubelet, GPUs, cgroups, an API server if asked for, and the agent."""

from __future__ import annotations

import contextlib
import hashlib
import resource
import threading
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import grpc

from sharer.simulation.apiserver import POD, ApiServer
from sharer.simulation.hardware import Fault
from sharer.simulation.kubelet import Fail as ListFails
from sharer.simulation.kubelet import Hang, KubeletDown, KubeletSettings
from sharer.simulation.memory_limits import LimitBackend
from tests.e2e.node import Node, open_node
from tests.e2e.process import Agent
from tests.fakes.fast_clock import JumpingClock
from tests.faults import steps
from tests.faults.checkpoint import content, harm
from tests.faults.mirror import Mirror
from tests.faults.node_api import NodeApi
from tests.faults.policies import FIRST, GPUS, Cut, in_mig_mode
from tests.faults.steps import ApiTrouble, ListTrouble, Step

GPU_RESET = 1  # NVML's recovery action
SET_CALL = "nvmlDeviceSetMemoryLimits_v1"
RECOVERY_CALL = "nvmlDeviceGetFieldValues"  # asks for that, once for each GPU at a look
NOT_READY_S = 0.3  # from a kubelet's start until it knows its pods; `List` is empty until then
SETTLING_S = 8.0  # policy 5 s (DESIGN §4), end of a pod 5 s without a hint, and two readings
DRIVER_S = 14.0  # a whole look at the driver comes every 10 s, and so does what can hold limits after a failure
FULL_DISK_BYTES = 16  # that a file can still have: less than anything that the agent writes
KUBELET_S = 14.0  # after a kubelet's start its `List` is not believed for 10 s where it names less than before
AGENT_S = 4.0
LIST_TROUBLE_S = {ListTrouble.FAILS: 2.5, ListTrouble.THROTTLED: 2.5, ListTrouble.HANGS: 4.5}  # a retry each
API_S = 45.0  # back-off after an outage
FORBIDDEN_S = 90.0  # between two tries at what only a person can allow

_LIST_FAULTS: dict[ListTrouble, ListFails | Hang] = {
    ListTrouble.FAILS: ListFails(),
    ListTrouble.THROTTLED: ListFails(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit"),
    ListTrouble.HANGS: Hang(),
}


def digest(text: str) -> str:
    """As a report names a policy's text."""
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(slots=True, kw_only=True)
class World:
    """The node, and what of its past matters for what must be true now."""

    node: Node
    api: NodeApi | None
    mirror: Mirror | None
    agent: Agent | None = None
    wanted: Cut = FIRST  # by the last good text
    spoiled: str | None = None  # the wrong text that is in the policy's place
    in_force: Cut = FIRST  # as last reported
    lost: dict[int, Fault] = field(default_factory=dict)
    broken: set[int] = field(default_factory=set)
    cut_up: set[int] = field(default_factory=set)  # in MIG mode
    clock: JumpingClock | None = None  # of the agents; None: they have the true one
    disk_is_full: bool = False
    driver_trouble_s: float = 0.0  # when the driver was last made to fail
    driver_faults: list[tuple[str, Fault]] = field(default_factory=list)  # by function: some calls, when they come
    driver_hang: Fault | None = None  # of one function, until it is freed
    old_checkpoint: bytes = b""
    kubelet_started_s: float = 0.0
    agent_started_s: float = 0.0
    list_trouble_s: float = 0.0  # that planned faults can cost, counted from when they were planned
    list_trouble_since_s: float = 0.0
    _unclaimed_s: dict[tuple[str, str], float] = field(default_factory=dict)  # resource and ID -> since when
    tenants: set[Path] = field(default_factory=set)  # cgroups of all containers that were ever given slices
    hang: Fault | None = None  # of the driver, at a change of a limit
    is_crippled: bool = False  # the checkpoint was harmed: what only it knew may be unknown

    @property
    def faulty(self) -> set[str]:
        """UUIDs of the GPUs on which nothing can run."""
        return {GPUS[number].uuid for number in self.broken | self.lost.keys()}

    @property
    def sliced(self) -> set[str]:
        """UUIDs of the GPUs in MIG mode, of which nothing is offered as a whole."""
        return {GPUS[number].uuid for number in self.cut_up}

    def lag_s(self) -> float:
        """Within how long everything must be settled from now on."""
        now_s = time.monotonic()
        kubelet_s = max(0.0, self.kubelet_started_s + KUBELET_S - now_s)
        agent_s = max(0.0, self.agent_started_s + AGENT_S - now_s)
        list_s = max(0.0, self.list_trouble_since_s + self.list_trouble_s - now_s)
        driver_s = DRIVER_S if self.driver_faults else max(0.0, self.driver_trouble_s + DRIVER_S - now_s)
        return SETTLING_S + kubelet_s + agent_s + list_s + driver_s

    def start(self) -> None:
        """The kubelet, then the agent."""
        self.node.write_policy(self.wanted.text)
        self.node.kubelet.start()
        self.kubelet_started_s = time.monotonic()
        self._start_agent()

    def do(self, step: Step) -> None:
        """Let something happen. What cannot happen to the node as it is, does not."""
        kubelet = self.node.kubelet
        self.old_checkpoint = self.old_checkpoint or content(kubelet.checkpoint)
        if isinstance(step, _OF_A_POD) and not self._is_there(step.name):
            return  # a sequence of which steps were left out
        match step:
            case steps.StartPod():
                if self.mirror is not None:
                    self.mirror.announce(step)
                kubelet.start_pod(
                    step.name, containers=step.containers, init_containers=step.init_containers, static=step.static
                )
            case steps.EndPod():
                kubelet.end_pod(self._full(step.name), step.phase)
            case steps.DeletePod():
                kubelet.delete_pod(self._full(step.name))
            case steps.ForceDeletePod():
                kubelet.force_delete_pod(self._full(step.name))
            case steps.EndRemnants():
                for remnant in kubelet.remnants():
                    kubelet.end_remnant(remnant.uid)
            case steps.RestartContainer():
                self._restart_container(self._full(step.name), cgroup_goes=step.cgroup_goes)
            case steps.KillKubelet():
                kubelet.kill()
            case steps.StartKubelet():
                self._start_kubelet()
            case steps.RestartKubelet():
                kubelet.kill()
                threading.Event().wait(step.pause_s)
                self._start_kubelet()
            case steps.HarmCheckpoint():
                self.is_crippled = True
                self.old_checkpoint = harm(kubelet.checkpoint, step.harm, self.old_checkpoint)
            case steps.TroubleList():
                kubelet.on_next_podresources_call(*(_LIST_FAULTS[trouble] for trouble in step.troubles))
                self.list_trouble_since_s = time.monotonic()
                self.list_trouble_s = 10.0 + sum(LIST_TROUBLE_S[trouble] for trouble in step.troubles)
            case steps.HidePod():
                kubelet.hide_from_list(self._full(step.name))
            case steps.KillAgent():
                threading.Event().wait(step.after_s)
                if self.agent is not None:
                    self.agent.kill()
                    self.agent = None
                    self.node.cut_off += sum(call.took_s is None for call in kubelet.register_calls())
                self._end_hang()
            case steps.StopAgent():
                if self.agent is not None:
                    self.agent.wait_log("")  # before its first word the signal is not its own to handle
                    self.agent.terminate()
                    self.agent = None
            case steps.StartAgent():
                self._start_agent()
            case steps.FillDisk():
                self.disk_is_full = step.full
                self._limit_files()
            case steps.JumpClock():
                assert self.clock is not None
                self.clock.jump_to(step.ahead_s)
            case steps.LiftLimits():
                self._lift_limits(self._full(step.name))
            case steps.HangLimits():
                self._end_hang()
                self.hang = self.node.gpus.hang(SET_CALL, after=step.after)
            case steps.EditPolicy():
                self.wanted, self.spoiled = step.cut, None
                self.node.write_policy(step.cut.text)
            case steps.SpoilPolicy():
                self.spoiled = step.text
                self.node.write_policy(step.text)
            case steps.HoldPolicy():
                assert self.api is not None
                self.api.label(held=step.held)
            case steps.FailDriver():
                fault = self.node.gpus.fail(step.function, step.code, uuid=GPUS[step.number].uuid, times=step.times)
                self.driver_faults.append((step.function, fault))
            case steps.HangDriver():
                self.driver_hang = self.driver_hang or self.node.gpus.hang(step.function)
            case steps.FreeDriver():
                self._free_driver()
            case steps.CutGpu():
                self.cut_up.add(step.number)
                self.driver_trouble_s = time.monotonic()
                self.node.write_device_files([in_mig_mode(step.number)])
                self.node.gpus.put(in_mig_mode(step.number))
            case steps.LoseGpu():
                self.lost[step.number] = self.node.gpus.lose(GPUS[step.number].uuid)
            case steps.BreakGpu():
                gpu = GPUS[step.number]
                self.broken.add(step.number)
                self.node.gpus.put(replace(gpu, recovery_action=GPU_RESET))
                self.node.gpus.xid(gpu.uuid, 79)
            case steps.RepairGpu():
                self._repair(step.number)
            case steps.Xid():
                self.node.gpus.xid(GPUS[step.number].uuid, step.xid)
            case steps.TroubleApi():
                if self.api is not None:
                    self.api.trouble(step.trouble)

    def note_tenants(self) -> None:
        """Remember who has slices: the kubelet forgets, and a limit may outlive that."""
        self.tenants |= {self.node.cgroup_of(uid, container) for uid, container, _ in self.node.kubelet.records()}

    def unclaimed_for_s(self, unclaimed: Collection[tuple[str, str]]) -> dict[tuple[str, str], float]:
        """For how long each of these slices, allocated for nobody, has been seen so without a break."""
        now_s = time.monotonic()
        self._unclaimed_s = {key: self._unclaimed_s.get(key, now_s) for key in unclaimed}
        return {key: now_s - since_s for key, since_s in self._unclaimed_s.items()}

    def repair_everything(self) -> None:
        """The end of all trouble: what is down comes up, and nobody makes mistakes any more."""
        kubelet = self.node.kubelet
        self._free_driver()
        for number in [*self.lost, *self.broken, *self.cut_up]:
            self._repair(number)
        self.do(steps.FillDisk(full=False))
        if self.spoiled is not None:
            self.do(steps.EditPolicy(self.wanted))
        if self.api is not None:
            self.api.label(held=False)
            if self.api.is_away:
                self.api.trouble(ApiTrouble.BACK)
        if not kubelet.running:
            self._start_kubelet()
        if self.agent is None:
            self._start_agent()

    def empty(self) -> None:
        """Every pod ends, and nothing is left of any."""
        for pod in self.node.kubelet.pods():
            self.node.kubelet.delete_pod(pod.name)
        self.do(steps.EndRemnants())

    # -- how

    def _full(self, name: str) -> str:
        """A pod's name; a static one has the node's as suffix."""
        static = f"{name}-{self.node.kubelet.settings.node_name}"
        return static if any(pod.name == static for pod in self.node.kubelet.pods()) else name

    def _is_there(self, name: str) -> bool:
        return any(pod.name == self._full(name) for pod in self.node.kubelet.pods())

    def _restart_container(self, name: str, *, cgroup_goes: bool) -> None:
        kubelet = self.node.kubelet
        pod = kubelet.pod(name)
        main = pod.container("main")
        if pod.phase.terminal or main.starts == 0 or not kubelet.running:
            return
        if cgroup_goes:
            kubelet.crash_container(name)
            self._await_no_cgroup(pod.uid)
        with contextlib.suppress(KubeletDown):
            kubelet.restart_container(name)

    def _await_no_cgroup(self, uid: str) -> None:
        until_s = time.monotonic() + 5.0
        while self.node.cgroup_of(uid, "main").exists():
            assert time.monotonic() < until_s, "a crashed container keeps its cgroup"
            threading.Event().wait(0.01)

    def _limit_files(self) -> None:
        """Let no file of the agent grow beyond a few bytes, as on a full disk; or let them again."""
        if self.agent is not None and self.agent.running:
            _, most = resource.prlimit(self.agent.pid, resource.RLIMIT_FSIZE)
            bound = FULL_DISK_BYTES if self.disk_is_full else most
            resource.prlimit(self.agent.pid, resource.RLIMIT_FSIZE, (bound, most))

    def _free_driver(self) -> None:
        if self.driver_hang is not None:
            self.node.gpus.clear(self.driver_hang)
            self.driver_hang = None
            self.driver_trouble_s = time.monotonic()

    def _start_kubelet(self) -> None:
        if not self.node.kubelet.running:
            self.node.kubelet.start()
            self.kubelet_started_s = time.monotonic()

    def _start_agent(self) -> None:
        if self.agent is None:
            flags = () if self.api is None else (f"--kubernetes={self.api.kubeconfig}",)
            self.agent = self.node.start_agent(*flags, variables=None if self.clock is None else self.clock.variables)
            self.agent_started_s = time.monotonic()
            self._limit_files()

    def _lift_limits(self, name: str) -> None:
        """As root could; a soft limit is left to the driver's books."""
        pod = self.node.kubelet.pod(name)
        for gpu in GPUS:
            limited = self.node.gpus.limited(gpu.uuid)
            for container in pod.containers:
                leaf = self.node.cgroup_of(pod.uid, container.name)
                soft_bytes, hard_bytes = limited.get(str(leaf), (0, None))
                if hard_bytes is not None:
                    with contextlib.suppress(OSError):  # it has ended meanwhile
                        self.node.gpus.set_memory_limit(gpu.uuid, leaf, soft_bytes=soft_bytes)

    def _end_hang(self) -> None:
        if self.hang is not None:
            self.node.gpus.clear(self.hang)
            self.hang = None

    def _repair(self, number: int) -> None:
        gpu = GPUS[number]
        if number in self.lost:
            self.node.gpus.clear(self.lost.pop(number))
        if number in self.cut_up:
            self.cut_up.remove(number)
            self.driver_trouble_s = time.monotonic()
            self.node.gpus.put(gpu)
        if number in self.broken:
            self._await_look()  # a reset takes longer than the agent takes to see that it is wanted
            self.broken.remove(number)
            self.node.gpus.put(gpu)

    def _await_look(self) -> None:
        if self.agent is not None and self.driver_hang is None:
            for function, fault in self.driver_faults:
                if function == RECOVERY_CALL:  # a reset that nobody could see is the operator's to tell
                    self.node.gpus.clear(fault)
            seen = self.node.gpus.calls(RECOVERY_CALL)
            self.node.gpus.wait_for_calls(RECOVERY_CALL, seen + 2 * len(GPUS))  # one look of them began after now


_OF_A_POD = (
    steps.EndPod, steps.DeletePod, steps.ForceDeletePod, steps.RestartContainer, steps.HidePod, steps.LiftLimits,
)  # fmt: skip


@contextlib.contextmanager
def open_world(
    seed: int, *, with_api: bool, backend: LimitBackend = LimitBackend.DMEM, clock_jumps: bool = False
) -> Iterator[World]:
    """A node on which nothing runs yet; at the end nothing of it is left. Raises what nobody expected of it."""
    settings = KubeletSettings(
        podresources_lead_s=0.05, sources_ready_after_s=NOT_READY_S, seed=seed, numa_nodes=(0, 1)
    )
    with contextlib.ExitStack() as closing:
        node = closing.enter_context(open_node(*GPUS, settings=settings, limit_backend=backend))
        api = mirror = None
        if with_api:
            server = closing.enter_context(ApiServer().start())
            api, mirror = NodeApi(server, node.root, settings.node_name), Mirror(server, node.kubelet, POD)
        clock = JumpingClock(node.root / "clock") if clock_jumps else None
        yield World(node=node, api=api, mirror=mirror, clock=clock)
