"""The node's GPUs through NVML, the driver's library.

driver      NvmlDriver: what the flows use; it puts the others together
session     NVML opened and closed; the GPUs that this session found
discovery   what exists: an Inventory
faults      XID events, liveness, recovery actions
limits      memory limits of cgroups
modes       compute modes
processes   who runs on which GPU or MIG device
topology    how GPUs are linked
calls       pynvml with types: every NVML function that sharer calls
errors      what NVML's errors mean
worker      the one thread that calls NVML, and how long it may take
library     where the driver's library is
"""

from sharer.adapters.nvml.driver import NvmlDriver
from sharer.adapters.nvml.library import InstalledLibrary, LibrarySource

__all__ = ["InstalledLibrary", "LibrarySource", "NvmlDriver"]
