"""What the node's MPS control daemons are to serve, and which GPU belongs to which of them.

It follows from what is listed, not from the plan alone: slices of an earlier cut that are held are listed until they
are free, and their containers need their daemon for as long. Those that are free and withdrawn count for nothing,
though they are listed for a while: slices of another kind may be in their place by then, and whoever gets those finds
a GPU in exclusive compute mode (bug case P24) or another daemon on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sharer.core.change.transition import Listing
from sharer.core.device_id import DeviceId, Strategy, recognise
from sharer.core.inventory import Inventory
from sharer.core.limits.limits import Terms
from sharer.core.mps.state import MpsWanted
from sharer.core.policy.model import Mps, Policy, resource_for
from sharer.core.slices.plan import rules_by_device


def mps_wanted(
    listing: Listing, inventory: Inventory | None, policy: Policy | None, terms: Mapping[str, Terms]
) -> tuple[MpsWanted, ...]:
    """What each daemon is to serve, by name of the resource; none where no MPS slice is listed.

    Memory is MPS's to hold unless the driver holds it on every GPU of the resource.
    """
    slices: dict[str, dict[str, list[str]]] = {}
    for resource, device_id in _listed(listing):
        slices.setdefault(resource, {}).setdefault(device_id.uuid, []).append(str(device_id))
    users = {resource: mps.user_id for resource, _, mps in _planned(inventory, policy)} if slices else {}
    return tuple(
        MpsWanted(
            resource=resource,
            slices={uuid: tuple(ids) for uuid, ids in by_gpu.items()},
            limits_memory=not all(uuid in terms and terms[uuid].is_held_by_driver for uuid in by_gpu),
            user_id=users.get(resource),
        )
        for resource, by_gpu in sorted(slices.items())
    )


def mps_gpus(listing: Listing, inventory: Inventory | None, policy: Policy | None) -> dict[str, dict[str, None]]:
    """The GPUs of each MPS resource, by UUID, in order: those that the policy gives it, and those it is listed on."""
    gpus: dict[str, dict[str, None]] = {}
    for resource, uuid, _ in _planned(inventory, policy):
        gpus.setdefault(resource, {})[uuid] = None
    for resource, device_id in _listed(listing):
        gpus.setdefault(resource, {})[device_id.uuid] = None
    return gpus


def serving(listing: Listing, inventory: Inventory | None, policy: Policy | None) -> dict[str, str]:
    """UUID of a GPU -> the resource whose daemon serves it: the one that is listed on it, else the policy's."""
    planned = {uuid: resource for resource, uuid, _ in _planned(inventory, policy)}
    return planned | {device_id.uuid: resource for resource, device_id in _listed(listing)}


def _listed(listing: Listing) -> Iterator[tuple[str, DeviceId]]:
    for (resource, text), listed in listing.ids.items():
        device_id = recognise(text)
        if listed.withdrawn_s is None and device_id is not None and device_id.strategy is Strategy.MPS:
            yield resource, device_id


def _planned(inventory: Inventory | None, policy: Policy | None) -> Iterator[tuple[str, str, Mps]]:
    if inventory is None or policy is None or not any(isinstance(rule.sharing, Mps) for rule in policy.rules):
        return
    for uuid, rule in rules_by_device(inventory, policy).items():
        if isinstance(rule.sharing, Mps):
            yield resource_for(rule, None), uuid, rule.sharing
