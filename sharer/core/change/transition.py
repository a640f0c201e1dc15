"""How a live node gets from what is listed to what is planned, one step at a time (DESIGN §3).

The kubelet must never lose an ID that is held or being allocated: that can crash it (kubelet-contract §3). So an ID
that is not wanted any more is *withdrawn* in two steps when it is free (listed Unhealthy, then dropped), and *drains*
while it is held: Healthy for the policy's patience, then Unhealthy, so that its next release is final. Not so where an
init container has it on record: that would be the end of a pod that runs, at the kubelet's next start.

`step` works out the whole list from the plan, the ledger and what is listed now. It keeps no other memory, so a
restart of agent or kubelet at any moment ends in the same place: which old IDs are held, the kubelet's checkpoint and
`List` say, and what they promised, the IDs say.

Per GPU or MIG device, old and new together: as many slices as the new cut has (or as old ones are held, if more), no
more promised memory and compute than there is, no second strategy, no slices with and without a limit beside each
other, no two MPS control daemons, and no ID under two names. Held slices come first, then the lowest replicas.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Set
from dataclasses import field

from sharer.core.device_id import DeviceId, Strategy, recognise, uuid_part
from sharer.core.holders.evidence import SliceKey
from sharer.core.holders.ledger import Ledger, State
from sharer.core.quantities import MIB
from sharer.core.slices.plan import Plan, Room
from sharer.core.values import dataclass, replace

CYCLE_S = 4.0  # between two looks of an agent: a changed policy, a late driver, a GPU that is lost are noticed by then
DROP_AFTER_S = 30.0  # Unhealthy for at least this long before an ID is dropped
DROP_AFTER_READINGS = 2  # and so many readings of `List` and checkpoint without a holder
SETTLED_AFTER_S = 2.0  # the kubelet has taken in by then that an ID is Unhealthy: it starts no Allocate for it


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """One ID that the kubelet is shown, and since when it is on its way out."""

    withdrawn_s: float | None = None  # listed Unhealthy in order to be dropped
    withdrawn_list: int = 0  # serial of the last `List` then
    withdrawn_checkpoint: int = 0  # serial of the last checkpoint then
    draining_s: float | None = None  # held, and not in the plan
    overdue: bool = False  # has drained for longer than the patience


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Every ID that is shown to the kubelet now, in the order in which it is listed."""

    ids: Mapping[SliceKey, Listed] = field(default_factory=dict)
    waiting: Mapping[str, str] = field(default_factory=dict)  # UUID -> why slices of the plan are not listed yet
    is_settled: bool = False  # whether it stays so for as long as plan and ledger do, however much time passes


_WANTED = Listed()


def step(listing: Listing, plan: Plan, ledger: Ledger, now_s: float, *, patience_s: float) -> Listing:
    """What to list now. Twice with the same input is the same as once."""
    known = {key: key for key in ledger.entries}  # so that a key is in memory once
    planned = (((resource.name, str(one.id)), one.id) for resource in plan.resources for one in resource.slices)
    wanted = {known.get(key, key): device_id for key, device_id in planned}
    occupied = _occupied(ledger, {resource.name for resource in plan.resources})
    devices = _by_device(wanted, listing, occupied)
    on_record = _on_record_for_init_containers(ledger, occupied - wanted.keys())
    remnant_bytes = _remnant_bytes(ledger)
    ids: dict[SliceKey, Listed] = {}
    waiting: dict[str, str] = {}
    old: dict[SliceKey, Listed] = {}
    for uuid, keys in devices.items():
        allowed, reason = _allowed(
            keys, wanted, listing, occupied, plan.rooms.get(uuid), remnant_bytes.get(uuid, 0), now_s
        )
        if reason is not None:
            waiting[uuid] = reason
        for key in keys:
            if key in allowed:
                ids[key] = _WANTED
            elif key in occupied:
                key_patience_s = math.inf if key in on_record else patience_s
                old[key] = _drain(listing.ids.get(key, _WANTED), key not in wanted, now_s, key_patience_s)
            elif key in listing.ids and (kept := _withdraw(listing.ids[key], ledger, now_s)) is not None:
                old[key] = kept
    is_settled = not (old or waiting or _is_young(ledger))
    return Listing(ids=_in_plan_order(ids, old, wanted), waiting=waiting, is_settled=is_settled)


