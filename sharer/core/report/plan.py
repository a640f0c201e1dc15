"""The Plan and PolicyCheck documents: what a policy offers on a node, and whether it can be accepted (DESIGN §8).

Each document names its `kind`; `adapters/documents` writes the fields in camelCase. None is "unknown", never 0. What a
document needs is worked out here, so that table and JSON cannot say different things.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from sharer.core.device_id import DeviceId
from sharer.core.errors import PolicyError, Problem
from sharer.core.inventory import Inventory
from sharer.core.policy.model import Policy
from sharer.core.slices.plan import Plan, Refusal, ResourcePlan, Slice
from sharer.core.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSlices:
    """What one GPU or MIG device offers under one resource name."""

    uuid: str  # of the MIG device, or else of the GPU
    gpu_uuid: str
    gpu_index: int
    product: str | None
    mig_profile: str | None  # null: the GPU is not offered as a MIG device
    slices: int
    promise_bytes: int | None  # of each slice; null: no memory is promised
    compute_percent: int | None  # of each slice; null: no share is promised
    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceSlices:
    """What is offered under one resource name."""

    name: str
    strategy: str
    placement: str
    request_max: int | None  # slices per container; null: as many as there are
    slices: int
    devices: tuple[DeviceSlices, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Offered:
    """One side of a change."""

    strategy: str
    slices: int
    promise_bytes: int | None
    compute_percent: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What a change of policy does to one GPU or MIG device under one resource name."""

    resource: str
    uuid: str
    before: Offered | None  # null: this device offered nothing under this name
    after: Offered | None  # null: it will offer nothing
    ids_going: tuple[str, ...]
    ids_coming: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanReport:
    """What a policy offers on a node."""

    kind: ClassVar[str] = "Plan"
    policy: str  # where it was read from
    resources: tuple[ResourceSlices, ...]
    refusals: tuple[Refusal, ...]
    warnings: tuple[str, ...]
    changes: tuple[Change, ...] | None = None  # against an older policy; null: it was compared with none


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedPolicy:
    """The verdict on one policy."""

    policy: str  # where it was read from
    accepted: bool
    problems: tuple[Problem, ...] = ()
    warnings: tuple[str, ...] = ()
    refusals: tuple[Refusal, ...] | None = None  # GPUs that would offer nothing; null: no inventory was given


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyCheckReport:
    """The verdicts on some policies, in the order given."""

    kind: ClassVar[str] = "PolicyCheck"
    policies: tuple[CheckedPolicy, ...]


def report_plan(
    policy: Policy, plan: Plan, inventory: Inventory, changes: tuple[Change, ...] | None = None
) -> PlanReport:
    """The document for a policy's plan on an inventory."""
    return PlanReport(
        policy=policy.source,
        resources=tuple(_report_resource(resource, inventory) for resource in plan.resources),
        refusals=plan.refusals,
        warnings=plan.warnings,
        changes=changes,
    )


def report_changes(old: Plan, new: Plan) -> tuple[Change, ...]:
    """What differs between two plans for one inventory, in order of resource, then device. Empty: nothing does.

    An ID says what it promises, so a changed promise shows as IDs that go and IDs that come.
    """
    before, after = _by_device(old), _by_device(new)
    changes = []
    for key in sorted({**before, **after}, key=lambda key: key[0]):  # stable: devices stay in the inventory's order
        had, will_have = before.get(key, ()), after.get(key, ())
        going = {one.id for one in had} - {one.id for one in will_have}
        coming = {one.id for one in will_have} - {one.id for one in had}
        if going or coming:
            changes.append(
                Change(
                    resource=key[0],
                    uuid=key[1],
                    before=offered(had),
                    after=offered(will_have),
                    ids_going=_texts(going),
                    ids_coming=_texts(coming),
                )
            )
    return tuple(changes)


def accepted_policy(policy: Policy, plan: Plan | None) -> CheckedPolicy:
    """The verdict on a policy without problems; `plan` is what it gives on the inventory, if there was one."""
    return CheckedPolicy(
        policy=policy.source,
        accepted=True,
        warnings=policy.warnings if plan is None else plan.warnings,
        refusals=None if plan is None else plan.refusals,
    )


def refused_policy(source: str, error: PolicyError) -> CheckedPolicy:
    """The verdict on a policy that cannot be accepted."""
    return CheckedPolicy(policy=source, accepted=False, problems=error.problems)


def slices_by_device(resource: ResourcePlan) -> dict[str, list[Slice]]:
    """A resource's slices by the UUID of their GPU or MIG device, in the plan's order."""
    by_uuid: dict[str, list[Slice]] = {}
    for one in resource.slices:
        by_uuid.setdefault(one.id.uuid, []).append(one)
    return by_uuid


def _report_resource(resource: ResourcePlan, inventory: Inventory) -> ResourceSlices:
    return ResourceSlices(
        name=resource.name,
        strategy=resource.strategy.policy_name,
        placement=resource.placement.value,
        request_max=resource.request_max,
        slices=len(resource.slices),
        devices=tuple(_device_slices(uuid, slices, inventory) for uuid, slices in slices_by_device(resource).items()),
    )


def _device_slices(uuid: str, slices: list[Slice], inventory: Inventory) -> DeviceSlices:
    gpu = inventory.gpu(uuid)
    assert gpu is not None, "a plan only has slices of what its inventory holds"
    mig = next((mig for mig in gpu.mig_devices if mig.uuid == uuid), None)
    return DeviceSlices(
        uuid=uuid,
        gpu_uuid=gpu.uuid,
        gpu_index=gpu.index,
        product=gpu.product,
        mig_profile=None if mig is None else mig.profile,
        slices=len(slices),
        promise_bytes=slices[0].promise_bytes,
        compute_percent=slices[0].id.percent,
        ids=tuple(str(one.id) for one in slices),
    )


def _by_device(plan: Plan) -> dict[tuple[str, str], list[Slice]]:
    return {
        (resource.name, uuid): slices
        for resource in plan.resources
        for uuid, slices in slices_by_device(resource).items()
    }


def offered(slices: Sequence[Slice]) -> Offered | None:
    """What the slices of one device under one name come to; None: there are none."""
    if not slices:
        return None
    first = slices[0]
    return Offered(
        strategy=first.id.strategy.policy_name,
        slices=len(slices),
        promise_bytes=first.promise_bytes,
        compute_percent=first.id.percent,
    )


def _texts(ids: Iterable[DeviceId]) -> tuple[str, ...]:
    return tuple(str(one) for one in sorted(ids, key=lambda one: (one.uuid, one.strategy, one.replica, str(one))))
