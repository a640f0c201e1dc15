"""What discovery would find on a node with simulated GPUs, without starting an agent or a kubelet."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Sequence
from pathlib import Path

from sharer.adapters.nvml import NvmlDriver
from sharer.core.device_id import Strategy
from sharer.core.errors import NodeError
from sharer.core.injection import NO_MPS_DAEMON
from sharer.core.inventory import Inventory
from sharer.core.plan import Plan
from sharer.simulation.gpus import SimulatedGpus
from sharer.simulation.hardware import SimulatedGpu, write_sys_root


def describe_node(gpus: Sequence[SimulatedGpu]) -> Inventory:
    """The inventory, found by the agent's own discovery."""
    with tempfile.TemporaryDirectory(prefix="s-") as root:
        write_sys_root(Path(root), gpus)
        with contextlib.closing(NvmlDriver(SimulatedGpus(gpus).library, sys_root=Path(root))) as driver:
            return driver.discover()


def refuse_mps(plan: Plan, source: str, purpose: str) -> None:
    """Raise NodeError for a plan with MPS slices: without a daemon they are Unhealthy, and no pod would ever come."""
    if any(resource.strategy is Strategy.MPS for resource in plan.resources):
        raise NodeError(f"{source} offers MPS slices: {NO_MPS_DAEMON}, {purpose}")
