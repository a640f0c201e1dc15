"""What one container holds: the sum of its slices, per device. Enforcers and container edits start from it."""

from __future__ import annotations

from collections.abc import Iterable

from sharer.core.device_id import DeviceId, Strategy
from sharer.core.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A container's part of one GPU or MIG device."""

    uuid: str
    strategy: Strategy
    memory_bytes: int | None  # None: no memory limit is promised
    percent: int | None  # of the SMs; None: no share is promised


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """A container's slices and what they add up to. Equal sets of IDs give equal grants."""

    ids: tuple[DeviceId, ...]  # by device, then replica
    shares: tuple[Share, ...]  # one per device, in the order of `ids`


def make_grant(ids: Iterable[DeviceId], order: Iterable[str] = ()) -> Grant:
    """Add up slices per device. Each ID counts once.

    `order` are the UUIDs in the order a container should see them (NVML's); unknown ones come last, by UUID.
    """
    rank = {uuid: number for number, uuid in enumerate(order)}
    ordered = sorted(set(ids), key=lambda i: (rank.get(i.uuid, len(rank)), i.uuid, i.strategy, i.replica, str(i)))
    by_uuid: dict[str, list[DeviceId]] = {}
    for device_id in ordered:
        by_uuid.setdefault(device_id.uuid, []).append(device_id)
    return Grant(ids=tuple(ordered), shares=tuple(_share(uuid, held) for uuid, held in by_uuid.items()))


def _share(uuid: str, held: list[DeviceId]) -> Share:
    limits = [device_id.limit_mib for device_id in held]
    percents = [device_id.percent for device_id in held]
    known_limits = [limit for limit in limits if limit is not None]
    known_percents = [percent for percent in percents if percent is not None]
    return Share(
        uuid=uuid,
        strategy=held[0].strategy,
        memory_bytes=sum(known_limits) * 2**20 if len(known_limits) == len(limits) else None,
        percent=min(100, sum(known_percents)) if len(known_percents) == len(percents) else None,
    )
