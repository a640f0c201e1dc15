"""A node on which a sequence happens: the fake kubelet, GPUs, cgroups, an API server if asked for, and the agent."""

from __future__ import annotations

import contextlib
import hashlib
import threading
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import grpc

from sharer.simulation.apiserver import NODE as NODE_KIND
from sharer.simulation.apiserver import POD, ApiServer, Ending, Fail, node_object
from sharer.simulation.hardware import Fault
from sharer.simulation.kubelet import Fail as ListFails
from sharer.simulation.kubelet import Hang, KubeletDown, KubeletSettings
from tests.e2e.node import Node, open_node
from tests.e2e.process import Agent
from tests.faults import steps
from tests.faults.mirror import Mirror
from tests.faults.policies import FIRST, GPUS, Cut
from tests.faults.steps import ApiTrouble, CheckpointHarm, ListTrouble, Step

GPU_RESET = 1  # NVML's recovery action
RECOVERY_CALL = "nvmlDeviceGetFieldValues"  # asks for that, once for each GPU at a look
NOT_READY_S = 0.3  # from a kubelet's start until it knows its pods; `List` is empty until then
SETTLING_S = 8.0  # policy 5 s (DESIGN §4), end of a pod 5 s without a hint, and two readings
KUBELET_S = 14.0  # after a kubelet's start its `List` is not believed for 10 s where it names less than before
AGENT_S = 4.0
LIST_TROUBLE_S = {ListTrouble.FAILS: 2.5, ListTrouble.THROTTLED: 2.5, ListTrouble.HANGS: 4.5}  # a retry each
API_S = 45.0  # back-off after an outage

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
    api: ApiServer | None
    mirror: Mirror | None
    kubeconfig: Path | None
    agent: Agent | None = None
    wanted: Cut = FIRST  # by the last good text
    spoiled: str | None = None  # the wrong text that is in the policy's place
    in_force: Cut = FIRST  # as last reported
    lost: dict[int, Fault] = field(default_factory=dict)
    broken: set[int] = field(default_factory=set)
    old_checkpoint: bytes = b""
    kubelet_started_s: float = 0.0
    agent_started_s: float = 0.0
    list_trouble_s: float = 0.0  # that planned faults can cost, counted from when they were planned
    list_trouble_since_s: float = 0.0
    api_away: bool = False
    _unclaimed_s: dict[tuple[str, str], float] = field(default_factory=dict)  # resource and ID -> since when
    is_crippled: bool = False  # the checkpoint was harmed: what only it knew may be unknown

    @property
    def faulty(self) -> set[str]:
        """UUIDs of the GPUs on which nothing can run."""
        return {GPUS[number].uuid for number in self.broken | self.lost.keys()}

    def lag_s(self) -> float:
        """Within how long everything must be settled from now on."""
        now_s = time.monotonic()
        kubelet_s = max(0.0, self.kubelet_started_s + KUBELET_S - now_s)
        agent_s = max(0.0, self.agent_started_s + AGENT_S - now_s)
        list_s = max(0.0, self.list_trouble_since_s + self.list_trouble_s - now_s)
        return SETTLING_S + kubelet_s + agent_s + list_s

    def start(self) -> None:
        """The kubelet, then the agent."""
        self.node.write_policy(self.wanted.text)
        self.node.kubelet.start()
        self.kubelet_started_s = time.monotonic()
        self._start_agent()

    def do(self, step: Step) -> None:
        """Let something happen. What cannot happen to the node as it is, does not."""
        kubelet = self.node.kubelet
        self.old_checkpoint = self.old_checkpoint or self._checkpoint()
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
                self._restart_container(self._full(step.name))
            case steps.KillKubelet():
                kubelet.kill()
            case steps.StartKubelet():
                self._start_kubelet()
            case steps.RestartKubelet():
                kubelet.kill()
                threading.Event().wait(step.pause_s)
                self._start_kubelet()
            case steps.HarmCheckpoint():
                self._harm_checkpoint(step.harm)
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
            case steps.StopAgent():
                if self.agent is not None:
                    self.agent.wait_log("")  # before its first word the signal is not its own to handle
                    self.agent.terminate()
                    self.agent = None
            case steps.StartAgent():
                self._start_agent()
            case steps.EditPolicy():
                self.wanted, self.spoiled = step.cut, None
                self.node.write_policy(step.cut.text)
            case steps.SpoilPolicy():
                self.spoiled = step.text
                self.node.write_policy(step.text)
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
                self._trouble_api(step.trouble)

    def unclaimed_for_s(self, unclaimed: Collection[tuple[str, str]]) -> dict[tuple[str, str], float]:
        """For how long each of these slices, allocated for nobody, has been seen so without a break."""
        now_s = time.monotonic()
        self._unclaimed_s = {key: self._unclaimed_s.get(key, now_s) for key in unclaimed}
        return {key: now_s - since_s for key, since_s in self._unclaimed_s.items()}

    def repair_everything(self) -> None:
        """The end of all trouble: what is down comes up, and nobody makes mistakes any more."""
        kubelet = self.node.kubelet
        for number in [*self.lost, *self.broken]:
            self._repair(number)
        if self.spoiled is not None:
            self.do(steps.EditPolicy(self.wanted))
        if self.api_away:
            self._trouble_api(ApiTrouble.BACK)
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

    def _restart_container(self, name: str) -> None:
        kubelet = self.node.kubelet
        pod = kubelet.pod(name)
        main = pod.container("main")
        if pod.phase.terminal or main.starts == 0:
            return
        with contextlib.suppress(KubeletDown):
            kubelet.restart_container(name)

    def _start_kubelet(self) -> None:
        if not self.node.kubelet.running:
            self.node.kubelet.start()
            self.kubelet_started_s = time.monotonic()

    def _start_agent(self) -> None:
        if self.agent is None:
            flags = () if self.kubeconfig is None else (f"--kubernetes={self.kubeconfig}",)
            self.agent = self.node.start_agent(*flags)
            self.agent_started_s = time.monotonic()

    def _checkpoint(self) -> bytes:
        try:
            return self.node.kubelet.checkpoint.read_bytes()
        except FileNotFoundError:
            return b""

    def _harm_checkpoint(self, harm: CheckpointHarm) -> None:
        path = self.node.kubelet.checkpoint
        now = self._checkpoint()
        self.is_crippled = True
        match harm:
            case CheckpointHarm.LOST:
                path.unlink(missing_ok=True)
            case CheckpointHarm.DAMAGED:
                _replace(path, now[: len(now) // 2])
            case CheckpointHarm.STALE:
                _replace(path, self.old_checkpoint)
        self.old_checkpoint = now

    def _repair(self, number: int) -> None:
        gpu = GPUS[number]
        if number in self.lost:
            self.node.gpus.clear(self.lost.pop(number))
        if number in self.broken:
            self._await_look()  # a reset takes longer than the agent takes to see that it is wanted
            self.broken.remove(number)
            self.node.gpus.put(gpu)

    def _await_look(self) -> None:
        if self.agent is not None:
            seen = self.node.gpus.calls(RECOVERY_CALL)
            self.node.gpus.wait_for_calls(RECOVERY_CALL, seen + 2 * len(GPUS))  # one look of them began after now

    def _trouble_api(self, trouble: ApiTrouble) -> None:
        if self.api is None:
            return
        match trouble:
            case ApiTrouble.EXPIRED:
                self.api.expire_history()
                self.api.interrupt_watches(Ending.CLEAN)
            case ApiTrouble.THROTTLED:
                self.api.fail_next(Fail(code=429, retry_after_s=1), times=3)
                self.api.interrupt_watches(Ending.CLEAN)
            case ApiTrouble.CUT:
                self.api.interrupt_watches(Ending.CUT)
            case ApiTrouble.RESET:
                self.api.interrupt_watches(Ending.RESET)
            case ApiTrouble.AWAY:
                self.api.stop()
                self.api_away = True
            case ApiTrouble.BACK:
                self.api.start()
                self.api_away = False


def _replace(path: Path, content: bytes) -> None:
    """As a restored backup would: another file under the name."""
    new = path.with_name(".harmed")
    new.write_bytes(content)
    new.replace(path)


@contextlib.contextmanager
def open_world(seed: int, *, with_api: bool) -> Iterator[World]:
    """A node on which nothing runs yet; at the end nothing of it is left. Raises what nobody expected of it."""
    settings = KubeletSettings(
        podresources_lead_s=0.05, sources_ready_after_s=NOT_READY_S, seed=seed, numa_nodes=(0, 1)
    )
    with contextlib.ExitStack() as closing:
        node = closing.enter_context(open_node(*GPUS, settings=settings))
        api = closing.enter_context(ApiServer().start()) if with_api else None
        kubeconfig = None
        if api is not None:
            api.put(NODE_KIND, node_object(settings.node_name))
            kubeconfig = node.root / "kubeconfig"
            kubeconfig.write_text(
                "{apiVersion: v1, kind: Config, current-context: here,"
                " contexts: [{name: here, context: {cluster: here, user: me}}], users: [{name: me, user: {}}],"
                f' clusters: [{{name: here, cluster: {{server: "{api.url}"}}}}]}}\n'
            )
        mirror = None if api is None else Mirror(api, node.kubelet, POD)
        yield World(node=node, api=api, mirror=mirror, kubeconfig=kubeconfig)
