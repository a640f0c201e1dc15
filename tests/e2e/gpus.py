"""The GPUs and the policies that most tests here are about."""

from __future__ import annotations

from sharer.core.quantities import MIB
from sharer.simulation.hardware import SimulatedGpu, SimulatedMig

GPU = "nvidia.com/gpu.shared"
WHOLE = "nvidia.com/gpu"


def gpu(
    number: int,
    *,
    memory_mib: int | None = 81920,
    compute_capability: tuple[int, int] = (8, 0),
    numa_node: int | None = None,
    mig_devices: tuple[SimulatedMig, ...] | None = None,
    reports_events: bool = True,
    nvlinks: tuple[str, ...] = (),
) -> SimulatedGpu:
    """The GPU with this minor number. `mig_devices` None: not in MIG mode."""
    return SimulatedGpu(
        uuid=gpu_uuid(number),
        minor_number=number,
        pci_bus_id=f"00000000:{16 + number:02X}:00.0",
        memory_bytes=None if memory_mib is None else memory_mib * MIB,
        compute_capability=compute_capability,
        numa_node=numa_node,
        mig_enabled=mig_devices is not None,
        mig_devices=mig_devices or (),
        reports_events=reports_events,
        nvlinks=nvlinks,
    )


def gpu_uuid(number: int) -> str:
    return f"GPU-5a3fc4a0-1f0e-4c5e-9d2b-{number:012d}"


def mig(gpu_number: int, index: int, profile: str = "1g.10gb", *, stale: bool = False) -> SimulatedMig:
    """The MIG device at this index of this GPU."""
    return SimulatedMig(
        uuid=f"MIG-77b1e0d2-{gpu_number:04d}-4f1a-8c3e-{index:012d}",
        index=index,
        gpu_instance_id=index + 7,
        profile=profile,
        memory_bytes=9728 * MIB,
        stale=stale,
    )


def slices(one: SimulatedGpu, count: int, limit_mib: int | None = None) -> list[str]:
    """The IDs of a GPU's slices when it is time-sliced."""
    limit = "" if limit_mib is None else f"-{limit_mib}"
    return [f"{one.uuid}::ts-{replica}{limit}" for replica in range(count)]


A, B = gpu(0), gpu(1)


def policy(*rules: str, **more: str) -> str:
    """A policy of these rules, in this order; without any: every GPU in four slices. `more`: its other keys."""
    head = ("apiVersion: sharer.dev/v1alpha1", "kind: SharingPolicy", "rules:")
    written = (f"  - {rule}" for rule in rules or (shared(4),))
    return "\n".join([*head, *written, *(f"{key}: {value}" for key, value in more.items()), ""])


def shared(slices: int, *more: str) -> str:
    """The rule that cuts every GPU into so many slices by time."""
    return f"{{{', '.join(['match: {}', 'strategy: time-slicing', f'slices: {slices}', *more])}}}"
