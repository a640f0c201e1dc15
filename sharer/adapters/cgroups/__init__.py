"""The cgroups of pods: who lives, and where a container's limits are put.

presence    Cgroups: which pods' cgroups exist, and whether a process lives in them
containers  CgroupTree: each pod's containers, their names, when they come and go
tree        what kind of hierarchy it is, where pods are in it, and how its files and folders are read
"""

from sharer.adapters.cgroups.containers import CgroupTree
from sharer.adapters.cgroups.presence import Cgroups
from sharer.adapters.cgroups.tree import cgroup_version

__all__ = ["CgroupTree", "Cgroups", "cgroup_version"]
