"""What a policy would change on every node of a fleet, and who is in the way, before it is applied.

Made from what agents published: the devices with their memory, how they are cut, and who holds what. Each node's new
cut is the planner's own (core/slices/plan); a node gets there by itself, as `policy plan --live` shows for one node.
What a GpuNode does not carry is taken as the policy hopes, and said.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import ClassVar

from sharer.core.change.choice import DEFAULT_NAME
from sharer.core.change.rollout import turn_s
from sharer.core.cluster.cuts import CutNow, DevicePlan, capability, cut_now, plan_devices
from sharer.core.cluster.report import ClusterGpu, ClusterNode, ClusterReport
from sharer.core.device_id import uuid_part
from sharer.core.policy.model import Mps, Policy
from sharer.core.report.node import HolderReport, gpu_name
from sharer.core.report.plan import Offered
from sharer.core.slices.plan import Refusal
from sharer.core.values import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceChange:
    """One GPU or MIG device whose slices would be others."""

    uuid: str
    device: str  # its name on the node: "3", "3:1"
    product: str | None
    resource_before: str | None
    before: Offered | None  # null: it offers nothing
    before_is_sure: bool  # false: its promise and share cannot be told just now, and are those of `after`
    resource_after: str | None
    after: Offered | None  # null: it would offer nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocker:
    """Somebody on a slice that is not of the new cut: it drains, and slices of the new cut may wait for it."""

    uuid: str
    resource: str
    id: str
    state: str
    namespace: str | None  # null, as the next two: not known
    pod: str | None
    container: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeChange:
    """What a policy would do to one node."""

    node: str
    turn_after_s: float | None  # after it sees the policy: its turn within rollout.window; null: it is held back
    changes: tuple[DeviceChange, ...]
    in_the_way: tuple[Blocker, ...]
    gpus_omitted: int  # of its GpuNode: more may change
    holders_omitted: int  # likewise: more may be in the way
    refusals: tuple[Refusal, ...]
    refused: str | None  # why the node would not take the policy at all; null: it would


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPlan:
    """What a policy would do to a fleet."""

    kind: ClassVar[str] = "ClusterPlan"
    policy: str  # where it was read from
    cluster: str
    nodes: tuple[NodeChange, ...]  # those that would change, or that refuse something
    unchanged: int
    not_told: tuple[str, ...]  # nodes of which no agent tells
    unknown: tuple[str, ...]  # what was taken for granted, one sentence each


def plan_cluster(report: ClusterReport, policy: Policy, digest: str) -> ClusterPlan:
    """The plan. `digest` is that of the policy's text, which decides about each node's turn."""
    told = [node for node in report.nodes if node.agent is not None]
    planner = _Planner(policy, digest)
    planned = [planner.plan(node) for node in told]
    changed = tuple(one for one in planned if one.changes or one.refusals or one.refused is not None)
    return ClusterPlan(
        policy=policy.source,
        cluster=report.cluster,
        nodes=changed,
        unchanged=len(planned) - len(changed),
        not_told=tuple(node.name for node in report.nodes if node.agent is None),
        unknown=tuple(_unknown(policy, told, planner)),
    )


def asking_for(report: ClusterReport, name: str) -> ClusterReport:
    """Only the nodes that ask for a policy of this name, by their label."""
    return replace(report, nodes=tuple(one for one in report.nodes if (one.policy_label or DEFAULT_NAME) == name))


class _Planner:
    """Plans nodes one after the other. A fleet has few kinds of nodes: only the first of each is worked out."""

    def __init__(self, policy: Policy, digest: str) -> None:
        hoped = tuple(replace(rule, memory=replace(rule.memory, required=False)) for rule in policy.rules)
        self._policy, self._digest = replace(policy, rules=hoped), digest
        self._tells_gpus_apart = any(rule.match.uuids is not None for rule in policy.rules)
        self._known: dict[tuple[object, ...], tuple[tuple[DevicePlan, ...], str | None]] = {}
        self.has_guessed = False  # what some device's slices promise now

    def plan(self, node: ClusterNode) -> NodeChange:
        """What the policy would do to one node."""
        cuts = [cut_now(gpu) for gpu in node.gpus]
        self.has_guessed |= any(now is not None and now.promise is None for now in cuts)
        kind = self._kind(node.gpus, cuts)
        if kind not in self._known:
            self._known[kind] = plan_devices(node.gpus, cuts, self._policy)
        plans, refused = self._known[kind]
        devices = [(gpu, its_plan) for gpu, its_plan in zip(node.gpus, plans, strict=True)]
        changing = [] if refused is not None else [(gpu, its_plan) for gpu, its_plan in devices if its_plan.is_change]
        return NodeChange(
            node=node.name,
            turn_after_s=None
            if node.held_back
            else turn_s(node.name, self._digest, 0.0, self._policy.rollout_window_s),
            changes=tuple(_change(gpu, its_plan) for gpu, its_plan in changing),
            in_the_way=tuple(
                _blocker(one) for gpu, its_plan in changing for one in gpu.holders if not its_plan.keeps(one)
            ),
            gpus_omitted=node.gpus_omitted,
            holders_omitted=node.holders_omitted,
            refusals=tuple(
                Refusal(uuid=gpu.uuid, device=its_plan.refusal[0], reason=its_plan.refusal[1])
                for gpu, its_plan in devices
                if its_plan.refusal is not None
            ),
            refused=refused,
        )

    def _kind(self, gpus: tuple[ClusterGpu, ...], cuts: list[CutNow | None]) -> tuple[object, ...]:
        """All that a plan depends on: equal for nodes of which the same becomes."""
        first: dict[str, int] = {}  # UUID of a GPU -> the place of its first device
        return tuple(
            (
                first.setdefault(gpu.gpu_uuid, place),
                gpu.index,
                gpu.product,
                gpu.memory_bytes,
                gpu.compute_capability,
                gpu.mig_enabled,
                gpu.mig_index,
                gpu.mig_profile,
                cuts[place],
                gpu.uuid if self._tells_gpus_apart or not _USUAL_UUID.fullmatch(gpu.uuid) else None,
            )
            for place, gpu in enumerate(gpus)
        )


_USUAL_UUID = re.compile(r"(GPU|MIG)-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""UUIDs of this form are equally fit for a device ID. Drivers have given others to MIG devices."""


