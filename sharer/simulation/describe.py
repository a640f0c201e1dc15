"""What discovery would find on a node with simulated GPUs, without starting an agent or a kubelet."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Sequence
from pathlib import Path

from sharer.adapters.nvml import NvmlDriver
from sharer.core.device_id import Strategy
from sharer.core.inventory import Inventory
from sharer.core.policy.enforcers import Availability, Reasons
from sharer.core.policy.model import Mps, Policy, resource_for
from sharer.core.slices.plan import Plan, make_plan
from sharer.simulation.gpus import SimulatedGpus
from sharer.simulation.hardware import SimulatedGpu, write_sys_root
from sharer.simulation.memory_limits import LimitBackend

DRIVER_VERSION = "615.43.02"  # the first branch whose driver limits the memory of a cgroup is 615 (gpu-limits §2)


def simulated_driver(gpus: Sequence[SimulatedGpu]) -> SimulatedGpus:
    """These GPUs below a driver that can limit memory, by the kernel's controller."""
    return SimulatedGpus(gpus, driver_version=DRIVER_VERSION, limit_backend=LimitBackend.DMEM)


def simulated_means(inventory: Inventory) -> Availability:
    """What can hold which device there, as far as plans depend on it."""
    takes_limits: Reasons = {"driver": None, "watch": None}
    instance: Reasons = {"mig": None, "watch": None}
    means = {gpu.uuid: takes_limits for gpu in inventory.gpus if not gpu.mig_enabled}
    return means | {mig.uuid: instance for gpu in inventory.gpus for mig in gpu.mig_devices}


def describe_node(gpus: Sequence[SimulatedGpu]) -> Inventory:
    """The inventory, found by the agent's own discovery."""
    with tempfile.TemporaryDirectory(prefix="s-") as root:
        write_sys_root(Path(root), gpus)
        with contextlib.closing(NvmlDriver(simulated_driver(gpus).library, sys_root=Path(root))) as driver:
            return driver.discover()


def simulated_plan(inventory: Inventory, policy: Policy) -> Plan:
    """What an agent arrives at there, once everybody has answered it. Raises PolicyError."""
    mps = [rule for rule in policy.rules if isinstance(rule.sharing, Mps)]
    namespaced = {resource_for(rule, None) for rule in mps}  # by MPS v3, which came with the driver's branch
    return make_plan(inventory, policy, enforcers=simulated_means(inventory), namespaced=namespaced)


def needs_mps(plan: Plan) -> bool:
    """Whether slices of a plan need an MPS control daemon."""
    return any(resource.strategy is Strategy.MPS for resource in plan.resources)
