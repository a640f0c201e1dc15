"""A node on which a sequence happens: the fake kubelet, GPUs, cgroups, an API server if asked for, and the agent."""

from __future__ import annotations

import contextlib
import hashlib
import resource
import threading
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from sharer.simulation.hardware import SimulatedGpu
from sharer.simulation.kubelet import Fail as ListFails
from sharer.simulation.kubelet import Hang, KubeletDown
from tests.e2e.node import Node
from tests.e2e.process import Agent
from tests.fakes.fast_clock import JumpingClock
from tests.faults import steps
from tests.faults.checkpoint import content, harm
from tests.faults.driver import DriverSide
from tests.faults.mirror import Mirror
from tests.faults.mps import MpsSide
from tests.faults.mps_steps import JoinDaemon, MpsStep
from tests.faults.node_api import NodeApi
from tests.faults.places import Places, wait_answering
from tests.faults.policies import FIRST, GPUS, C, Cut
from tests.faults.steps import ApiTrouble, DriverStep, ListTrouble, NodeStep, Place, Step

SETTLING_S = 8.0  # policy 5 s (DESIGN §4), end of a pod 5 s without a hint, and two readings
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
    driver: DriverSide
    places: Places
    mps: MpsSide | None = None  # None: the node has no GPU for it
    has_cdi: bool = False  # whether GPUs come into containers by CDI
    agent: Agent | None = None
    waits_to_start: bool = False  # the agent, until it can write where it must
    cannot_register: bool = False  # it has something to register, and cannot make a socket
    wanted: Cut = FIRST  # by the last good text
    spoiled: str | None = None  # the wrong text that is in the policy's place
    in_force: Cut = FIRST  # as last reported
    clock: JumpingClock | None = None  # of the agents; None: they have the true one
    disk_is_full: bool = False
    old_checkpoint: bytes = b""
    kubelet_started_s: float = 0.0
    agent_started_s: float = 0.0
    list_trouble_s: float = 0.0  # that planned faults can cost, counted from when they were planned
    list_trouble_since_s: float = 0.0
    _unclaimed_s: dict[tuple[str, str], float] = field(default_factory=dict)  # resource and ID -> since when
    _denied_s: float | None = None  # since when a kubelet runs with which the agent cannot register
    _cdi: tuple[object, set[str]] | None = None  # what the specs had when they were read last
    tenants: set[Path] = field(default_factory=set)  # cgroups of all containers that were ever given slices
    is_crippled: bool = False  # the checkpoint was harmed: what only it knew may be unknown

    @property
    def gpus(self) -> tuple[SimulatedGpu, ...]:
        """What the node has."""
        return GPUS if self.mps is None else (*GPUS, C)

    def lag_s(self) -> float:
        """Within how long everything must be settled from now on."""
        now_s = time.monotonic()
        kubelet_s = max(0.0, self.kubelet_started_s + KUBELET_S - now_s)
        agent_s = max(0.0, self.agent_started_s + AGENT_S - now_s)
        list_s = max(0.0, self.list_trouble_since_s + self.list_trouble_s - now_s)
        places_s = max(0.0, self.places.settles_s - now_s)
        return SETTLING_S + kubelet_s + agent_s + list_s + places_s + self.driver.lag_s()

    def start(self) -> None:
        """The kubelet, then the agent, then what keeps the MPS daemon."""
        self.node.write_policy(self.wanted.text)
        self.node.kubelet.start()
        self.kubelet_started_s = time.monotonic()
        self._start_agent()
        if self.mps is not None:
            self.mps.start()

    def do(self, step: Step) -> None:
        """Let something happen. What cannot happen to the node as it is, does not."""
        kubelet = self.node.kubelet
        self.old_checkpoint = self.old_checkpoint or content(kubelet.checkpoint)
        if isinstance(step, _OF_A_POD) and not self._is_there(step.name):
            return  # a sequence of which steps were left out
        if isinstance(step, DriverStep):
            self.driver.do(step, is_watched=self.agent is not None)
        elif isinstance(step, MpsStep):
            if self.mps is not None:
                self.mps.do(step, lambda name: kubelet.pod(self._full(name)))
        else:
            self._do(step)

    def _do(self, step: NodeStep) -> None:
        kubelet = self.node.kubelet
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
                self.waits_to_start = False
                self.driver.end_limits_hang()
            case steps.StopAgent():
                if self.agent is not None:
                    self.agent.wait_log("")  # before its first word the signal is not its own to handle
                    self.agent.terminate()
                    self.agent = None
                self.waits_to_start = False
            case steps.StartAgent():
                self._start_agent()
            case steps.FillDisk():
                self.disk_is_full = step.full
                self._limit_files()
            case steps.RefuseWrites():
                self._refuse_writes(step.place, refused=step.refused)
            case steps.LoseSpecs():
                self.places.lose_specs()
            case steps.JumpClock():
                assert self.clock is not None
                self.clock.jump_to(step.ahead_s)
                if self.mps is not None:
                    self.mps.disturb()
            case steps.LiftLimits():
                self._lift_limits(self._full(step.name))
            case steps.EditPolicy():
                if self.mps is not None and step.cut.mps != self.wanted.mps:
                    self.mps.disturb(may_end=True)
                    self.mps.is_wanted = step.cut.mps > 0
                if (step.cut.resource, step.cut.mps > 0) != (self.wanted.resource, self.wanted.mps > 0):
                    self._has_to_register()
                self.wanted, self.spoiled = step.cut, None
                self.node.write_policy(step.cut.text)
            case steps.SpoilPolicy():
                self.spoiled = step.text
                self.node.write_policy(step.text)
            case steps.HoldPolicy():
                assert self.api is not None
                self._has_to_register()  # a policy may come into force that has waited
                self.api.label(held=step.held)
            case steps.TroubleApi():
                if self.api is not None:
                    self._has_to_register()  # likewise
                    self.api.trouble(step.trouble)

    def look(self) -> None:
        """Take notice of what there is beside the kubelet."""
        if self.mps is not None:
            pods = self.node.kubelet.pods()
            self.mps.look(frozenset(pod.uid for pod in pods if not pod.phase.terminal))

    def cdi_names(self) -> set[str]:
        """What a runtime would resolve; specs that have not changed are not read again."""
        mark = frozenset((path, path.stat().st_mtime_ns) for path in self.node.cdi_files())
        if self._cdi is None or self._cdi[0] != mark:
            self._cdi = mark, self.node.cdi_names()
        return self._cdi[1]

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
        self.driver.repair(is_watched=self.agent is not None)
        self.do(steps.FillDisk(full=False))
        for place in Place:
            self._refuse_writes(place, refused=False)
        if self.mps is not None:
            self.mps.repair()
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

    def _refuse_writes(self, place: Place, *, refused: bool) -> None:
        if place is Place.STATE and self.mps is not None:
            self.mps.wait_begun()
        if place is Place.RUN and self.agent is not None:
            wait_answering(self.node.run_dir, self.agent)
        if place is Place.PLUGINS and not refused:
            self._check_denial()
        self.places.refuse(place, refused=refused)
        if place is Place.PLUGINS and refused and time.monotonic() - self.kubelet_started_s < AGENT_S:
            self._has_to_register()  # or has just done so; nobody can tell
        if place is Place.PLUGINS and not refused:
            self.cannot_register, self._denied_s = False, None
        if place is Place.STATE and self.mps is not None:
            self.mps.refuse_writes(refused=refused)
        if place is Place.RUN and not refused and self.waits_to_start:
            self._start_agent()

    def _has_to_register(self) -> bool:
        """Something will be registered now. Returns whether that cannot be."""
        self.cannot_register |= Place.PLUGINS in self.places.refusing
        return self.cannot_register

    def _check_denial(self) -> None:
        """Whoever could not register after a kubelet's restart has said so."""
        if self._denied_s is not None and self.agent is not None and time.monotonic() - self._denied_s > AGENT_S:
            self.agent.wait_log("cannot make the socket")

    def _start_kubelet(self) -> None:
        if not self.node.kubelet.running:
            self.node.kubelet.start()
            self.kubelet_started_s = time.monotonic()
            if self._has_to_register() and self.agent is not None:
                self._denied_s = self.kubelet_started_s

    def _start_agent(self) -> None:
        if self.agent is not None:
            return
        flags = () if self.api is None else (f"--kubernetes={self.api.kubeconfig}",)
        injection = "cdi" if self.has_cdi else "device-nodes"
        agent = self.node.start_agent(*flags, injection=injection, variables=self.places.variables)
        self.waits_to_start = Place.RUN in self.places.refusing
        if self.waits_to_start:
            assert agent.wait_end() == 1, agent.log  # whoever has started it starts it again
            assert "cannot lock" in agent.log, agent.log
            return
        self.agent, self.agent_started_s, self._denied_s = agent, time.monotonic(), None
        self._has_to_register()
        self._limit_files()

    def _lift_limits(self, name: str) -> None:
        """As root could; a soft limit is left to the driver's books."""
        pod = self.node.kubelet.pod(name)
        for gpu in self.gpus:
            limited = self.node.gpus.limited(gpu.uuid)
            for container in pod.containers:
                leaf = self.node.cgroup_of(pod.uid, container.name)
                soft_bytes, hard_bytes = limited.get(str(leaf), (0, None))
                if hard_bytes is not None:
                    with contextlib.suppress(OSError):  # it has ended meanwhile
                        self.node.gpus.set_memory_limit(gpu.uuid, leaf, soft_bytes=soft_bytes)


_OF_A_POD = (
    steps.EndPod, steps.DeletePod, steps.ForceDeletePod, steps.RestartContainer, steps.HidePod, steps.LiftLimits,
    JoinDaemon,
)  # fmt: skip
