"""How GPUs get into containers on this host: its device nodes, its CDI specs, and our own ones."""

from sharer.adapters.injection.facts import InjectionFacts
from sharer.adapters.injection.paths import HostPaths

__all__ = ["HostPaths", "InjectionFacts"]
