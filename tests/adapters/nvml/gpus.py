"""The GPUs that most tests here look at, and what is heard of them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TypeVar

from sharer.core.ports.driver import XidEvent
from sharer.core.quantities import GIB, MIB
from sharer.simulation.hardware import SimulatedGpu, SimulatedMig

T = TypeVar("T")

A = SimulatedGpu(uuid="GPU-a", minor_number=1, pci_bus_id="00000000:3B:00.0", numa_node=1)
B = SimulatedGpu(
    uuid="GPU-b",
    product="NVIDIA L4",
    memory_bytes=23034 * MIB,
    compute_capability=(8, 9),
    minor_number=0,
    pci_bus_id="00000001:AF:00.0",
)


def mig(number: int, profile: str = "1g.10gb") -> SimulatedMig:
    """MIG device MIG-<number>, at that index, in GPU instance number + 7."""
    return SimulatedMig(
        uuid=f"MIG-{number}", index=number, gpu_instance_id=number + 7, profile=profile, memory_bytes=9 * GIB
    )


def with_migs(*migs: SimulatedMig, uuid: str = "GPU-a") -> SimulatedGpu:
    """A GPU like A in MIG mode."""
    return replace(A, uuid=uuid, mig_enabled=True, mig_devices=migs)


def xid(number: int, uuid: str | None = "GPU-a") -> XidEvent:
    """Of a whole GPU. None: the driver does not say of which."""
    return XidEvent(gpu_uuid=uuid, gpu_instance_id=None, compute_instance_id=None, xid=number)


def only(things: Collection[T]) -> T:
    """The one thing there is."""
    (thing,) = things
    return thing
