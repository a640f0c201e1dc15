"""What can hold a container to its promise, one module each, strangers to each other. A new one gets a line here."""

from sharer.core.ports import Enforcer
from sharer.enforcers.driver import DriverEnforcer
from sharer.enforcers.mig import MigEnforcer
from sharer.enforcers.mps import MpsEnforcer

ENFORCERS: tuple[Enforcer, ...] = (MigEnforcer(), DriverEnforcer(), MpsEnforcer())
