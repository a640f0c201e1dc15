"""What a driver says, whatever it says: the C library answers with odd numbers and texts, the real pynvml reads them.

A field that cannot be true is unknown, with a reason; no other GPU pays for it; and nothing behind it stumbles.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharer.adapters.nvml import NvmlDriver
from sharer.adapters.nvml.discovery import MAX_PLAUSIBLE_MEMORY_BYTES
from sharer.core.device_id import DeviceId
from sharer.core.inventory import Inventory
from sharer.core.ports.holders import RawProcesses
from sharer.core.quantities import GIB
from sharer.simulation.hardware import SimulatedGpu, SimulatedMig, SimulatedProcess
from tests.core.builders import policy, time_slicing
from tests.core.nodes import known, report
from tests.fakes.nvml import InstalledGpus

GOOD = SimulatedGpu(uuid="GPU-bbbbbbbb-0000-0000-0000-000000000000", minor_number=1, pci_bus_id="00000000:5B:00.0")
ODD_UUID = "GPU-aaaaaaaa-0000-0000-0000-000000000000"
numbers = st.sampled_from([0, 1, 2, 7, 8, 255, 256, 2**31 - 1]) | st.integers(0, 2**31 - 1)
amounts = (
    st.sampled_from([0, 1, 2**20 - 1, 8 * GIB, 80 * GIB, 2**44, 2**44 + 1, 2**63, 2**64 - 2, 2**64 - 1])
    | st.integers(0, 2**64 - 1)
)  # fmt: skip
# Bytes as a driver might leave them in a buffer: up to the first zero, of any encoding.
names = st.sampled_from(
    [b"NVIDIA L4", b"", b"\xff", b" ", b"NVIDIA A100-SXM4-80GB MIG 1g.10gb", b"MIG ", b"x" * 80]
) | (st.binary(max_size=40).filter(lambda text: b"\0" not in text))
buses = st.sampled_from([None, "00000000:3B:00.0", "0:0:0.0", "x", ":", "zz:3B:00.0", "../../..:x", "3B:00.0"])

processes = st.builds(
    SimulatedProcess,
    pid=st.sampled_from([0, 1, 2**22, 2**32 - 1]) | st.integers(0, 2**32 - 1),
    used_bytes=st.none() | amounts,
    kind=st.sampled_from(["compute", "graphics", "mps"]),
    gpu_instance_id=st.none() | st.integers(0, 15),
    compute_instance_id=st.none() | st.integers(0, 15),
)


@st.composite
def migs(draw: st.DrawFn) -> tuple[SimulatedMig, ...]:
    """Up to four at any indexes; some deleted, some with the UUID of another."""
    found = []
    for number in range(draw(st.integers(0, 4))):
        uuid = f"MIG-cccccccc-0000-0000-0000-{draw(st.sampled_from([number, number, number, 0])):012d}"
        found.append(
            SimulatedMig(
                uuid=draw(st.sampled_from([uuid, uuid, uuid, "MIG-" + "y" * 70])),
                index=number,
                gpu_instance_id=draw(st.integers(0, 14)),
                profile=draw(st.sampled_from(["1g.10gb", "1g.10gb+me", "", "x y"])),
                memory_bytes=draw(amounts),
                compute_instance_id=draw(st.integers(0, 8)),
                name=draw(st.none() | names),
                gpu_slices=draw(st.integers(0, 9)),
                compute_slices=draw(st.integers(0, 9)),
                stale=draw(st.booleans()),
            )
        )
    return tuple(found)


odd_gpus = st.builds(
    SimulatedGpu,
    uuid=st.sampled_from([ODD_UUID, ODD_UUID, ODD_UUID, "GPU-" + "z" * 70, "x", "GPU-é", "GPU-a b"]),
    name=names,
    memory_bytes=st.none() | amounts,
    used_bytes=amounts,
    compute_capability=st.none() | st.tuples(numbers, numbers),
    minor_number=st.none() | numbers,
    pci_bus_id=buses,
    mig_enabled=st.none() | st.booleans(),
    mig_devices=migs(),
    max_mig_devices=st.sampled_from([0, 4, 7, 2**31]),
    recovery_action=st.none() | numbers,
    reports_events=st.booleans(),
    processes=st.lists(processes, max_size=6).map(tuple),
)


class OddNode:
    """A node with one library that is loaded once; its GPUs are replaced, and a new session finds them."""

    def __init__(self, folder: Path) -> None:
        self.steering = InstalledGpus(folder, [GOOD])
        self.library = self.steering.library()

    def look(self, odd: SimulatedGpu, *, health: bool = False) -> tuple[Inventory, RawProcesses]:
        self.steering.set_gpus([odd, GOOD])
        with contextlib.closing(NvmlDriver(lambda: self.library, Path("/nowhere"), listen_s=0.001)) as driver:
            inventory = driver.discover()
            if health:  # begins to listen for XIDs, whose end takes a moment
                driver.signs()
            return inventory, driver.processes()


@pytest.fixture(scope="module")
def odd_node() -> Iterator[OddNode]:
    with tempfile.TemporaryDirectory(prefix="s-") as folder:
        node = OddNode(Path(folder))
        yield node
        node.steering.close()


@given(odd_gpus)
def test_whatever_a_gpu_answers_is_known_and_possible_or_unknown_with_a_reason(
    odd_node: OddNode, odd: SimulatedGpu
) -> None:
    """P15, P23, P25: totals of 0, more used than there is, absurd sizes, names in no encoding."""
    inventory, _ = odd_node.look(odd, health=True)
    good = next(one for one in inventory.gpus if one.uuid == GOOD.uuid)
    assert (good.memory_bytes, good.product, good.lost) == (GOOD.memory_bytes, GOOD.product, None)
    for one in inventory.gpus:
        unknown = dict(one.unknown)
        assert all(unknown.values())
        assert one.memory_bytes is None or 0 < one.memory_bytes <= MAX_PLAUSIBLE_MEMORY_BYTES
        assert one.memory_bytes is not None or unknown["memory_bytes"]
        assert one.product is not None or unknown["product"]
        assert one.compute_capability is None or one.compute_capability[0] >= 1
        for mig in one.mig_devices:
            assert mig.memory_bytes is None or 0 < mig.memory_bytes <= MAX_PLAUSIBLE_MEMORY_BYTES
        assert len({mig.uuid for mig in one.mig_devices}) == len(one.mig_devices)


@given(odd_gpus)
def test_whatever_a_gpu_answers_a_node_with_it_is_planned_and_reported(odd_node: OddNode, odd: SimulatedGpu) -> None:
    """P25: and no ID promises what is not there, or is one that a kubelet would not take."""
    inventory, _ = odd_node.look(odd)
    what = known(inventory, policy(time_slicing(4)))
    report(what)
    for one in what.plan.slices():
        assert DeviceId.parse(str(one.id)) == one.id
        assert one.promise_bytes is None or one.promise_bytes > 0


@given(odd_gpus)
def test_whatever_the_process_lists_say_a_process_has_a_pid_that_can_be_or_none(
    odd_node: OddNode, odd: SimulatedGpu
) -> None:
    _, found = odd_node.look(odd)
    for one in found.processes:
        assert one.pid is None or 0 < one.pid < 2**32 - 1
        assert one.used_bytes is None or one.used_bytes < 2**64 - 1
        assert one.gpu_uuid in found.asked
    pids = [(one.gpu_uuid, one.pid) for one in found.processes if one.pid is not None]
    assert len(pids) == len(set(pids))
