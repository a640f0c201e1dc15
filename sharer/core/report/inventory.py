"""The Inventory document: what `sharer devices -o json` prints and `--inventory` takes (DESIGN §8)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, fields
from typing import ClassVar

from sharer.core.errors import InputError
from sharer.core.inventory import Inventory, MigDevice, PhysicalGpu, UnknownFields
from sharer.core.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class MigReport:
    """One MIG device."""

    uuid: str
    index: int
    gpu_instance_id: int | None = None
    compute_instance_id: int | None = None
    profile: str | None = None
    memory_bytes: int | None = None
    lost: str | None = None  # why it is gone; null: it exists
    unknown: Mapping[str, str] = field(default_factory=dict)  # field that is null -> why


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReport:
    """One physical GPU."""

    uuid: str
    index: int
    minor_number: int | None = None
    product: str | None = None
    memory_bytes: int | None = None
    compute_capability: str | None = None  # "8.0"
    pci_bus_id: str | None = None
    numa_node: int | None = None
    mig_enabled: bool | None = None  # null without a reason in `unknown`: it has no MIG mode
    mig_devices: tuple[MigReport, ...] = ()
    restricted: str | None = None  # the compute mode; null: every process may use it, or the driver does not say
    lost: str | None = None
    unknown: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class InventoryReport:
    """What exists on a node. `sharer devices -o json` prints it, `--inventory` takes it."""

    kind: ClassVar[str] = "Inventory"
    driver_version: str | None = None
    gpus: tuple[GpuReport, ...]
    warnings: tuple[str, ...] = ()


def report_inventory(inventory: Inventory) -> InventoryReport:
    """The document for an inventory."""
    return InventoryReport(
        driver_version=inventory.driver_version,
        gpus=tuple(_report_gpu(gpu) for gpu in inventory.gpus),
        warnings=inventory.warnings,
    )


def inventory_from(report: InventoryReport) -> Inventory:
    """The inventory that a document describes. Raises InputError, naming the path, for values no GPU can have."""
    gpus = tuple(_gpu_from(gpu, f"gpus[{number}]") for number, gpu in enumerate(report.gpus))
    uuids = [uuid for gpu in gpus for uuid in gpu.uuids]
    for uuid in uuids:
        if not uuid or uuids.count(uuid) > 1:
            raise InputError(f"gpus: the UUID {uuid!r} " + ("occurs twice; each is unique" if uuid else "is empty"))
    return Inventory(driver_version=report.driver_version, gpus=gpus, warnings=report.warnings)


def _report_gpu(gpu: PhysicalGpu) -> GpuReport:
    return GpuReport(
        uuid=gpu.uuid,
        index=gpu.index,
        minor_number=gpu.minor_number,
        product=gpu.product,
        memory_bytes=gpu.memory_bytes,
        compute_capability=capability_text(gpu),
        pci_bus_id=gpu.pci_bus_id,
        numa_node=gpu.numa_node,
        mig_enabled=gpu.mig_enabled,
        mig_devices=tuple(_report_mig(mig) for mig in gpu.mig_devices),
        restricted=gpu.restricted,
        lost=gpu.lost,
        unknown=_reasons(gpu.unknown),
    )


def capability_text(gpu: PhysicalGpu) -> str | None:
    """Its compute capability as NVIDIA writes it, "8.0"; None: not known."""
    return None if gpu.compute_capability is None else "{}.{}".format(*gpu.compute_capability)


def _report_mig(mig: MigDevice) -> MigReport:
    return MigReport(
        uuid=mig.uuid,
        index=mig.index,
        gpu_instance_id=mig.gpu_instance_id,
        compute_instance_id=mig.compute_instance_id,
        profile=mig.profile,
        memory_bytes=mig.memory_bytes,
        lost=mig.lost,
        unknown=_reasons(mig.unknown),
    )


def _gpu_from(gpu: GpuReport, path: str) -> PhysicalGpu:
    return PhysicalGpu(
        uuid=gpu.uuid,
        index=gpu.index,
        minor_number=gpu.minor_number,
        product=gpu.product,
        memory_bytes=_positive(gpu.memory_bytes, f"{path}.memoryBytes"),
        compute_capability=_capability(gpu.compute_capability, f"{path}.computeCapability"),
        pci_bus_id=gpu.pci_bus_id,
        numa_node=gpu.numa_node,
        mig_enabled=gpu.mig_enabled,
        mig_devices=tuple(_mig_from(mig, f"{path}.migDevices[{n}]") for n, mig in enumerate(gpu.mig_devices)),
        restricted=gpu.restricted,
        lost=gpu.lost,
        unknown=_fields_from(gpu.unknown, PhysicalGpu, path),
    )


def _mig_from(mig: MigReport, path: str) -> MigDevice:
    return MigDevice(
        uuid=mig.uuid,
        index=mig.index,
        gpu_instance_id=mig.gpu_instance_id,
        compute_instance_id=mig.compute_instance_id,
        profile=mig.profile,
        memory_bytes=_positive(mig.memory_bytes, f"{path}.memoryBytes"),
        lost=mig.lost,
        unknown=_fields_from(mig.unknown, MigDevice, path),
    )


def _positive(amount_bytes: int | None, path: str) -> int | None:
    if amount_bytes is not None and amount_bytes <= 0:
        raise InputError(f"{path}: {amount_bytes} is not above 0; write null where the memory is unknown")
    return amount_bytes


def _capability(text: str | None, path: str) -> tuple[int, int] | None:
    if text is None:
        return None
    major, dot, minor = text.partition(".")
    if not (dot and major.isdecimal() and minor.isdecimal()):
        raise InputError(f"{path}: {text!r} is not a major and a minor number, such as '8.0'")
    return int(major), int(minor)


def _reasons(unknown: UnknownFields) -> dict[str, str]:
    return {camel_case(name): reason for name, reason in unknown}


def _fields_from(reasons: Mapping[str, str], of: type[PhysicalGpu] | type[MigDevice], path: str) -> UnknownFields:
    names = {camel_case(one.name): one.name for one in fields(of)}
    for name in reasons:
        if name not in names:
            raise InputError(f"{path}.unknown: {name!r} is not a field of this device")
    return tuple((names[name], reason) for name, reason in reasons.items())


def camel_case(name: str) -> str:
    """A field's name as documents write it.

    >>> camel_case("pci_bus_id")
    'pciBusId'
    """
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)
