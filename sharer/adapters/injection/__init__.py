"""How GPUs get into containers on this host: its device nodes, its CDI specs, and our own ones.

facts        InjectionFacts: what the flows use; it puts the others together
paths        where this process sees the host, and how the host calls what we see
nodes        device nodes: which ones a container needs, and which are missing
spec_dirs    which CDI names a container runtime would find
outdated     whether what they stand for is still true of this node
slice_specs  our own CDI specs, one file per device
spec_format  the text of a CDI spec
"""

from sharer.adapters.injection.facts import InjectionFacts
from sharer.adapters.injection.paths import HostPaths

__all__ = ["HostPaths", "InjectionFacts"]
