"""The driver's own memory limit, per cgroup (r615 and newer).

NVIDIA's container toolkit can set it before a container's first instruction: a hook of its CDI specs reads two
variables. It knows one value for all GPUs of the container, and an image can forge the variables (gpu-limits §2), so
this is a convenience that spares the container an unlimited moment; the limit counts once it is read back.

The request is the soft limit. It is 0: a soft limit is added to every ancestor cgroup and outlives the container.
Whether every version of the hook takes a request of 0 is not known; `tests/hardware` is to ask one.
"""

from __future__ import annotations

from sharer.core.edits import ContainerEdits, DeviceFacts, Injection, NodeFacts
from sharer.core.grant import Grant
from sharer.core.quantities import MIB

_UNKNOWN = DeviceFacts()


class DriverEnforcer:
    """Holds every kind of device memory, at allocation time. Way out: managed memory."""

    def edits(self, grant: Grant, facts: NodeFacts) -> ContainerEdits:
        """Both variables or neither, in whole MiB; only where a check has shown the driver to hold limits."""
        limits = {share.memory_bytes for share in grant.shares}
        limit_bytes = limits.pop() if len(limits) == 1 else None
        held = all(facts.devices.get(share.uuid, _UNKNOWN).driver_limit for share in grant.shares)
        if limit_bytes is None or not held or Injection.CDI not in facts.injection:
            return ContainerEdits()
        pair = (("NVIDIA_GPU_MEMORY_LIMIT", str(limit_bytes // MIB)), ("NVIDIA_GPU_MEMORY_REQUEST", "0"))
        return ContainerEdits(env=pair)
