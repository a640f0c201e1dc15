"""One rule for counting slices, wherever they are counted: what is held, free, draining, unhealthy.

Each slice is judged by itself and then counted; nothing is a difference of two counts, so nothing can be negative.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain

from sharer.core.change.transition import Listed, Listing
from sharer.core.device_id import uuid_part
from sharer.core.holders.evidence import SliceKey
from sharer.core.holders.ledger import Entry, Ledger, State
from sharer.core.mps.service import MpsServices
from sharer.core.offers import Faults, Offer, fault_of
from sharer.core.slices.plan import Plan, Slice
from sharer.core.values import dataclass

_HELD = (State.ALLOCATED, State.HELD, State.RELEASING)


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceNow:
    """One slice that the plan wants, the kubelet is shown, or somebody has something on."""

    key: SliceKey
    slice: Slice | None  # None: another plugin's ID
    entry: Entry
    listed: Listed | None  # None: the kubelet is not shown it
    healthy: bool  # as the kubelet is shown it
    planned: bool  # of the policy in force
    fault: str | None  # of its GPU
    unserved: str | None = None  # why it is not given out though its GPU is fine: no MPS daemon serves it

    @property
    def uuid(self) -> str:
        """Of the GPU or MIG device: what stands before `::`, which another plugin's IDs have too."""
        return uuid_part(self.key[1])

    @property
    def promise_bytes(self) -> int | None:
        """What it promises; None: no memory, or it is another plugin's."""
        return None if self.slice is None else self.slice.promise_bytes

    @property
    def is_held(self) -> bool:
        """It has an owner, or was allocated for one."""
        return self.entry.state in _HELD

    @property
    def is_quarantined(self) -> bool:
        """It has no owner, and something of a former one may still live."""
        return self.entry.state is State.QUARANTINED

    @property
    def is_draining(self) -> bool:
        """It is held, and of an earlier cut."""
        return self.is_held and not self.planned

    @property
    def is_free(self) -> bool:
        """A container can be given it now."""
        return self.planned and self.healthy and self.entry.state is State.OFFERED

    @property
    def is_waiting(self) -> bool:
        """The plan wants it and nobody holds it, and there is no room yet to list it, or no more."""
        shown = self.listed is not None and self.listed.withdrawn_s is None
        return self.planned and not shown and self.entry.state is State.OFFERED

    @property
    def is_promised(self) -> bool:
        """Its promise counts: it could be given out, is held, or something of a former owner is on it."""
        return self.healthy or self.is_held or len(self.entry.remnants) > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """How many slices of some set are what. Of one resource, or on one GPU."""

    slices: int  # that the plan wants
    held: int
    free: int
    over_by: int  # held above what is healthy; 0 where the plan wants none, so that all of them drain
    quarantined: int
    draining: int
    unhealthy: int  # that the plan wants, on a GPU at fault, held or not; and free ones that no MPS daemon serves
    waiting: int


def slices_now(
    plan: Plan,
    listing: Listing,
    ledger: Ledger,
    offers: Mapping[str, Offer],
    faults: Faults,
    mps: MpsServices | None = None,
) -> tuple[SliceNow, ...]:
    """Every slice: the plan's in its order, then the others in the order in which they are listed, then by name."""
    return tuple(_slices_now(plan, listing, ledger, offers, faults, mps or MpsServices()))


def _slices_now(
    plan: Plan, listing: Listing, ledger: Ledger, offers: Mapping[str, Offer], faults: Faults, mps: MpsServices
) -> Iterator[SliceNow]:
    planned = {(resource.name, str(one.id)): one for resource in plan.resources for one in resource.slices}
    known = {name: offer.slices for name, offer in offers.items()}
    healthy = {name: {device.id for device in offer.devices if device.healthy} for name, offer in offers.items()}
    for key in dict.fromkeys(chain(planned, listing.ids, sorted(ledger.entries))):
        name, text = key
        one = planned.get(key) or known.get(name, {}).get(text)
        uuid = uuid_part(text)
        entry, listed = ledger.entry(key), listing.ids.get(key)
        is_free = one is not None and entry.state is State.OFFERED and listed is not None
        yield SliceNow(
            key=key,
            slice=one,
            entry=entry,
            listed=listed,
            healthy=text in healthy.get(name, ()),
            planned=key in planned,
            fault=faults.get(uuid) if one is None else fault_of(one, faults),
            unserved=mps.why_not(name, one.id) if one is not None and is_free else None,
        )


def count(slices: Iterable[SliceNow]) -> Counts:
    """Count them."""
    every = tuple(slices)
    planned = sum(one.planned for one in every)
    held = sum(one.is_held for one in every)
    unhealthy = sum(one.planned and (one.fault or one.unserved) is not None for one in every)
    return Counts(
        slices=planned,
        held=held,
        free=sum(one.is_free for one in every),
        over_by=max(0, held - (planned - unhealthy)) if planned else 0,
        quarantined=sum(one.is_quarantined for one in every),
        draining=sum(one.is_draining for one in every),
        unhealthy=unhealthy,
        waiting=sum(one.is_waiting for one in every),
    )
