"""GPUs that do not exist: what they are like, and how the host's /sys shows them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedProcess:
    """A process on a GPU, as the driver's process lists show it."""

    pid: int
    used_bytes: int | None  # None: the driver does not know
    kind: str = "compute"  # compute | graphics | mps
    gpu_instance_id: int | None = None
    compute_instance_id: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedMig:
    """One MIG device of a simulated GPU."""

    uuid: str
    index: int
    gpu_instance_id: int
    profile: str  # "1g.10gb": what the driver appends to the product's name
    memory_bytes: int
    compute_instance_id: int = 0
    name: bytes | None = None  # the bytes nvmlDeviceGetName answers; None: "<product> MIG <profile>"
    gpu_slices: int = 1
    compute_slices: int = 1
    stale: bool = False  # deleted, but sessions that were open then still answer its handle and its UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedGpu:
    """One simulated GPU. What is None, the driver answers with "not supported"."""

    uuid: str
    product: str = "NVIDIA A100-SXM4-80GB"
    name: bytes | None = None  # the bytes nvmlDeviceGetName answers; None: the product
    memory_bytes: int | None = 80 * 2**30
    used_bytes: int = 0
    compute_capability: tuple[int, int] | None = (8, 0)
    minor_number: int | None = 0
    pci_bus_id: str | None = "00000000:3B:00.0"
    numa_node: int | None = None  # for the sysfs tree and the distance to other GPUs; None: no affinity
    mig_enabled: bool | None = None
    mig_devices: tuple[SimulatedMig, ...] = ()
    max_mig_devices: int = 7
    reports_events: bool = True
    recovery_action: int | None = 0  # nvmlDeviceGpuRecoveryAction_t
    fabric_state: int | None = None  # nvmlGpuFabricState_t
    nvlinks: tuple[str, ...] = ()  # per link, in order: the peer's UUID, "switch", or "" for one that is down
    pcie_switch: int | None = None  # GPUs with the same number sit below one PCIe switch
    processes: tuple[SimulatedProcess, ...] = ()


def common_ancestor(one: SimulatedGpu, other: SimulatedGpu) -> int:
    """NVML's nvmlGpuTopologyLevel_t for two GPUs: 10 below one PCIe switch, 40 on one NUMA node, else 50."""
    if one.pcie_switch is not None and one.pcie_switch == other.pcie_switch:
        return 10
    return 40 if one.numa_node is not None and one.numa_node == other.numa_node else 50


def write_sys_root(root: Path, gpus: Sequence[SimulatedGpu]) -> None:
    """Write the part of sysfs below `root` that tells which GPUs the driver has, and on which NUMA nodes (-1: on none).

    As a kernel would; what is there stays.
    """
    driver = root / "bus/pci/drivers/nvidia"
    driver.mkdir(parents=True, exist_ok=True)
    for gpu in gpus:
        if gpu.pci_bus_id is not None:
            domain, _, rest = gpu.pci_bus_id.lower().partition(":")
            address = f"{int(domain, 16):04x}:{rest}"
            folder = root / "bus/pci/devices" / address
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "numa_node").write_text(f"{-1 if gpu.numa_node is None else gpu.numa_node}\n")
            if not (driver / address).is_symlink():
                (driver / address).symlink_to(folder)
