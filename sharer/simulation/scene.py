"""What the demo's steps work on: a simulated node, what is wanted of it, and the pods that run there."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from sharer.core.device_id import DeviceId
from sharer.core.errors import NodeError
from sharer.core.inventory import Inventory
from sharer.core.policy.model import Policy
from sharer.core.quantities import MIB
from sharer.core.report.node import HolderReport, NodeReport, SliceReport
from sharer.core.slices.plan import Plan, ResourcePlan
from sharer.simulation.hardware import SimulatedGpu
from sharer.simulation.kubelet import Phase, PodStatus
from sharer.simulation.node import PATIENCE_S, SimulatedNode
from sharer.simulation.story import GpuSlices, Story

_RETRY_S = 0.02  # a real kubelet takes some ten seconds
_TRIES = 10  # the agent may come between a limit that is lifted and the allocation


class UnexpectedError(NodeError):
    """Something was observed that should not be so."""


@dataclass(slots=True, kw_only=True)
class Scene:
    """What the steps work on."""

    node: SimulatedNode
    inventory: Inventory  # what the driver says of the GPUs while nothing is wrong with them
    policy: Policy  # in force, or within seconds
    plan: Plan  # worked out here, from the same policy and GPUs: what the agent has to arrive at
    resource: ResourcePlan  # the one with the most slices; the steps play on it
    story: Story
    pods: list[str] = field(default_factory=list)  # those that run, oldest first

    def say(self, by: str, text: str) -> None:
        """Tell what was observed just now, after what the agent has said until now."""
        self.story.add(by, text)
        self.story.tell()

    def expect(self, as_it_should_be: bool, otherwise: str) -> None:
        """Raise UnexpectedError unless it is."""
        if not as_it_should_be:
            raise UnexpectedError(otherwise)

    def start_pod(self, name: str, slices: int = 1, resource: str | None = None) -> PodStatus:
        """Start a pod that must run and be told of just its slices, and remember it."""
        resource = resource or self.resource.name
        pod = self._retried(self.node.kubelet.start_pod(name, {resource: slices}))
        self.expect(pod.phase is Phase.RUNNING, f"pod {name} is {pod.phase}: {pod.reason} {pod.message}")
        self.expect(len(pod.ids(resource)) == slices, f"pod {name} holds {len(pod.ids(resource))} slices, not {slices}")
        self._expect_told(pod, resource)
        self.pods.append(name)
        return pod

    def _retried(self, pod: PodStatus) -> PodStatus:
        """As the kubelet tries again: where a limit is required, a start waits until it is in force."""
        until_s = time.monotonic() + PATIENCE_S
        while pod.phase is Phase.PENDING and time.monotonic() < until_s:
            time.sleep(_RETRY_S)
            pod = self.node.kubelet.sync_pod(pod.name)
        return pod

    def healthy(self) -> frozenset[str]:
        """The IDs that the kubelet counts as healthy."""
        return self.node.kubelet.healthy(self.resource.name)

    def free(self) -> int:
        """What a scheduler would still place here."""
        return self.node.kubelet.unrequested(self.resource.name)

    def holders(self) -> dict[str, PodStatus]:
        """The pod that holds each ID, as the kubelet knows it."""
        return {
            device_id: pod
            for pod in self.node.kubelet.pods()
            for container in (() if pod.phase.terminal else pod.containers)
            for ids in container.ids.values()
            for device_id in ids
        }

    def limits(self, name: str) -> dict[str, int]:
        """The driver's limits for a pod's container, in bytes, by GPU."""
        leaf = self.node.cgroup(self.node.kubelet.pod(name).uid, "main")
        found = {gpu.uuid: self.node.gpus.memory_limit(gpu.uuid, leaf)[1] for gpu in self.node.gpus.gpus}
        return {uuid: hard_bytes for uuid, hard_bytes in found.items() if hard_bytes is not None}

    def allocate(self, name: str, uuid: str, amount_bytes: int) -> bool:
        """Let a pod's container allocate memory of a GPU. False: the driver refuses it."""
        leaf = self.node.cgroup(self.node.kubelet.pod(name).uid, "main")
        return self.node.gpus.allocate(uuid, leaf, amount_bytes)

    def free_memory(self, name: str, uuid: str) -> None:
        """Let a pod's container free all its memory of a GPU."""
        leaf = self.node.cgroup(self.node.kubelet.pod(name).uid, "main")
        self.node.gpus.free(uuid, leaf)

    def lift_and_allocate(self, name: str, uuid: str, amount_bytes: int) -> None:
        """Lift the driver's limits for a pod, and let its container allocate before the agent has set them again."""
        uid = self.node.kubelet.pod(name).uid
        for _ in range(_TRIES):
            for cgroup in (self.node.cgroup(uid), self.node.cgroup(uid, "main")):
                self.node.gpus.set_memory_limit(uuid, cgroup)
            if self.allocate(name, uuid, amount_bytes):
                return
        raise UnexpectedError(f"the limit of pod {name} on {uuid} could not be lifted in {_TRIES} tries")

    def wait_holder(self, name: str, uuid: str, holds: Callable[[HolderReport], bool]) -> HolderReport:
        """Wait until the agent's report of a pod's slice of a GPU is as it should be. Raises NodeError."""

        def find(report: NodeReport) -> list[HolderReport]:
            mine = (one for one in report.status.holders if one.pod == name and one.id.startswith(f"{uuid}::"))
            return [one for one in mine if holds(one)]

        return find(self.node.wait_report(lambda report: bool(find(report)), f"how pod {name} stands on {uuid}"))[0]

    def wait_state(self, ids: Sequence[str], state: str) -> SliceReport:
        """Wait until the agent reports these IDs in a state, and the kubelet counts them as healthy if it is `offered`.

        Returns the report of the first. Raises NodeError.
        """
        report = self.node.wait_report(
            lambda found: all(_slices(found)[one].state == state for one in ids), f"{' '.join(ids)} {state}"
        )
        wanted = state == "offered"
        self.node.wait_until(
            lambda: all((one in self.healthy()) == wanted for one in ids),
            f"{' '.join(ids)} {'Healthy' if wanted else 'Unhealthy'}",
        )
        return _slices(report)[ids[0]]

    def _expect_told(self, pod: PodStatus, resource: str) -> None:
        """The container must be told of the slices it holds and of their sum, and of no other."""
        limits_bytes: Counter[str] = Counter()
        for device_id in map(DeviceId.parse, pod.ids(resource)):
            if device_id.limit_mib is not None:
                limits_bytes[device_id.uuid] += device_id.limit_mib * MIB
        for name, expected in (
            ("SHARER_DEVICE_IDS", {*pod.ids(resource)}),
            ("SHARER_MEMORY_LIMIT_BYTES", {f"{uuid}={limit_bytes}" for uuid, limit_bytes in limits_bytes.items()}),
        ):
            told = {*pod.env()[name].split(",")} if name in pod.env() else set()
            self.expect(told == expected, f"in pod {pod.name}, {name} names {sorted(told)}, not {sorted(expected)}")


