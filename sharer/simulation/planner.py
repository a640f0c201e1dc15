"""The planner: which pods fit on a node, where, what is left, and why the rest does not. In virtual time.

The agent and the kubelet of the simulated node place every pod, as they would on a real one. Only the scheduler is
played here, for this one node: at each moment first the pods end that are due, then those that wait are started in the
order in which they came, wherever the node has room for all that a pod asks for; one that does not fit holds up nobody.
Priorities, other nodes, CPU and memory do not exist. The same input gives the same result.
"""

from __future__ import annotations

import difflib
import heapq
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Any, ClassVar

from sharer.adapters.yaml_text import read_policy_text
from sharer.core.device_id import DeviceId
from sharer.core.report.plan import slices_by_device
from sharer.core.slices.plan import Plan, ResourcePlan
from sharer.simulation.describe import describe_node, needs_mps, simulated_plan
from sharer.simulation.hardware import SimulatedGpu
from sharer.simulation.kubelet import Phase, PodStatus
from sharer.simulation.kubelet.pods import Pod, make_containers
from sharer.simulation.manifests import PlannedPod
from sharer.simulation.node import SimulatedNode, open_node


class PodState(StrEnum):
    """How it ended for a pod."""

    RUNNING = "running"  # at the end of the plan, and for ever
    FINISHED = "finished"
    WAITING = "waiting"  # for ever: nothing happens any more that could make room
    REFUSED = "refused"  # it can never run like this


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """What one container was given of one resource."""

    container: str
    resource: str
    ids: tuple[str, ...]
    gpus: tuple[int, ...]  # the GPUs they are on, by index


@dataclass(frozen=True, slots=True, kw_only=True)
class PodOutcome:
    """What became of one pod."""

    namespace: str
    name: str
    state: PodState
    came_at_s: float
    started_at_s: float | None = None  # null: it never started
    ended_at_s: float | None = None  # null: it never ended
    holdings: tuple[Holding, ...] = ()
    reason: str | None = None  # why it waits or is refused


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceUse:
    """What is left of one GPU or MIG device under one resource name."""

    gpu: int
    uuid: str  # of the GPU or MIG device
    resource: str
    slices: int
    held: int  # at the end
    free: int  # at the end
    most_held: int  # at any time


@dataclass(frozen=True, slots=True, kw_only=True)
class PodPlanReport:
    """Which pods fit."""

    kind: ClassVar[str] = "PodPlan"
    policy: str
    ends_at_s: float  # the last moment at which anything happens
    pods: tuple[PodOutcome, ...]  # in the order of the files
    devices: tuple[DeviceUse, ...]
    warnings: tuple[str, ...]

    @property
    def all_fit(self) -> bool:
        """Whether every pod runs or has run."""
        return all(pod.started_at_s is not None for pod in self.pods)


def plan_pods(
    gpus: Sequence[SimulatedGpu], policy: bytes, source: str, pods: Sequence[PlannedPod], warnings: Sequence[str] = ()
) -> PodPlanReport:
    """Let these pods come to a node with these GPUs, shared by this policy.

    `warnings` of reading the pods are passed on. Raises PolicyError for a policy that cannot be accepted, NodeError if
    the node cannot be simulated.
    """
    inventory = describe_node(gpus)
    plan = simulated_plan(inventory, read_policy_text(policy, source))
    noted = [*warnings, *plan.warnings]
    noted += [f"{refusal.device}, {refusal.uuid}, offers nothing: {refusal.reason}" for refusal in plan.refusals]

    def hear(record: logging.LogRecord) -> None:
        if record.levelno >= logging.ERROR:
            noted.append(f"the agent says: {record.getMessage()}")

    with open_node(gpus, policy, hear, mps=needs_mps(plan)) as node:
        node.wait_advertised(plan)
        course = _Course(node, plan, [gpu.uuid for gpu in gpus])
        course.run(pods)
    return PodPlanReport(
        policy=source,
        ends_at_s=course.now_s,
        pods=tuple(course.outcomes[pod.title] for pod in pods),
        devices=course.devices(),
        warnings=tuple(noted),
    )