def _is_young(ledger: Ledger) -> bool:
    """Whether `List` was not read often enough to call anything stale."""
    listed = ledger.evidence.listed
    return listed is None or listed.serial < DROP_AFTER_READINGS


def _occupied(ledger: Ledger, resources: set[str]) -> set[SliceKey]:
    """Slices that somebody holds, may hold, or has left something on; of our resources, or with an ID of our form.

    Until `List` was read twice, everything that the checkpoint names counts: nothing of it can be called stale.
    """
    keys = {key for key, entry in ledger.entries.items() if entry.state is not State.OFFERED}
    checkpoint = ledger.evidence.checkpoint
    if checkpoint is not None and _is_young(ledger):
        keys |= {(one.resource, device_id) for one in checkpoint.entries for device_id in one.ids}
    return {key for key in keys if key[0] in resources or recognise(key[1]) is not None}


def _on_record_for_init_containers(ledger: Ledger, keys: Set[SliceKey]) -> set[SliceKey]:
    """Those of these slices that a container of their owner's pod has on record that will not run again.

    A kubelet that starts admits each pod anew. A container that runs is left alone; of any other one every device on
    record has to be Healthy, or the pod is rejected with all that runs in it (kubelet-contract §5). `List` names all
    containers but regular init containers; the checkpoint names these too.
    """
    listed, checkpoint = ledger.evidence.listed, ledger.evidence.checkpoint
    if not keys or listed is None or checkpoint is None:
        return set()
    found: set[SliceKey] = set()
    for one in checkpoint.entries:
        for key in keys & {(one.resource, device_id) for device_id in one.ids}:
            entry = ledger.entry(key)
            if entry.state is not State.HELD or entry.owner is None or entry.owner.uid != one.uid:
                continue
            if entry.owner.container != one.container or key not in listed.holders:
                found.add(key)
    return found


def _remnant_bytes(ledger: Ledger) -> dict[str, int]:
    """By device, what remnants were seen to use of slices that have another owner by now: no promise covers it."""
    processes = ledger.evidence.processes
    if processes is None:
        return {}
    remains = {
        (uuid_part(device_id), remnant.holder.uid)
        for (_, device_id), entry in ledger.entries.items()
        if entry.owner is not None
        for remnant in entry.remnants
    }
    remnant_bytes: dict[str, int] = {}
    for process in processes.processes if remains else ():
        if (process.gpu_uuid, process.uid) in remains:
            remnant_bytes[process.gpu_uuid] = remnant_bytes.get(process.gpu_uuid, 0) + (process.used_bytes or 0)
    return remnant_bytes


def _by_device(
    wanted: Mapping[SliceKey, DeviceId], listing: Listing, occupied: set[SliceKey]
) -> dict[str, list[SliceKey]]:
    """All keys by the UUID in front of `::`, which foreign IDs have too: as the plan has them, then by name."""
    devices: dict[str, list[SliceKey]] = {}
    for key, device_id in wanted.items():
        devices.setdefault(device_id.uuid, []).append(key)
    for key in sorted((listing.ids.keys() | occupied) - wanted.keys()):
        devices.setdefault(uuid_part(key[1]), []).append(key)
    return devices


