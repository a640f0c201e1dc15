"""What the demo's steps work on: a simulated node, what is wanted of it, and the pods that run there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sharer.core.device_id import DeviceId
from sharer.core.errors import NodeError
from sharer.core.inventory import Inventory
from sharer.core.node_report import NodeReport, SliceReport
from sharer.core.plan import Plan, ResourcePlan
from sharer.core.policy import Policy
from sharer.core.quantities import MIB
from sharer.simulation.hardware import SimulatedGpu
from sharer.simulation.kubelet import Phase, PodStatus
from sharer.simulation.node import SimulatedNode
from sharer.simulation.story import GpuSlices, Story


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
        pod = self.node.kubelet.start_pod(name, {resource: slices})
        self.expect(pod.phase is Phase.RUNNING, f"pod {name} is {pod.phase}: {pod.reason} {pod.message}")
        self.expect(len(pod.ids(resource)) == slices, f"pod {name} holds {len(pod.ids(resource))} slices, not {slices}")
        self._expect_told(pod, resource)
        self.pods.append(name)
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