class _Course:
    """The course of events on one node."""

    def __init__(self, node: SimulatedNode, plan: Plan, gpu_uuids: Sequence[str]) -> None:
        self.now_s = 0.0
        self.outcomes: dict[str, PodOutcome] = {}
        self._node, self._kubelet = node, node.kubelet
        self._resources: Mapping[str, ResourcePlan] = {resource.name: resource for resource in plan.resources}
        self._gpus = {str(one.id): gpu_uuids.index(one.gpu_uuid) for one in plan.slices()}
        self._events: list[tuple[float, int, Callable[[], None]]] = []  # a heap: by time, then as they were planned
        self._planned = 0
        self._waiting: list[PlannedPod] = []
        self._running: dict[str, PlannedPod] = {}
        self._held: Counter[tuple[str, str]] = Counter()  # by resource and UUID of GPU or MIG device
        self._most_held: dict[tuple[str, str], int] = {}

    def run(self, pods: Sequence[PlannedPod]) -> None:
        """Until nothing happens any more."""
        for pod in pods:
            self._at(pod.start_after_s, partial(self._come, pod))
        while self._events:
            self.now_s = self._events[0][0]
            while self._events and self._events[0][0] == self.now_s:
                heapq.heappop(self._events)[2]()
            self._start_waiting()

    def devices(self) -> tuple[DeviceUse, ...]:
        """What is left, in the order of resource and GPU."""
        return tuple(
            DeviceUse(
                gpu=self._gpus[str(slices[0].id)],
                uuid=uuid,
                resource=resource.name,
                slices=len(slices),
                held=self._held[resource.name, uuid],
                free=len(slices) - self._held[resource.name, uuid],
                most_held=self._most_held.get((resource.name, uuid), 0),
            )
            for resource in self._resources.values()
            for uuid, slices in slices_by_device(resource).items()
        )

    def _at(self, moment_s: float, happen: Callable[[], None]) -> None:
        self._planned += 1
        heapq.heappush(self._events, (moment_s, self._planned, happen))

    def _come(self, pod: PlannedPod) -> None:
        never = self._why_never(pod)
        self.outcomes[pod.title] = PodOutcome(
            namespace=pod.namespace,
            name=pod.name,
            state=PodState.WAITING if never is None else PodState.REFUSED,
            came_at_s=self.now_s,
            reason=never,
        )
        if never is None:
            self._waiting.append(pod)

    def _start_waiting(self) -> None:
        """Start whoever can be, in the order in which they came."""
        free = {resource: self._kubelet.unrequested(resource) for resource in self._resources}
        came, self._waiting = self._waiting, []
        for pod in came:
            if self._why_not_now(pod, free) is not None:
                self._waiting.append(pod)
                continue
            for resource, wanted in _requests(pod).items():
                free[resource] -= wanted
            self._start(pod)
        for pod in self._waiting:
            self._change(pod, reason=self._why_not_now(pod, free))

    def _start(self, pod: PlannedPod) -> None:
        status = self._kubelet.start_pod(
            pod.name, containers=pod.containers, init_containers=pod.init_containers, namespace=pod.namespace
        )
        if status.phase is not Phase.RUNNING:
            self._change(pod, state=PodState.REFUSED, reason=f"{status.reason}: {status.message}")
            return
        self._running[pod.title] = pod
        self._change(pod, state=PodState.RUNNING, started_at_s=self.now_s, reason=None, holdings=self._holdings(status))
        self._count(pod, 1)
        if pod.run_for_s is not None:
            self._at(self.now_s + pod.run_for_s, partial(self._end, pod))

    def _end(self, pod: PlannedPod) -> None:
        self._node.end_pod(pod.name, pod.namespace)
        del self._running[pod.title]
        self._change(pod, state=PodState.FINISHED, ended_at_s=self.now_s)
        self._count(pod, -1)

    def _why_never(self, pod: PlannedPod) -> str | None:
        """Why it can never run on this node; None: it could."""
        for resource, wanted in _requests(pod).items():
            offered = self._resources.get(resource)
            if offered is None:
                near = difflib.get_close_matches(resource, self._resources, n=1)
                known = f"did you mean {near[0]}?" if near else f"it offers {', '.join(self._resources) or 'nothing'}"
                return f"this node offers no {resource}; {known}"
            if wanted > len(offered.slices):
                return f"asks for {wanted} {resource}, and this node has {len(offered.slices)}"
        for container in (*pod.init_containers, *pod.containers):
            for resource, wanted in container.limits.items():
                most = self._resources[resource].request_max
                if most is not None and wanted > most:
                    return f"container {container.name} asks for {wanted} {resource}, and request.max is {most}"
        return None

    def _why_not_now(self, pod: PlannedPod, free: Mapping[str, int]) -> str | None:
        """What it waits for; None: nothing."""
        if pod.at_once is not None and sum(other.job == pod.job for other in self._running.values()) >= pod.at_once:
            return f"its Job runs {pod.at_once} at a time"
        for resource, wanted in _requests(pod).items():
            if wanted > free[resource]:
                total = len(self._resources[resource].slices)
                return f"asks for {wanted} {resource}; {free[resource]} of {total} are free"
        return None

    def _holdings(self, status: PodStatus) -> tuple[Holding, ...]:
        """What its containers hold. An init container's slices that an app container took over are named at both."""
        return tuple(
            Holding(
                container=container.name,
                resource=resource,
                ids=ids,
                gpus=tuple(sorted({self._gpus[device_id] for device_id in ids})),
            )
            for container in status.containers
            for resource, ids in sorted(container.ids.items())
        )

    def _count(self, pod: PlannedPod, change: int) -> None:
        held = {(one.resource, device_id) for one in self.outcomes[pod.title].holdings for device_id in one.ids}
        for resource, device_id in held:
            key = (resource, DeviceId.parse(device_id).uuid)
            self._held[key] += change
            self._most_held[key] = max(self._most_held.get(key, 0), self._held[key])

    def _change(self, pod: PlannedPod, **changes: Any) -> None:  # Any: the fields of PodOutcome
        self.outcomes[pod.title] = replace(self.outcomes[pod.title], **changes)


def _requests(pod: PlannedPod) -> dict[str, int]:
    """What the scheduler counts for it."""
    containers = make_containers(pod.containers, pod.init_containers)
    return Pod(name=pod.name, namespace=pod.namespace, uid="", containers=containers).requests()
