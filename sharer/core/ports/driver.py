"""What the NVIDIA driver is asked of the node's GPUs: what there is, how it is linked, whether it is well."""

from __future__ import annotations

from typing import Protocol

from sharer.core.inventory import Inventory, Topology
from sharer.core.values import dataclass


class GpuDriver(Protocol):
    """The node's GPUs, as the driver reports them."""

    def discover(self) -> Inventory:
        """Everything that exists now. Raises NodeError while the driver is missing, late, mismatched or hanging."""
        ...


class Interruptible(Protocol):
    """Something that may keep whoever asks it waiting."""

    def interrupt(self) -> None:
        """Let nobody wait any longer."""
        ...


class Pausable(Protocol):
    """A driver that can be let go of for a while."""

    def pause(self, reason: str) -> None:
        """Close everything and answer nobody: who asks is told the reason, as a NodeError. Again: see that it is so.

        Raises NodeError if the driver does not let go soon.
        """
        ...

    def resume(self) -> None:
        """Answer again; the next question opens what it needs."""
        ...


class TopologySource(Protocol):
    """How the node's GPUs are linked."""

    def topology(self) -> Topology:
        """Every pair that can be asked. Slow on some drivers. Raises NodeError if the driver does not answer."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class XidEvent:
    """The driver reported an XID: an error number of NVIDIA's catalogue."""

    gpu_uuid: str | None  # of the physical GPU; None: the driver did not say which
    gpu_instance_id: int | None  # None: not on a MIG device (NVML's 0xFFFFFFFF)
    compute_instance_id: int | None
    xid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSigns:
    """What one look at a GPU says about its health. Cheap: no full discovery."""

    uuid: str
    lost: str | None  # None: it answers; otherwise the driver's reason
    monitored: bool | None  # its XIDs reach us; False: it cannot report any; None: asking failed
    monitored_problem: str | None  # why asking failed
    recovery_action: str | None  # "none", "GPU reset", "node reboot", …; None: this driver does not say


class HealthSource(Protocol):
    """Signs of faults, from the driver."""

    def signs(self) -> tuple[GpuSigns, ...]:
        """One look at every GPU that discovery found. Raises NodeError if the driver does not answer."""
        ...

    def wait_for_xid(self, timeout_s: float) -> XidEvent | None:
        """The next XID, or None after the timeout. On a thread of its own; never delays another call.

        Raises NodeError if waiting is not possible at once; the caller waits before it asks again.
        """
        ...
