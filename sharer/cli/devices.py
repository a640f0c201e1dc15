"""`sharer devices`: what the driver reports on this node."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from sharer.cli.inputs import inventory_of_node
from sharer.cli.options import Output, driver_library_option, output_option, print_document
from sharer.cli.show.tables import Cell, count, print_list, print_table
from sharer.core.inventory import Inventory, MigDevice, PhysicalGpu
from sharer.core.quantities import format_bytes
from sharer.core.report.inventory import report_inventory

PARTIAL_DATA = 3
_COLUMNS = ("GPU", "UUID", "PRODUCT", "MEMORY", "MIG")
_WIDE_COLUMNS = ("CAPABILITY", "PCI BUS", "NUMA", "MINOR", "STATE")


@click.command(
    epilog="""\b
Example: sharer devices
         sharer devices -o json > node-7.json; sharer policy plan new.yaml --inventory node-7.json"""
)
@output_option(Output.TABLE, Output.WIDE, Output.JSON, Output.YAML)
@driver_library_option
@click.pass_context
def devices(context: click.Context, output: Output, driver_library: Path | None, host_root: Path) -> None:
    """Show the GPUs and MIG devices of this node.

    The JSON is what --inventory of other commands takes. A value that the driver does not tell is "unknown", with the
    reason below the table; the exit status is then 3.
    """
    inventory = inventory_of_node(driver_library, host_root)
    if output in (Output.JSON, Output.YAML):
        print_document(report_inventory(inventory), output)
    else:
        _print(inventory, wide=output is Output.WIDE)
    if notes(inventory):
        context.exit(PARTIAL_DATA)


def notes(inventory: Inventory) -> list[str]:
    """Everything about an inventory that is missing or unsure, one sentence each."""
    found: list[str] = []
    for gpu in inventory.gpus:
        found += _notes(f"GPU {gpu.index}, {gpu.uuid}", gpu)
        for mig in gpu.mig_devices:
            found += _notes(f"MIG device {gpu.index}:{mig.index}, {mig.uuid}", mig)
    return [*found, *inventory.warnings]


def _notes(title: str, device: PhysicalGpu | MigDevice) -> Iterator[str]:
    if device.lost is not None:
        yield f"{title}: lost: {device.lost}"
    for name, reason in () if device.lost else device.unknown:  # a lost one tells nothing, for that one reason
        yield f"{title}: {name.replace('_', ' ')} is unknown: {reason}"


def _print(inventory: Inventory, *, wide: bool) -> None:
    driver = inventory.driver_version or "unknown"
    click.echo(f"{count(len(inventory.gpus), 'GPU')}, driver {driver}")
    if inventory.gpus:
        rows: list[list[Cell]] = []
        for gpu in inventory.gpus:
            rows.append(_gpu_row(gpu) + (_gpu_wide(gpu) if wide else []))
            rows += [_mig_row(gpu, mig) + (_mig_wide(mig) if wide else []) for mig in gpu.mig_devices]
        click.echo()
        print_table(_COLUMNS + (_WIDE_COLUMNS if wide else ()), rows)
    print_list("Notes", notes(inventory))


def _gpu_row(gpu: PhysicalGpu) -> list[Cell]:
    mode = None if gpu.mig_enabled is None else "on" if gpu.mig_enabled else "off"
    return [
        str(gpu.index),
        gpu.uuid,
        gpu.product or "unknown",
        format_bytes(gpu.memory_bytes),
        _cell(gpu, "mig_enabled", mode),
    ]


def _gpu_wide(gpu: PhysicalGpu) -> list[Cell]:
    capability = None if gpu.compute_capability is None else "{}.{}".format(*gpu.compute_capability)
    return [
        _cell(gpu, "compute_capability", capability),
        _cell(gpu, "pci_bus_id", gpu.pci_bus_id),
        _cell(gpu, "numa_node", gpu.numa_node),
        _cell(gpu, "minor_number", gpu.minor_number),
        "lost" if gpu.lost else "present",
    ]


def _mig_row(gpu: PhysicalGpu, mig: MigDevice) -> list[Cell]:
    memory = format_bytes(mig.memory_bytes)
    return [f"{gpu.index}:{mig.index}", mig.uuid, "MIG device", memory, mig.profile or "unknown"]


def _mig_wide(mig: MigDevice) -> list[Cell]:
    return [None, None, None, None, "lost" if mig.lost else "present"]


def _cell(gpu: PhysicalGpu, field: str, value: str | int | None) -> Cell:
    """A value; "unknown" where it could not be read, nothing where there is none (no affinity, no MIG mode)."""
    return "unknown" if value is None and field in dict(gpu.unknown) else None if value is None else str(value)
