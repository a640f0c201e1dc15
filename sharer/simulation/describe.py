"""What discovery would find on a node with simulated GPUs, without starting an agent or a kubelet."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Sequence
from pathlib import Path

from sharer.adapters.nvml import NvmlDriver
from sharer.core.inventory import Inventory
from sharer.simulation.gpus import SimulatedGpus
from sharer.simulation.hardware import SimulatedGpu, write_sys_root


def describe_node(gpus: Sequence[SimulatedGpu]) -> Inventory:
    """The inventory, found by the agent's own discovery."""
    with tempfile.TemporaryDirectory(prefix="s-") as root:
        write_sys_root(Path(root), gpus)
        with contextlib.closing(NvmlDriver(SimulatedGpus(gpus).library, sys_root=Path(root))) as driver:
            return driver.discover()
