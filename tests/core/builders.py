"""Short ways to say what a test's node has and wants."""

from __future__ import annotations

from dataclasses import replace

from sharer.core.inventory import Inventory, MigDevice, PhysicalGpu
from sharer.core.policy.model import Match, Policy, Rule, Sharing, TimeSlicing
from sharer.core.quantities import MIB

A100 = PhysicalGpu(
    uuid="GPU-aaaaaaaa-0000-0000-0000-000000000000",
    index=0,
    minor_number=0,
    product="NVIDIA A100-SXM4-80GB",
    memory_bytes=81920 * MIB,
    compute_capability=(8, 0),
    pci_bus_id="00000000:07:00.0",
    numa_node=0,
    mig_enabled=False,
    lost=None,
)


def gpu(index: int, *, memory_mib: int | None = 81920, **changes: object) -> PhysicalGpu:
    """The A100 again, as the GPU with this index."""
    memory_bytes = None if memory_mib is None else memory_mib * MIB
    return replace(A100, uuid=gpu_uuid(index), index=index, minor_number=index, memory_bytes=memory_bytes, **changes)  # type: ignore[arg-type]


def gpu_uuid(index: int) -> str:
    return f"GPU-aaaaaaaa-0000-0000-0000-{index:012d}"


def mig(number: int, profile: str | None, *, memory_mib: int | None = 9856, lost: str | None = None) -> MigDevice:
    return MigDevice(
        uuid=f"MIG-bbbbbbbb-0000-0000-0000-{number:012d}",
        index=number,
        gpu_instance_id=number + 1,
        compute_instance_id=0,
        profile=profile,
        memory_bytes=None if memory_mib is None else memory_mib * MIB,
        lost=lost,
    )


def node(*gpus: PhysicalGpu) -> Inventory:
    return Inventory(driver_version="580.95.05", gpus=gpus)


def time_slicing(slices: int) -> TimeSlicing:
    return TimeSlicing(slices=slices, slice_memory_bytes=None)


def rule(sharing: Sharing, **changes: object) -> Rule:
    return replace(Rule(match=Match(), sharing=sharing, where="rules[0]"), **changes)  # type: ignore[arg-type]


def policy(*rules: Rule | Sharing) -> Policy:
    return Policy(rules=tuple(one if isinstance(one, Rule) else rule(one) for one in rules))