def _slices(report: NodeReport) -> dict[str, SliceReport]:
    """Every slice of a report by its ID."""
    return {one.id: one for one in report.slices}


def count_slices(scene: Scene) -> tuple[GpuSlices, ...]:
    """The slices that the kubelet is shown, by device and promise: after a re-cut, old and new ones stand apart."""
    gpus, holders = _by_device(scene.node.gpus.gpus), scene.holders()
    held_by = {one.id: one.held_by or "nothing" for one in scene.node.report().status.holders if one.state == "held"}
    planned = {str(one.id): one.promise_bytes for one in scene.plan.slices()}
    groups: dict[tuple[str, str, int | None], list[str]] = {}
    for resource in scene.plan.resources:
        for text in scene.node.listed(resource.name):
            device_id = DeviceId.parse(text)
            old_bytes = None if device_id.limit_mib is None else device_id.limit_mib * MIB
            groups.setdefault((resource.name, device_id.uuid, planned.get(text, old_bytes)), []).append(text)
    found = []
    for (name, uuid, promise_bytes), ids in groups.items():
        healthy = scene.node.kubelet.healthy(name)
        index, product = gpus[uuid]
        found.append(
            GpuSlices(
                gpu=index,
                product=product,
                uuid=uuid,
                resource=name,
                slices=len(ids),
                promise_bytes=promise_bytes,
                held=sum(one in holders for one in ids),
                draining=sum(one in holders and one not in planned for one in ids),
                free=sum(one not in holders and one in healthy for one in ids),
                unhealthy=sum(one not in healthy for one in ids),
                held_by=tuple(sorted({held_by[one] for one in ids if one in held_by and promise_bytes is not None})),
                pods=tuple(dict.fromkeys(holders[one].name for one in ids if one in holders)),
            )
        )
    return tuple(sorted(found, key=lambda one: (one.gpu, one.uuid, one.resource)))


def _by_device(gpus: Sequence[SimulatedGpu]) -> Mapping[str, tuple[int, str]]:
    """Index and product of the GPU, by its UUID and by those of its MIG devices."""
    return {
        uuid: (index, gpu.product)
        for index, gpu in enumerate(gpus)
        for uuid in (gpu.uuid, *(mig.uuid for mig in gpu.mig_devices))
    }
