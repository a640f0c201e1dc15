"""What exists on a node: physical GPUs and their MIG devices, as NVML reports them.

A value that could not be read is `None`, and `unknown` says why, field by field. A failed query belongs to that GPU
and that field, never to the node.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

UnknownFields = tuple[tuple[str, str], ...]
"""Pairs of a field's name and the reason why it is None, in the order of the class."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MigDevice:
    """One MIG device (a compute instance in a GPU instance). Its UUID dies with the instance, also at a reboot."""

    uuid: str  # "MIG-<uuid>", the only key
    index: int  # NVML's index below the physical GPU; indexes have gaps
    gpu_instance_id: int | None
    compute_instance_id: int | None
    profile: str | None  # "1g.10gb", "1g.10gb+me"; None: the driver does not name it
    memory_bytes: int | None  # of the instance
    unknown: UnknownFields = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PhysicalGpu:
    """One physical GPU."""

    uuid: str  # "GPU-<uuid>", the only key
    index: int  # NVML's index, for people; changes between boots
    minor_number: int | None  # N of /dev/nvidiaN
    product: str | None  # "NVIDIA A100-SXM4-80GB"
    memory_bytes: int | None  # total; None where the driver reports none (unified memory)
    compute_capability: tuple[int, int] | None  # (8, 0)
    pci_bus_id: str | None  # "00000000:3B:00.0"
    numa_node: int | None  # None: no affinity; the kernel's -1 is None too
    mig_enabled: bool | None  # None: the GPU has no MIG mode
    mig_devices: tuple[MigDevice, ...] = ()
    lost: str | None  # None: it answers; otherwise why it does not ("no longer listed by the driver")
    unknown: UnknownFields = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """Everything NVML reported in one look at the node, GPUs in NVML's order."""

    driver_version: str | None = None  # "580.95.05"
    gpus: tuple[PhysicalGpu, ...] = ()
    warnings: tuple[str, ...] = ()  # what could not be attributed to a known GPU, such as an index that fails

    def gpu(self, uuid: str) -> PhysicalGpu | None:
        """The physical GPU with this UUID, or the one that carries the MIG device with this UUID."""
        for gpu in self.gpus:
            if gpu.uuid == uuid or any(mig.uuid == uuid for mig in gpu.mig_devices):
                return gpu
        return None


def remember_lost(known: Inventory, found: Inventory) -> Inventory:
    """What exists now, with the GPUs and MIG devices that were known before and are gone kept as lost.

    Their slices may be held, and an ID that vanishes can crash the kubelet (kubelet-contract §3): a lost GPU stays in
    the inventory, marked, until the agent restarts without it or it comes back.
    """
    by_uuid = {gpu.uuid: gpu for gpu in found.gpus}
    kept = [
        replace(gpu, lost=gpu.lost or "no longer listed by the driver") for gpu in known.gpus if gpu.uuid not in by_uuid
    ]
    return replace(
        found,
        driver_version=found.driver_version or known.driver_version,
        gpus=tuple(sorted((*found.gpus, *kept), key=lambda gpu: (gpu.index, gpu.uuid))),
    )