def _change(gpu: ClusterGpu, its_plan: DevicePlan) -> DeviceChange:
    return DeviceChange(
        uuid=gpu.uuid,
        device=gpu_name(gpu),
        product=gpu.product,
        resource_before=its_plan.resource_before,
        before=its_plan.before,
        before_is_sure=its_plan.before_is_sure,
        resource_after=its_plan.resource_after,
        after=its_plan.after,
    )


def _blocker(one: HolderReport) -> Blocker:
    return Blocker(
        uuid=uuid_part(one.id),
        resource=one.resource,
        id=one.id,
        state=one.state,
        namespace=one.namespace,
        pod=one.pod,
        container=one.container,
    )


def _unknown(policy: Policy, told: Iterable[ClusterNode], planner: _Planner) -> Iterator[str]:
    required = [rule.where for rule in policy.rules if rule.memory.required]
    if required:
        yield f"whether each node can hold what {', '.join(required)} requires (memory.required): taken as given"
    if any(isinstance(rule.sharing, Mps) for rule in policy.rules):
        strange = {gpu.product or "GPUs without a name" for node in told for gpu in node.gpus if not capability(gpu)}
        if strange:
            yield f"the compute capability of {', '.join(sorted(strange))}, which MPS depends on: taken as 7.0"
    if planner.has_guessed:
        yield "what each slice of devices at fault, or in the middle of a change, promises: taken as it would become"