def _allowed(
    keys: list[SliceKey],
    wanted: Mapping[SliceKey, DeviceId],
    listing: Listing,
    occupied: set[SliceKey],
    room: Room | None,
    remnant_bytes: int,
    now_s: float,
) -> tuple[set[SliceKey], str | None]:
    """The planned slices of one device that may be listed now, and why the others wait (None: there are no others)."""
    if room is None:
        return set(), None
    old = sorted(key for key in keys if key not in wanted and (key in occupied or _is_unsettled(key, listing, now_s)))
    before = _Taken(promised_bytes=remnant_bytes)
    new = next(((key, wanted[key]) for key in keys if key in wanted), None)
    for key in old:
        parsed = recognise(key[1])
        if parsed is None:
            return set(), f"{key[1]} of another plugin is still held"
        before.add(parsed)
        if new is not None and (why := _why_not_beside(parsed, key[0], room, new[1], new[0][0])) is not None:
            return set(), f"{key[1]} is still held, and {why}"
    allowed: set[SliceKey] = set()
    taken = {device_id for _, device_id in old}  # a renamed resource: no ID is given out under two names
    mine = [key for key in keys if key in wanted]
    for key in sorted(mine, key=lambda key: (key not in occupied, wanted[key].replica)):
        if key in occupied or (key[1] not in taken and before.has_room_for(wanted[key], room)):
            before.add(wanted[key])
            allowed.add(key)
    left = len(mine) - len(allowed)
    return allowed, f"{left} slices of the new cut wait for {len(old)} of the old one" if left else None


def _why_not_beside(old: DeviceId, old_name: str, room: Room, new: DeviceId, new_name: str) -> str | None:
    """Why slices of the new cut cannot be listed beside this old one; None: nothing is against it."""
    if old.strategy is not room.strategy:
        return "a GPU changes its strategy only when idle"
    if (old.limit_mib is None) != (room.promisable_bytes is None):
        return "slices with and without a limit never share a GPU"
    if room.strategy is Strategy.MPS and old_name != new_name:
        return "a GPU is served by one MPS control daemon at a time, one for each resource name"
    if room.is_uniform and (old.limit_mib, old.percent) != (new.limit_mib, new.percent):
        return "its MPS control daemon has one limit for all clients of a GPU"
    return None


def _is_unsettled(key: SliceKey, listing: Listing, now_s: float) -> bool:
    """Whether an ID is listed Healthy, or was until a moment ago: an Allocate for it may be on its way."""
    listed = listing.ids.get(key)
    return listed is not None and (listed.withdrawn_s is None or now_s - listed.withdrawn_s < SETTLED_AFTER_S)


@dataclass(slots=True)
class _Taken:
    """What is taken of one device so far."""

    slices: int = 0
    promised_bytes: int = 0
    percent: int = 0

    def add(self, device_id: DeviceId) -> None:
        self.slices += 1
        self.promised_bytes += (device_id.limit_mib or 0) * MIB
        self.percent += device_id.percent or 0

    def has_room_for(self, device_id: DeviceId, room: Room) -> bool:
        bytes_after = self.promised_bytes + (device_id.limit_mib or 0) * MIB
        return (
            self.slices < room.slices
            and (room.promisable_bytes is None or bytes_after <= room.promisable_bytes)
            and self.percent + (device_id.percent or 0) <= 100
        )


def _drain(listed: Listed, unplanned: bool, now_s: float, patience_s: float) -> Listed:
    since_s = now_s if listed.draining_s is None else listed.draining_s
    if not unplanned:
        return Listed()
    return Listed(draining_s=since_s, overdue=now_s - since_s >= patience_s)


def _withdraw(listed: Listed, ledger: Ledger, now_s: float) -> Listed | None:
    """The next step of taking a free ID off the list; None: drop it."""
    evidence = ledger.evidence
    list_serial = evidence.listed.serial if evidence.listed is not None else 0
    checkpoint_serial = evidence.checkpoint.serial if evidence.checkpoint is not None else 0
    if listed.withdrawn_s is None:
        return replace(Listed(), withdrawn_s=now_s, withdrawn_list=list_serial, withdrawn_checkpoint=checkpoint_serial)
    seen = min(list_serial - listed.withdrawn_list, checkpoint_serial - listed.withdrawn_checkpoint)
    return None if now_s - listed.withdrawn_s >= DROP_AFTER_S and seen >= DROP_AFTER_READINGS else listed


def _in_plan_order(
    ids: Mapping[SliceKey, Listed], old: Mapping[SliceKey, Listed], wanted: Mapping[SliceKey, DeviceId]
) -> dict[SliceKey, Listed]:
    """Planned IDs as the plan has them, then the others by name: the same list however it came about."""
    return {key: ids[key] for key in wanted if key in ids} | {key: old[key] for key in sorted(old)}
