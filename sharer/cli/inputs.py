"""What commands are given: files, this node, or GPUs by name. What is wrong with it is an InputError (status 2)."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

from sharer.adapters.documents import read_inventory
from sharer.adapters.yaml_text import read_policy_text
from sharer.cli.show.tables import count
from sharer.core.device_id import recognise
from sharer.core.errors import InputError, NodeError
from sharer.core.inventory import Inventory
from sharer.core.policy.model import Policy

STANDARD_INPUT = "-"
MAX_INPUT_BYTES = 64 * 2**20  # of any file that is named; a node's inventory is some 10 KiB


def source_of(path: str) -> str:
    """The name of a file in messages."""
    return "standard input" if path == STANDARD_INPUT else path


def read_text(path: str) -> tuple[bytes, str]:
    """A file's bytes and its name for messages; "-" is standard input. Raises InputError."""
    source = source_of(path)
    if path == STANDARD_INPUT and sys.stdin is None:
        raise InputError(f"{source}: is closed")
    try:
        with contextlib.nullcontext(sys.stdin.buffer) if path == STANDARD_INPUT else open(path, "rb") as file:
            content = file.read(MAX_INPUT_BYTES + 1)
    except OSError as error:
        raise InputError(f"{source}: cannot be read: {os.strerror(error.errno or 0)}") from error
    if len(content) > MAX_INPUT_BYTES:
        raise InputError(f"{source}: has more than {MAX_INPUT_BYTES // 2**20} MiB, and is not read")
    return content, source


def files_in(path: str) -> list[str]:
    """The file itself; of a directory its files, without those of a ConfigMap's mount that are not keys."""
    if path == STANDARD_INPUT or not os.path.isdir(path):
        return [path]
    try:
        names = sorted(name for name in os.listdir(path) if not name.startswith("."))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {os.strerror(error.errno or 0)}") from error
    found = [file for name in names if os.path.isfile(file := os.path.join(path, name))]
    if not found:
        raise InputError(f"{path}: has no file; a ConfigMap that is mounted there needs a key, such as default")
    return found


def why_to_go_on(checkpoint: Path) -> str | None:
    """Why an agent has to run here whatever its policy: slices are in use, or may be. None: none is."""
    from sharer.adapters.checkpoint import Checkpoint
    from sharer.adapters.watch import DirectoryWatch

    try:
        with contextlib.closing(DirectoryWatch()) as watch:
            reading = Checkpoint(checkpoint, watch).read()
    except NodeError as error:
        return f"slices may be in use: {error}"
    entries = () if reading is None else reading.entries
    held = {one for entry in entries for one in entry.ids if recognise(one) is not None}
    return f"{checkpoint} has {count(len(held), 'slice')} in use" if held else None


def read_policy(path: str) -> Policy:
    """The policy in a file. Raises PolicyError with every problem, InputError if there is no such file."""
    text, source = read_text(path)
    return read_policy_text(text, source)


def inventory_from_file(path: str) -> Inventory:
    """The inventory in a document that `sharer devices -o json` printed. Raises InputError."""
    text, source = read_text(path)
    return read_inventory(text, source)


def inventory_of_node(driver_library: Path | None, host_root: Path) -> Inventory:
    """What this node's driver reports. Raises NodeError."""
    from sharer.adapters.nvml import InstalledLibrary, NvmlDriver  # pynvml takes its time

    roots = dict.fromkeys((host_root, Path("/")))
    with contextlib.closing(NvmlDriver(InstalledLibrary(driver_library, tuple(roots)))) as driver:
        return driver.discover()


def inventory_of_products(gpus: str) -> Inventory:
    """What a node with these GPUs ("8xA100-80GB,2xL4") would report. Raises InputError that lists the known names."""
    from sharer.simulation.describe import describe_node
    from sharer.simulation.products import parse_gpus

    return describe_node(parse_gpus(gpus))
