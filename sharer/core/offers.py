"""A resource as the kubelet sees it: which IDs are listed, which of them are healthy, and where they lie.

One health rule: an ID that the kubelet believes free while our evidence says that something lives on it is Unhealthy.
An ID with an owner is Unhealthy only for a fault of its GPU or an overdue drain: Unhealthy on a held ID defers
resizes, and rejects its crashed container at a kubelet restart (kubelet-contract §22).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import field

from sharer.core.change.transition import Listed, Listing
from sharer.core.device_id import Strategy, recognise, uuid_part
from sharer.core.edits import NodeFacts
from sharer.core.holders.evidence import SliceKey
from sharer.core.holders.ledger import Entry, Ledger, State
from sharer.core.inventory import Inventory, PhysicalGpu, Topology
from sharer.core.mps.service import MpsServices
from sharer.core.policy.model import Placement
from sharer.core.ports.kubelet import ListedDevice
from sharer.core.quantities import MIB
from sharer.core.slices.linked import Links, make_links
from sharer.core.slices.placement import Layout
from sharer.core.slices.plan import Plan, Slice
from sharer.core.unchanged import while_unchanged
from sharer.core.values import dataclass

GONE = "not there any more, or not yet: the driver does not list it"

Faults = Mapping[str, str]
"""UUID of a physical GPU or MIG device -> why nothing can run on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """One resource, ready to answer the kubelet from memory."""

    resource: str
    placement: Placement
    slices: Mapping[str, Slice]  # by ID text: everything that Allocate may be asked for, without foreign IDs
    devices: tuple[ListedDevice, ...]
    layout: Layout  # of the slices
    links: Links | None  # how well the GPUs are linked, in the layout's order; None: not a resource of whole GPUs


def find_faults(inventory: Inventory, facts: NodeFacts, given: Iterable[SliceKey] = ()) -> dict[str, str]:
    """Every GPU and MIG device on which nothing can run now, with the reason.

    `given` are slices that may be held: of a GPU that was gone when the agent started, or of a MIG device that died.
    """
    faults: dict[str, str] = {}
    for gpu in inventory.gpus:
        for uuid, lost in ((gpu.uuid, gpu.lost), *((mig.uuid, mig.lost or gpu.lost) for mig in gpu.mig_devices)):
            reason = lost or (facts.devices[uuid].unusable if uuid in facts.devices else None)
            if reason is not None:
                faults[uuid] = reason
    known = inventory.uuids
    return faults | {uuid: GONE for uuid in _devices_of(given) if uuid not in known}


@while_unchanged
def _devices_of(given: Iterable[SliceKey]) -> dict[str, None]:
    """The UUIDs in these slices' IDs, in order."""
    return dict.fromkeys(uuid_part(device_id) for _, device_id in given)


def fault_of(one: Slice, faults: Faults) -> str | None:
    """Why nothing can run on this slice; None: nothing is known against it."""
    return faults.get(one.id.uuid) or faults.get(one.gpu_uuid)


@dataclass(frozen=True, slots=True, kw_only=True)
class Obstacles:
    """What stands in the way of giving out slices, beside their holders."""

    faults: Faults = field(default_factory=dict)
    contested: Collection[str] = ()  # UUIDs of GPUs and MIG devices that another plugin offers too
    mps: MpsServices = field(default_factory=MpsServices)

    def let_through(self, key: SliceKey, uuid: str, one: Slice | None, listed: Listed, entry: Entry) -> bool:
        """Whether the kubelet is to believe that a slice can be given out. `one`: None for another plugin's ID.

        Free ones are withheld, too, where another plugin or no MPS daemon has the device.
        """
        fault = self.faults.get(uuid) if one is None else fault_of(one, self.faults)
        if fault is not None or entry.is_busy_for_nobody or listed.withdrawn_s is not None or listed.overdue:
            return False
        if entry.state is not State.OFFERED:
            return True
        return uuid not in self.contested and (one is None or self.mps.why_not(key[0], one.id) is None)


_NO_OBSTACLES = Obstacles()


def make_offers(
    plan: Plan,
    listing: Listing,
    ledger: Ledger,
    inventory: Inventory,
    topology: Topology,
    obstacles: Obstacles = _NO_OBSTACLES,
) -> dict[str, Offer]:
    """What each resource shows the kubelet and answers from, by resource name."""
    planned = {(resource.name, str(one.id)): one for resource in plan.resources for one in resource.slices}
    whole = {resource.name for resource in plan.resources if resource.strategy is Strategy.EXCLUSIVE}
    placements = {resource.name: resource.placement for resource in plan.resources}
    gpus = {uuid: gpu for gpu in inventory.gpus for uuid in gpu.uuids}
    by_resource: dict[str, list[tuple[SliceKey, Listed]]] = {name: [] for name in placements}
    for key, listed in listing.ids.items():
        by_resource.setdefault(key[0], []).append((key, listed))
    offers = {}
    for name, ids in by_resource.items():
        slices: dict[str, Slice] = {}
        healthy: list[bool] = []
        nodes: list[int | None] = []
        for key, listed in ids:
            one = planned.get(key) or _old_slice(key, gpus)
            uuid = uuid_part(key[1]) if one is None else one.id.uuid
            if one is not None:
                slices[key[1]] = one
            healthy.append(obstacles.let_through(key, uuid, one, listed, ledger.entry(key)))
            nodes.append(gpus[uuid].numa_node if uuid in gpus else None)
        if None in nodes:
            nodes = [None] * len(nodes)  # for all or for none: with some only, hints mislead (§14)
        layout = _layout(slices)
        offers[name] = Offer(
            resource=name,
            placement=placements.get(name, Placement.PACKED),
            slices=slices,
            devices=tuple(
                ListedDevice(id=key[1], healthy=fit, numa_node=node)
                for (key, _), fit, node in zip(ids, healthy, nodes, strict=True)
            ),
            layout=tuple(layout.values()),
            links=make_links(list(layout), topology, inventory) if name in whole else None,
        )
    return offers


def _layout(slices: Mapping[str, Slice]) -> dict[str, dict[str, int]]:
    """IDs and replicas of each GPU's or MIG device's slices, by UUID."""
    layout: dict[str, dict[str, int]] = {}
    for text, one in slices.items():
        layout.setdefault(one.id.uuid, {})[text] = one.id.replica
    return layout


def _old_slice(key: SliceKey, gpus: Mapping[str, PhysicalGpu]) -> Slice | None:
    """A slice of an earlier cut, from its ID alone; None: another plugin's ID."""
    device_id = recognise(key[1])
    if device_id is None:
        return None
    promise_bytes = None if device_id.limit_mib is None else device_id.limit_mib * MIB
    gpu_uuid = gpus[device_id.uuid].uuid if device_id.uuid in gpus else device_id.uuid
    return Slice(id=device_id, gpu_uuid=gpu_uuid, promise_bytes=promise_bytes)
