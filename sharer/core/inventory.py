"""What exists on a node: physical GPUs and their MIG devices, as NVML reports them.

A value that could not be read is `None`, and `unknown` says why, field by field. A failed query belongs to that GPU
and that field, never to the node.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import IntEnum

from sharer.core.values import dataclass, replace

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
    lost: str | None = None  # None: it exists; otherwise why it does not any more
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
    restricted: str | None = None  # its compute mode if not every process may use it; None: all may, or it is not told
    lost: str | None  # None: it answers; otherwise why it does not ("no longer listed by the driver")
    unknown: UnknownFields = ()

    @property
    def uuids(self) -> tuple[str, ...]:
        """Its own UUID, and those of its MIG devices."""
        return (self.uuid, *(mig.uuid for mig in self.mig_devices))


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """Everything NVML reported in one look at the node, GPUs in NVML's order."""

    driver_version: str | None = None  # "580.95.05"
    gpus: tuple[PhysicalGpu, ...] = ()
    warnings: tuple[str, ...] = ()  # what could not be attributed to a known GPU, such as an index that fails

    def gpu(self, uuid: str) -> PhysicalGpu | None:
        """The physical GPU with this UUID, or the one that carries the MIG device with this UUID."""
        return next((gpu for gpu in self.gpus if uuid in gpu.uuids), None)

    @property
    def uuids(self) -> frozenset[str]:
        """Those of all GPUs and MIG devices."""
        return frozenset(uuid for gpu in self.gpus for uuid in gpu.uuids)


GONE = "no longer listed by the driver"
_FACTS = ("minor_number", "product", "memory_bytes", "compute_capability", "pci_bus_id", "numa_node", "mig_enabled")


def remember_lost(known: Inventory, found: Inventory, needed: Collection[str]) -> Inventory:
    """What exists now, with what was known before and is gone kept as lost.

    The slices of a lost GPU or MIG device may be held, and an ID that vanishes can crash the kubelet
    (kubelet-contract §3), so it stays in the inventory, marked. A GPU stays for good: somebody has to look for it. MIG
    devices are made and deleted in the course of things, and never come back; one that is gone stays as long as it is
    `needed`: the UUIDs of which slices are listed or held. A fact that was known and cannot be read this time stays as
    it was: one failed query must not change a device ID.
    """
    before = {gpu.uuid: gpu for gpu in known.gpus}
    present = [_merge(before.get(gpu.uuid), gpu, needed) for gpu in found.gpus]
    gone = [
        replace(gpu, lost=gpu.lost or GONE, mig_devices=tuple(_lose(mig, GONE) for mig in gpu.mig_devices))
        for gpu in known.gpus
        if gpu.uuid not in {gpu.uuid for gpu in found.gpus}
    ]
    return replace(
        found,
        driver_version=found.driver_version or known.driver_version,
        gpus=tuple(sorted((*present, *gone), key=lambda gpu: (gpu.index, gpu.uuid))),
    )


def _merge(before: PhysicalGpu | None, now: PhysicalGpu, needed: Collection[str]) -> PhysicalGpu:
    if before is None:
        return now
    kept = {name: getattr(before, name) for name in _FACTS if getattr(now, name) is None}
    existing = {mig.uuid for mig in now.mig_devices}
    gone = [mig for mig in before.mig_devices if mig.uuid not in existing]
    lost = tuple(_lose(mig, now.lost or GONE) for mig in gone if now.lost is not None or mig.uuid in needed)
    return replace(
        now,
        **kept,
        mig_devices=(*now.mig_devices, *lost),
        unknown=tuple((name, reason) for name, reason in now.unknown if kept.get(name) is None),
    )


def _lose(mig: MigDevice, reason: str) -> MigDevice:
    return replace(mig, lost=mig.lost or reason)


class PcieDistance(IntEnum):
    """How far two GPUs are apart on PCIe: nearer is smaller. The values are NVML's nvmlGpuTopologyLevel_t."""

    SAME_BOARD = 0
    ONE_SWITCH = 10
    SEVERAL_SWITCHES = 20
    HOST_BRIDGE = 30
    NUMA_NODE = 40
    SYSTEM = 50  # over the links between NUMA nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuLink:
    """How two physical GPUs reach each other."""

    uuids: tuple[str, str]  # the GPU with the lower index first
    nvlinks: int | None  # between them, directly or through NVSwitches; 0: none; None: could not be read
    pcie: PcieDistance | None  # None: could not be read
    unknown: UnknownFields = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """How the GPUs of a node are linked: one entry for each pair that answered, in the order of their indexes."""

    links: tuple[GpuLink, ...] = ()
