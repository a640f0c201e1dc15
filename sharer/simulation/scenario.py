"""The demo: a node being shared, step by step. Nothing is said that was not observed.

Each step does something to the node, waits for what should follow, and tells what the kubelet, the agent's log or a
container shows. Where it shows anything else, the step fails with both. To extend it, add a function to `STEPS`: the
first line of its docstring is its title, and it takes over the pods that the steps before it left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sharer.adapters.yaml_text import read_policy_text
from sharer.core.device_id import DeviceId
from sharer.core.errors import InputError, NodeError
from sharer.core.plan import Plan, ResourcePlan, make_plan
from sharer.core.quantities import MIB
from sharer.core.report import slices_by_device
from sharer.simulation.describe import describe_node
from sharer.simulation.hardware import SimulatedGpu
from sharer.simulation.kubelet import Phase, PodStatus
from sharer.simulation.node import SimulatedNode, open_node
from sharer.simulation.story import Audience, GpuSlices, SimulationReport, StepReport, Story

FILLING_PODS = 32  # at most so many fill the node up; on a larger one each takes several slices


class UnexpectedError(NodeError):
    """Something was observed that should not be so."""


@dataclass(slots=True, kw_only=True)
class Scene:
    """What the steps work on."""

    node: SimulatedNode
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
        """Start a pod that must run, and remember it."""
        resource = resource or self.resource.name
        pod = self.node.kubelet.start_pod(name, {resource: slices})
        self.expect(pod.phase is Phase.RUNNING, f"pod {name} is {pod.phase}: {pod.reason} {pod.message}")
        self.expect(len(pod.ids(resource)) == slices, f"pod {name} holds {len(pod.ids(resource))} slices, not {slices}")
        self.pods.append(name)
        return pod

    def healthy(self) -> frozenset[str]:
        """The IDs that the kubelet counts as healthy."""
        return self.node.kubelet.healthy(self.resource.name)

    def free(self) -> int:
        """What a scheduler would still place here."""
        return self.node.kubelet.unrequested(self.resource.name)


def advertise(scene: Scene) -> None:
    """The agent finds the GPUs, cuts them into slices and registers them with the kubelet."""
    scene.node.wait_advertised(scene.plan)
    for resource in scene.plan.resources:
        numbers = scene.node.kubelet.capacity(resource.name)
        assert numbers is not None, "wait_advertised has seen it"
        scene.say("kubelet", f"{resource.name}: capacity {numbers.capacity}, allocatable {numbers.allocatable}")
        healthy = scene.node.kubelet.healthy(resource.name)
        scene.expect(healthy == {str(one.id) for one in resource.slices}, f"other IDs are listed: {sorted(healthy)}")
        scene.say("kubelet", f"first and last ID: {resource.slices[0].id}, {resource.slices[-1].id}")


def admit(scene: Scene) -> None:
    """Pods ask for slices and are given exactly theirs."""
    others = [resource for resource in scene.plan.resources if resource is not scene.resource]
    for number, resource in enumerate([scene.resource, *others[:3]]):
        name = "train" if number == 0 else f"other-{number}"
        pod = scene.start_pod(name, resource=resource.name)
        ids = " ".join(pod.ids(resource.name))
        scene.say("kubelet", f"pod {name} asked for 1 {resource.name}: {pod.phase}, holds {ids}")
        _show_container(scene, pod, resource)
    if scene.free() >= 2:
        pod = scene.start_pod("notebook", 2)
        ids = " ".join(pod.ids(scene.resource.name))
        scene.say("kubelet", f"pod notebook asked for 2 {scene.resource.name}: {pod.phase}, holds {ids}")
        _show_container(scene, pod, scene.resource)


def fill(scene: Scene) -> None:
    """The node fills up, and one pod too many is refused."""
    each = max(1, -(-scene.free() // FILLING_PODS))
    while (free := scene.free()) > 0:
        scene.start_pod(f"work-{len(scene.pods)}", min(each, free))
    total = len(scene.resource.slices)
    held = len(scene.node.kubelet.allocated(scene.resource.name))
    scene.expect(held == total, f"{held} of {total} slices are held on a full node")
    scene.say("kubelet", f"{held} of {total} {scene.resource.name} are held; {len(scene.pods)} pods run")
    refused = scene.node.kubelet.start_pod("one-too-many", {scene.resource.name: 1})
    scene.expect(refused.phase is Phase.FAILED, f"pod one-too-many is {refused.phase} on a full node")
    scene.say("kubelet", f"pod one-too-many: {refused.phase}, {refused.reason}: {refused.message}")


def lose_gpu(scene: Scene) -> None:
    """A GPU stops answering: all its slices turn Unhealthy, the others stay, and its IDs stay listed."""
    lost, on_it = _first_gpu(scene)
    fault = scene.node.gpus.lose(lost.uuid)
    scene.node.wait_until(lambda: not scene.healthy() & on_it, f"all slices of {lost.uuid} Unhealthy")
    numbers = scene.node.kubelet.capacity(scene.resource.name)
    total, left = len(scene.resource.slices), len(scene.resource.slices) - len(on_it)
    scene.expect(numbers == (total, left), f"the kubelet counts {numbers}, not {(total, left)}")
    scene.say(
        "kubelet",
        f"{scene.resource.name}: capacity {total}, allocatable {left}; Unhealthy: all {len(on_it)} of {lost.uuid}",
    )
    running = [name for name in scene.pods if scene.node.kubelet.pod(name).phase is Phase.RUNNING]
    scene.expect(running == scene.pods, f"of {scene.pods} only {running} still run")
    scene.say("kubelet", f"all {len(running)} pods still run")
    scene.node.gpus.clear(fault)


def gpu_returns(scene: Scene) -> None:
    """The GPU answers again: its slices are Healthy again under the same IDs."""
    returned, on_it = _first_gpu(scene)
    scene.node.wait_until(lambda: on_it <= scene.healthy(), f"all slices of {returned.uuid} Healthy")
    numbers = scene.node.kubelet.capacity(scene.resource.name)
    total = len(scene.resource.slices)
    scene.expect(numbers == (total, total), f"the kubelet counts {numbers}, not all {total}")
    scene.say(
        "kubelet",
        f"{scene.resource.name}: capacity {total}, allocatable {total}; Healthy: all {len(on_it)} of {returned.uuid}",
    )


def reuse(scene: Scene) -> None:
    """A pod ends, and the next one is given its slices."""
    ended = scene.pods.pop(0)
    ids = scene.node.kubelet.pod(ended).ids(scene.resource.name)
    scene.node.kubelet.end_pod(ended)
    scene.say("kubelet", f"pod {ended}: {scene.node.kubelet.pod(ended).phase}; it held {' '.join(ids)}")
    pod = scene.start_pod("next", len(ids))
    given = pod.ids(scene.resource.name)
    scene.expect(given == ids, f"pod next was given {given}, and only {ids} were free")
    scene.say("kubelet", f"pod next asked for {len(ids)} {scene.resource.name}: {pod.phase}, holds {' '.join(given)}")


Step = Callable[[Scene], None]
STEPS: tuple[Step, ...] = (advertise, admit, fill, lose_gpu, gpu_returns, reuse)


def play(
    gpus: Sequence[SimulatedGpu],
    policy: bytes,
    source: str,
    audience: Audience,
    *,
    steps: Sequence[Step] = STEPS,
) -> SimulationReport:
    """Run the demo on a node with these GPUs, shared by this policy.

    Raises PolicyError for a policy that cannot be accepted, InputError if it offers nothing on these GPUs, NodeError if
    the node cannot be simulated. What the demo finds wrong is in the report.
    """
    plan = make_plan(describe_node(gpus), read_policy_text(policy, source))
    if not plan.resources:
        reasons = [f"{refusal.device}: {refusal.reason}" for refusal in plan.refusals] + list(plan.warnings)
        raise InputError(f"{source} offers nothing on these GPUs: {'; '.join(reasons)}")
    story = Story(audience)
    reports: list[StepReport] = []
    with open_node(gpus, policy, lambda record: story.add("agent", record.getMessage())) as node:
        scene = Scene(
            node=node,
            plan=plan,
            resource=max(plan.resources, key=lambda resource: len(resource.slices)),
            story=story,
        )
        for step in steps:
            reports.append(_perform(step, scene, audience))
            if reports[-1].failure is not None:
                break
        slices = _count_slices(scene)
    return SimulationReport(policy=source, steps=tuple(reports), slices=slices)


def _perform(step: Step, scene: Scene, audience: Audience) -> StepReport:
    title = (step.__doc__ or step.__name__).splitlines()[0]
    audience.begins(title)
    failure = None
    try:
        step(scene)
    except NodeError as error:
        failure = str(error)
    observations = scene.story.end_step()
    if failure is not None:
        audience.fails(failure)
    return StepReport(title=title, observations=observations, failure=failure)


def _show_container(scene: Scene, pod: PodStatus, resource: ResourcePlan) -> None:
    """What the container was started with; it must be told of the slices it holds and of their sum, and of no other."""
    given = pod.container().given
    assert given is not None, "a running pod's container has started"
    limits_bytes: Counter[str] = Counter()
    for device_id in map(DeviceId.parse, pod.ids(resource.name)):
        if device_id.limit_mib is not None:
            limits_bytes[device_id.uuid] += device_id.limit_mib * MIB
    for name, expected in (
        ("SHARER_DEVICE_IDS", {*pod.ids(resource.name)}),
        ("SHARER_MEMORY_LIMIT_BYTES", {f"{uuid}={limit_bytes}" for uuid, limit_bytes in limits_bytes.items()}),
    ):
        told = {*given.env[name].split(",")} if name in given.env else set()
        scene.expect(told == expected, f"in pod {pod.name}, {name} names {sorted(told)}, not {sorted(expected)}")
    for name, value in sorted(given.env.items()):
        scene.say(pod.name, f"{name}={value}")
    for label, values in (
        ("devices", [device.host_path for device in given.devices]),
        ("mounts", [mount.container_path for mount in given.mounts]),
        ("CDI devices", [*given.cdi_names]),
    ):
        if values:
            scene.say(pod.name, f"{label}: {' '.join(values)}")


def _first_gpu(scene: Scene) -> tuple[SimulatedGpu, frozenset[str]]:
    """The GPU that the resource's first slice is on, and all of the resource's IDs on it."""
    uuid = scene.resource.slices[0].gpu_uuid
    return scene.node.gpus.gpu(uuid), frozenset(str(one.id) for one in scene.resource.slices if one.gpu_uuid == uuid)


def _count_slices(scene: Scene) -> tuple[GpuSlices, ...]:
    """Every GPU or MIG device with slices, as the kubelet sees them."""
    gpus = {gpu.uuid: (index, gpu.product) for index, gpu in enumerate(scene.node.gpus.gpus)}
    holders: dict[str, list[str]] = {}
    for pod in scene.node.kubelet.pods():
        for container in () if pod.phase.terminal else pod.containers:
            for ids in container.ids.values():
                for device_id in ids:
                    holders.setdefault(device_id, []).append(pod.name)
    found = []
    for resource in scene.plan.resources:
        healthy = scene.node.kubelet.healthy(resource.name)
        for uuid, slices in slices_by_device(resource).items():
            on_it = [str(one.id) for one in slices]
            index, product = gpus[slices[0].gpu_uuid]
            found.append(
                GpuSlices(
                    gpu=index,
                    product=product,
                    uuid=uuid,
                    resource=resource.name,
                    slices=len(on_it),
                    promise_bytes=slices[0].promise_bytes,
                    held=sum(one in holders for one in on_it),
                    free=sum(one not in holders and one in healthy for one in on_it),
                    unhealthy=sum(one not in healthy for one in on_it),
                    pods=tuple(dict.fromkeys(name for one in on_it for name in holders.get(one, ()))),
                )
            )
    return tuple(sorted(found, key=lambda one: (one.gpu, one.uuid, one.resource)))
