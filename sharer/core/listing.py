"""A resource as the kubelet sees it: which IDs are listed, which of them are healthy, and where they lie."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from sharer.core.edits import NodeFacts
from sharer.core.inventory import Inventory
from sharer.core.placement import Place
from sharer.core.plan import ResourcePlan, Slice
from sharer.core.policy import Placement
from sharer.core.ports import ListedDevice

Faults = Mapping[str, str]
"""UUID of a physical GPU or MIG device -> why nothing can run on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """One resource, ready to answer the kubelet from memory."""

    resource: str
    placement: Placement
    slices: Mapping[str, Slice]  # by ID text; the retired ones too, last
    devices: tuple[ListedDevice, ...]  # in the order of `slices`
    places: Mapping[str, Place]
    totals: tuple[int, ...]  # slices per GPU or MIG device, by rank
    retired: frozenset[str]  # offered before, not planned any more; listed Unhealthy, never dropped while we run


def find_faults(inventory: Inventory, facts: NodeFacts) -> dict[str, str]:
    """Every GPU and MIG device on which nothing can run now, with the reason."""
    faults = {}
    for gpu in inventory.gpus:
        for uuid, lost in ((gpu.uuid, gpu.lost), *((mig.uuid, mig.lost or gpu.lost) for mig in gpu.mig_devices)):
            reason = lost or (facts.devices[uuid].unusable if uuid in facts.devices else None)
            if reason is not None:
                faults[uuid] = reason
    return faults


def make_offer(plan: ResourcePlan, inventory: Inventory, faults: Faults, retired: Iterable[Slice] = ()) -> Offer:
    """List a resource's slices. `retired` ones were offered before under this name and are in no plan any more."""
    planned = {str(one.id): one for one in plan.slices}
    old = {str(one.id): one for one in retired if str(one.id) not in planned}
    slices = planned | old
    ranks = {uuid: rank for rank, uuid in enumerate(dict.fromkeys(one.id.uuid for one in slices.values()))}
    totals = [0] * len(ranks)
    for one in slices.values():
        totals[ranks[one.id.uuid]] += 1
    return Offer(
        resource=plan.name,
        placement=plan.placement,
        slices=slices,
        devices=_devices(slices, inventory, faults, old.keys()),
        places={text: Place(ranks[one.id.uuid], one.id.replica) for text, one in slices.items()},
        totals=tuple(totals),
        retired=frozenset(old),
    )


def with_faults(offer: Offer, inventory: Inventory, faults: Faults) -> Offer:
    """The same offer after a change of health."""
    return replace(offer, devices=_devices(offer.slices, inventory, faults, offer.retired))


def fault_of(one: Slice, faults: Faults) -> str | None:
    """Why nothing can run on this slice; None: nothing is known against it."""
    return faults.get(one.id.uuid) or faults.get(one.gpu_uuid)


def _devices(
    slices: Mapping[str, Slice], inventory: Inventory, faults: Faults, retired: Iterable[str]
) -> tuple[ListedDevice, ...]:
    """NUMA nodes for all slices of a resource or for none: with some only, hints mislead (kubelet-contract §14)."""
    nodes = {gpu.uuid: gpu.numa_node for gpu in inventory.gpus}
    if any(nodes.get(one.gpu_uuid) is None for one in slices.values()):
        nodes = {}
    gone = frozenset(retired)
    return tuple(
        ListedDevice(
            id=text,
            healthy=text not in gone and fault_of(one, faults) is None,
            numa_node=nodes.get(one.gpu_uuid),
        )
        for text, one in slices.items()
    )
