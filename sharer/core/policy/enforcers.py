"""Which means holds a promise on a device: the strongest of those that the policy names and that can.

The words of policies and reports are here. `sharer/enforcers` has a class for each, in the same order; a means that
this version knows and has no class for cannot hold anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum

from sharer.core.device_id import Strategy
from sharer.core.values import dataclass

MIG = "mig"
DRIVER = "driver"
MPS = "mps"
WATCH = "watch"

MEMORY_ENFORCERS = (MIG, DRIVER, MPS, WATCH)  # strongest first
COMPUTE_ENFORCERS = (MPS,)  # of a share that a policy can promise; a MIG device's is its own
WATCHING = frozenset({WATCH})  # sees that a promise was broken, and prevents nothing
LEAVABLE = frozenset({MPS})  # prevents it for one process, not for the container, and a process can leave it


class Promise(StrEnum):
    """What a slice can promise."""

    MEMORY = "memory"
    COMPUTE = "compute"


Reasons = Mapping[str, str | None]
"""An enforcer's name -> why it cannot hold a device; None: it can. One that is missing has not been asked."""

Availability = Mapping[str, Reasons]
"""UUID of a GPU or MIG device -> what can hold it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What is to hold a promise."""

    by: str | None  # None: nothing can
    instead_of: tuple[tuple[str, str], ...] = ()  # stronger ones that were wished for, and why they cannot

    @property
    def prevents(self) -> bool:
        """Whether a promise that is held so cannot be broken, rather than be seen to be."""
        return self.by is not None and self.by not in WATCHING | LEAVABLE

    @property
    def reason(self) -> str | None:
        """Why nothing stronger was chosen; None: nothing stronger was wished for."""
        return "; ".join(f"{name}: {why}" for name, why in self.instead_of) or None


def choose(wished: Iterable[str], reasons: Reasons, order: tuple[str, ...] = MEMORY_ENFORCERS) -> Choice:
    """The strongest of the enforcers that are wished for, whatever the order of the wishes.

    >>> choose(["watch", "driver"], {"driver": "cgroup v1", "watch": None})
    Choice(by='watch', instead_of=(('driver', 'cgroup v1'),))
    """
    names = {*wished}
    passed_over: list[tuple[str, str]] = []
    for name in order:
        if name not in names:
            continue
        why = reasons.get(name, "whether it can was not checked")
        if why is None:
            return Choice(by=name, instead_of=tuple(passed_over))
        passed_over.append((name, why))
    return Choice(by=None, instead_of=tuple(passed_over))


def why_not_held(wished: Iterable[str], reasons: Reasons) -> str | None:
    """Why nothing that is wished for can prevent that a promise of memory is broken; None: something can."""
    names = {*wished}
    choice = choose(names - WATCHING - LEAVABLE, reasons)
    if choice.by is not None:
        return None
    whys = [choice.reason, *(_LEFT[name] for name in sorted(names & LEAVABLE))]
    return "; ".join(why for why in whys if why is not None) or "the policy names nothing that could"


_LEFT = {MPS: "mps: its limit is one of each process and not of the container, and a process can leave it"}


def why_without_effect(name: str, strategy: Strategy, *, whole: bool) -> str | None:
    """Why an enforcer of memory can do nothing for slices made that way, on any node; None: nothing is against it.

    `whole`: a slice has its GPU or MIG device for itself.
    """
    if name == MIG and strategy is not Strategy.MIG:
        return "the slices are not MIG devices"
    if name == MIG and not whole:
        return "the slices share an instance, and that holds them only together"
    if name == DRIVER and strategy is Strategy.MIG:
        return "the driver takes no limits for MIG devices"
    if name == MPS and strategy is not Strategy.MPS:
        return "only clients of an MPS daemon are held by it, and this rule has another strategy"
    return None
