"""The demo: a node being shared, step by step. Nothing is said that was not observed.

Each step does something to the node, waits for what should follow, and tells what the kubelet, the agent's log, its
report or a container shows. Where it shows anything else, the step fails with both. To extend it, add a function to
`STEPS`: the first line of its docstring is its title, and it takes over the pods that the steps before it left.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from sharer.adapters.yaml_text import read_policy_text
from sharer.core.change.transition import DROP_AFTER_S
from sharer.core.errors import InputError, NodeError
from sharer.core.policy.model import Rule, TimeSlicing
from sharer.core.policy.text import to_yaml
from sharer.core.quantities import duration, format_bytes
from sharer.core.report.node import HolderReport, NodeReport
from sharer.simulation.describe import describe_node, needs_mps, simulated_plan
from sharer.simulation.hardware import SimulatedGpu
from sharer.simulation.kubelet import Phase, PodStatus
from sharer.simulation.node import open_node
from sharer.simulation.scene import Scene, count_slices
from sharer.simulation.story import Audience, SimulationReport, StepReport, Story
from sharer.simulation.supervision import speaker

FILLING_PODS = 4  # at most so many fill the node up, so that what is said of them can be read
SHOWN = 4  # IDs in one sentence


def advertise(scene: Scene) -> None:
    """The agent finds the GPUs, cuts them into slices and registers them with the kubelet."""
    scene.node.wait_advertised(scene.plan)
    for resource in scene.plan.resources:
        numbers = scene.node.kubelet.capacity(resource.name)
        assert numbers is not None, "wait_advertised has seen it"
        healthy = scene.node.kubelet.healthy(resource.name)
        scene.expect(healthy == {str(one.id) for one in resource.slices}, f"other IDs are listed: {sorted(healthy)}")
        first, last = resource.slices[0].id, resource.slices[-1].id
        counted = f"capacity {numbers.capacity}, allocatable {numbers.allocatable}"
        scene.say("kubelet", f"{resource.name}: {counted}; from {first} to {last}")


def admit(scene: Scene) -> None:
    """Pods ask for slices and are given exactly theirs."""
    others = [resource for resource in scene.plan.resources if resource is not scene.resource]
    for number, resource in enumerate([scene.resource, *others[:3]]):
        name = "train" if number == 0 else f"other-{number}"
        pod = scene.start_pod(name, resource=resource.name)
        ids = " ".join(pod.ids(resource.name))
        scene.say("kubelet", f"pod {name} asked for 1 {resource.name}: {pod.phase}, holds {ids}")
        _show_container(scene, pod)
    if scene.free() >= 2:
        pod = scene.start_pod("notebook", 2)
        ids = " ".join(pod.ids(scene.resource.name))
        scene.say("kubelet", f"pod notebook asked for 2 {scene.resource.name}: {pod.phase}, holds {ids}")


def know_holders(scene: Scene) -> None:
    """The agent, which nobody told for whom it was asked, knows who holds what and how much each was promised."""
    held: dict[str, list[HolderReport]] = {}
    for one in _wait_known(scene).status.holders:
        held.setdefault(f"{one.namespace}/{one.pod} ({one.container}), UID {one.uid}", []).append(one)
    for who, slices in held.items():
        promises = " + ".join("no memory" if (b := one.promise_bytes) is None else format_bytes(b) for one in slices)
        scene.say("report", f"{' '.join(one.id for one in slices)}: held by {who}, promised {promises}")


def hold(scene: Scene) -> None:
    """Each container is held to its promise, and what the report says of that was read back."""
    for who, slices in _by_container(_wait_held(scene)).items():
        if promised := [one for one in slices if one.promise_bytes is not None]:
            scene.say("report", f"{who}: held by {', '.join(sorted({one.held_by or 'nothing' for one in promised}))}")
        else:
            scene.say("report", f"{who}: no memory is promised, so nothing is to be held")
    for name in scene.pods:
        for uuid, limit_bytes in sorted(scene.limits(name).items()):
            scene.say("driver", f"limit of pod {name}'s container on {uuid}: {format_bytes(limit_bytes)}")


def refuse(scene: Scene) -> None:
    """A container asks for more GPU memory than it was promised, and the driver refuses it."""
    name = scene.pods[0]
    for uuid, limit_bytes in sorted(scene.limits(name).items()):
        most_bytes = limit_bytes * 3 // 4
        scene.expect(scene.allocate(name, uuid, most_bytes), f"pod {name} is refused {most_bytes} of {limit_bytes}")
        scene.say(name, f"allocates {format_bytes(most_bytes)} of {uuid}: granted")
        scene.expect(not scene.allocate(name, uuid, most_bytes), f"pod {name} is granted more than {limit_bytes}")
        scene.say(name, f"allocates {format_bytes(most_bytes)} more: refused, CUDA_ERROR_OUT_OF_MEMORY")
    if not scene.limits(name):
        scene.say("driver", f"pod {name} has no limit of the driver's: it is held by other means, or promised nothing")


def exceed(scene: Scene) -> None:
    """Somebody lifts that limit, and the container takes more: the agent sets it again, and says who is above it."""
    name = scene.pods[0]
    for uuid, limit_bytes in sorted(scene.limits(name).items()):
        scene.lift_and_allocate(name, uuid, limit_bytes)
        scene.say(name, f"its limit on {uuid} was lifted by hand; allocates {format_bytes(limit_bytes)} more: granted")
        seen = scene.wait_holder(name, uuid, lambda one: one.held_by is None and "it uses" in one.reason)
        scene.say("report", f"pod {name}: {seen.reason.partition('; ')[2]}")
        scene.expect(scene.limits(name).get(uuid) == limit_bytes, f"the limits of pod {name} are {scene.limits(name)}")
        scene.expect(not scene.allocate(name, uuid, 1), f"pod {name} is granted memory above its promise")
        scene.say("driver", f"limit of pod {name}'s container on {uuid}: {format_bytes(limit_bytes)}, set again")
        scene.free_memory(name, uuid)
    if not scene.limits(name):
        scene.say("driver", f"pod {name} has no limit that could be lifted")


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
    """A pod ends: its slices are offered again, and the next pod is given them."""
    _wait_known(scene)
    ended = scene.pods.pop(0)
    ids = scene.node.kubelet.pod(ended).ids(scene.resource.name)
    scene.node.kubelet.end_pod(ended)
    scene.say("kubelet", f"pod {ended}: {scene.node.kubelet.pod(ended).phase}; it held {' '.join(ids)}")
    offered = scene.wait_state(ids, "offered")
    scene.say("report", f"{' '.join(ids)}: {offered.state}, {offered.reason}")
    pod = scene.start_pod("next", len(ids))
    given = pod.ids(scene.resource.name)
    scene.expect(given == ids, f"pod next was given {given}, and only {ids} were free")
    scene.say("kubelet", f"pod next asked for {len(ids)} {scene.resource.name}: {pod.phase}, holds {' '.join(given)}")


def outlive(scene: Scene) -> None:
    """A pod is deleted by force and its processes live on: nobody is given its slices before they have ended."""
    pod = scene.node.kubelet.pod(scene.pods.pop())
    ids, shown = pod.ids(scene.resource.name), " ".join(pod.ids(scene.resource.name))
    _wait_known(scene)
    scene.node.kubelet.force_delete_pod(pod.name)
    kept = scene.wait_state(ids, "quarantined")
    scene.expect(not scene.holders().keys() & {*ids}, f"the kubelet still knows who holds {shown}")
    scene.say("kubelet", f"pod {pod.name} is not known any more; Unhealthy: {shown}")
    scene.say("report", f"{shown}: {kept.state}, {kept.reason}")
    scene.node.kubelet.end_remnant(pod.uid)
    offered = scene.wait_state(ids, "offered")
    scene.say("report", f"the last process has ended; {shown}: {offered.state}, {offered.reason}")


def recut(scene: Scene) -> None:
    """The policy is edited to half the slices: held ones drain, free ones are withdrawn, new ones wait for room."""
    name = scene.resource.name
    policy = replace(scene.policy, rules=tuple(map(_halved, scene.policy.rules)), rollout_window_s=0.0)
    plan = simulated_plan(scene.inventory, policy)
    old, held = {*scene.node.listed(name)}, scene.holders().keys()
    unwanted = old - {str(one.id) for resource in plan.resources if resource.name == name for one in resource.slices}
    if not unwanted:
        scene.say("policy", f"not shown: {name} has no two time slices of a GPU that could become one")
        return
    scene.node.write_policy(to_yaml(policy).encode())
    scene.policy, scene.plan = policy, plan
    draining, free = unwanted & held, old - held

    def is_so(report: NodeReport) -> bool:
        drain = {one.id for one in report.slices if one.resource == name and one.draining_s is not None}
        return drain == draining and free - _withdrawn(report, name) <= old - unwanted

    report = scene.node.wait_report(is_so, f"draining: {sorted(draining)}; withdrawn of {sorted(free)}: the unwanted")
    gone = _withdrawn(report, name)
    scene.expect(gone <= free, f"slices are withdrawn while they are held: {sorted(gone - free)}")
    scene.node.wait_until(lambda: not scene.healthy() & gone, f"Unhealthy: {sorted(gone)}")
    patience = duration(policy.drain_patience_s)
    scene.say("report", f"held slices that drain: {len(draining)}; Healthy for {patience} (drain.patience)")
    if gone:
        soon = f"Unhealthy now, not listed any more in {DROP_AFTER_S:g} s at the earliest"
        scene.say("report", f"free slices withdrawn: {len(gone)}; {soon}: {' '.join(sorted(gone)[:SHOWN])}")
    for reason in dict.fromkeys(gpu.waiting for gpu in report.status.gpus if gpu.waiting is not None):
        gpus = ", ".join(str(gpu.index) for gpu in report.status.gpus if gpu.waiting == reason)
        scene.say("report", f"GPU {gpus}: {reason}")


Step = Callable[[Scene], None]
STEPS: tuple[Step, ...] = (
    advertise, admit, know_holders, hold, refuse, exceed, fill, lose_gpu, gpu_returns, reuse, outlive, recut,
)  # fmt: skip


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
    wanted = read_policy_text(policy, source)
    inventory = describe_node(gpus)
    plan = simulated_plan(inventory, wanted)
    if not plan.resources:
        reasons = [f"{refusal.device}: {refusal.reason}" for refusal in plan.refusals] + list(plan.warnings)
        raise InputError(f"{source} offers nothing on these GPUs: {'; '.join(reasons)}")
    story = Story(audience)
    reports: list[StepReport] = []

    def hear(record: logging.LogRecord) -> None:
        story.add(speaker(record), record.getMessage())

    with open_node(gpus, policy, hear, mps=needs_mps(plan)) as node:
        scene = Scene(
            node=node,
            inventory=inventory,
            policy=wanted,
            plan=plan,
            resource=max(plan.resources, key=lambda resource: len(resource.slices)),
            story=story,
        )
        for step in steps:
            reports.append(_perform(step, scene, audience))
            if reports[-1].failure is not None:
                break
        slices = count_slices(scene)
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


def _show_container(scene: Scene, pod: PodStatus) -> None:
    """What the container was started with."""
    given = pod.container().given
    assert given is not None, "a running pod's container has started"
    for name, value in sorted(given.env.items()):
        scene.say(pod.name, f"{name}={value}")
    for label, values in (
        ("devices", [device.host_path for device in given.devices]),
        ("mounts", [mount.container_path for mount in given.mounts]),
        ("CDI devices", [*given.cdi_names]),
    ):
        if values:
            scene.say(pod.name, f"{label}: {' '.join(values)}")


def _wait_known(scene: Scene) -> NodeReport:
    """The agent's report, as soon as it names all holders just as the kubelet knows them.

    Before that no pod may end: of one that was never listed, the agent cannot tell whether it is still to come.
    """
    truth = {
        (device_id, pod.namespace, pod.name, pod.uid, "main", "held") for device_id, pod in scene.holders().items()
    }

    def names_them(report: NodeReport) -> bool:
        holders = report.status.holders
        return truth == {(one.id, one.namespace, one.pod, one.uid, one.container, one.state) for one in holders}

    return scene.node.wait_report(names_them, f"these holders: {sorted(truth)}")


def _wait_held(scene: Scene) -> NodeReport:
    """The agent's report, as soon as it says of every container that was promised memory what holds it."""

    def all_held(report: NodeReport) -> bool:
        return all(one.held_by is not None for one in report.status.holders if one.promise_bytes is not None)

    _wait_known(scene)
    return scene.node.wait_report(all_held, "every container held to its promise")


def _by_container(report: NodeReport) -> dict[str, list[HolderReport]]:
    found: dict[str, list[HolderReport]] = {}
    for one in report.status.holders:
        found.setdefault(f"{one.namespace}/{one.pod} ({one.container})", []).append(one)
    return found


def _withdrawn(report: NodeReport, resource: str) -> set[str]:
    """The IDs that are listed Unhealthy in order to be dropped."""
    return {one.id for one in report.slices if one.resource == resource and one.withdrawn_s is not None}


def _halved(rule: Rule) -> Rule:
    """The rule with half as many time slices, if it gives a number of two or more; any other as it is."""
    if not isinstance(rule.sharing, TimeSlicing) or rule.sharing.slices is None or rule.sharing.slices < 2:
        return rule
    return replace(rule, sharing=replace(rule.sharing, slices=rule.sharing.slices // 2))


def _first_gpu(scene: Scene) -> tuple[SimulatedGpu, frozenset[str]]:
    """The GPU that the resource's first slice is on, and all of the resource's IDs on it."""
    uuid = scene.resource.slices[0].gpu_uuid
    return scene.node.gpus.gpu(uuid), frozenset(str(one.id) for one in scene.resource.slices if one.gpu_uuid == uuid)
