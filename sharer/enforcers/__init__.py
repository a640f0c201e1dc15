"""What can hold a container to its promise, one module each, strangers to each other. A new one gets a line here."""

from __future__ import annotations

from sharer.core.enforcer import Enforcer, Reach
from sharer.enforcers.driver import DriverEnforcer
from sharer.enforcers.mig import MigEnforcer
from sharer.enforcers.mps import MpsEnforcer
from sharer.enforcers.watch import WatchEnforcer

ENFORCERS = (MigEnforcer, DriverEnforcer, MpsEnforcer, WatchEnforcer)
"""Strongest first, as in `core/policy/enforcers`. The classes by themselves give a container its edits."""


def make_enforcers(reach: Reach) -> tuple[Enforcer, ...]:
    """All of them, ready to hold containers of this node."""
    return tuple(make(reach) for make in ENFORCERS)
