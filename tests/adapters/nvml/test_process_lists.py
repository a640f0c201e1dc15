"""Who runs on which GPU, as far as the driver says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sharer.core.ports.holders import RawProcess
from sharer.simulation.hardware import SimulatedGpu, SimulatedMig, SimulatedProcess
from tests.adapters.nvml.conftest import MakeNode, OpenDriver

FUNCTION_NOT_FOUND, NOT_SUPPORTED, NO_PERMISSION = 13, 3, 4
KINDS = ("Compute", "Graphics", "MPSCompute")
NEWEST = [f"nvmlDeviceGet{kind}RunningProcesses_v3" for kind in KINDS]
SECOND = [f"nvmlDeviceGet{kind}RunningProcesses_v2" for kind in KINDS]
FIRST = [f"nvmlDeviceGet{kind}RunningProcesses" for kind in KINDS]

GPU = SimulatedGpu(
    uuid="GPU-a",
    processes=(
        SimulatedProcess(pid=7, used_bytes=700),
        SimulatedProcess(pid=9, used_bytes=90, kind="graphics"),
        SimulatedProcess(pid=8, used_bytes=80, kind="mps"),
    ),
)


def raw(pid: int | None, uuid: str, used_bytes: int | None, *, mps: bool | None = False) -> RawProcess:
    return RawProcess(pid=pid, gpu_uuid=uuid, used_bytes=used_bytes, is_mps_client=mps)


ON_A = {raw(7, "GPU-a", 700), raw(9, "GPU-a", 90), raw(8, "GPU-a", 80, mps=True)}
MIGS = tuple(
    SimulatedMig(uuid=f"MIG-{n}", index=n, gpu_instance_id=n + 1, profile="1g.10gb", memory_bytes=2**33) for n in (0, 2)
)
CUT_GPU = replace(
    GPU,
    mig_enabled=True,
    mig_devices=MIGS,
    processes=(
        SimulatedProcess(pid=7, used_bytes=700, gpu_instance_id=1, compute_instance_id=0),
        SimulatedProcess(pid=8, used_bytes=80, gpu_instance_id=3, compute_instance_id=0, kind="mps"),
    ),
)
ON_MIGS = {
    raw(7, "MIG-0", 700),
    raw(8, "MIG-2", 80, mps=True),
}


@pytest.mark.parametrize("missing", [(), NEWEST, [*NEWEST, *SECOND]], ids=["v3", "v2", "v1"])
def test_compute_graphics_and_mps_processes_are_found_whatever_the_drivers_version(
    make_node: MakeNode, open_driver: OpenDriver, missing: list[str]
) -> None:
    found = open_driver(make_node(GPU, SimulatedGpu(uuid="GPU-b"), missing=missing)).processes()
    assert set(found.processes) == ON_A
    assert found.asked == {"GPU-a", "GPU-b"}, "a GPU with nothing on it was asked, too"


@pytest.mark.parametrize("missing", [(), NEWEST, [*NEWEST, *SECOND]], ids=["v3", "v2", "v1"])
def test_a_process_on_a_mig_device_is_found_there_whatever_the_drivers_version(
    make_node: MakeNode, open_driver: OpenDriver, missing: list[str]
) -> None:
    """The first version names no instances, so each MIG device is asked by itself."""
    found = open_driver(make_node(CUT_GPU, missing=missing)).processes()
    assert set(found.processes) == ON_MIGS
    assert found.asked >= {"MIG-0", "MIG-2"}


def test_mig_devices_are_asked_one_by_one_where_not_all_at_once_may_be(
    make_node: MakeNode, open_driver: OpenDriver
) -> None:
    node = make_node(CUT_GPU)
    node.fail(NEWEST[0], NO_PERMISSION, times=1)
    found = open_driver(node).processes()
    assert set(found.processes) == ON_MIGS
    assert found.asked == {"MIG-0", "MIG-2"}


def test_a_process_on_an_instance_that_is_no_mig_device_any_more_is_on_the_gpu(
    make_node: MakeNode, open_driver: OpenDriver
) -> None:
    orphan = SimulatedProcess(pid=5, used_bytes=50, gpu_instance_id=9, compute_instance_id=0)
    found = open_driver(make_node(replace(CUT_GPU, processes=(orphan,)))).processes()
    assert found.processes == (raw(5, "GPU-a", 50),)


def test_a_process_in_two_lists_is_one_with_the_larger_figure(make_node: MakeNode, open_driver: OpenDriver) -> None:
    both = (
        SimulatedProcess(pid=7, used_bytes=None),
        SimulatedProcess(pid=7, used_bytes=90, kind="graphics"),
        SimulatedProcess(pid=7, used_bytes=80, kind="mps"),
    )
    found = open_driver(make_node(replace(GPU, processes=both))).processes()
    assert found.processes == (raw(7, "GPU-a", 90, mps=True),), "a client of MPS is in the list of compute, too"


@pytest.mark.parametrize("no_pid", [0, 2**32 - 1])
def test_a_process_without_a_pid_or_a_figure_is_unknown_and_never_zero(
    make_node: MakeNode, open_driver: OpenDriver, no_pid: int
) -> None:
    """gpu-limits §4."""
    nameless = SimulatedProcess(pid=no_pid, used_bytes=None)
    found = open_driver(make_node(replace(GPU, processes=(nameless, nameless)))).processes()
    assert found.processes == (raw(None, "GPU-a", None),) * 2


def test_more_processes_than_were_expected_are_all_told(make_node: MakeNode, open_driver: OpenDriver) -> None:
    crowd = tuple(SimulatedProcess(pid=pid, used_bytes=pid, kind="mps") for pid in range(1, 65))
    found = open_driver(make_node(replace(GPU, processes=crowd))).processes()
    assert {process.pid for process in found.processes} == set(range(1, 65))


def test_a_gpu_without_process_lists_counts_as_not_asked(make_node: MakeNode, open_driver: OpenDriver) -> None:
    """A vGPU guest or Jetson: silence about a GPU must not look like an idle one."""
    node = make_node(GPU, SimulatedGpu(uuid="GPU-b"))
    node.fail(NEWEST[0], NOT_SUPPORTED, uuid="GPU-b")
    assert open_driver(node).processes().asked == {"GPU-a"}


def test_a_driver_without_any_list_of_mps_clients_is_asked_all_the_same(
    make_node: MakeNode, open_driver: OpenDriver
) -> None:
    missing = [NEWEST[2], SECOND[2], FIRST[2]]
    found = open_driver(make_node(GPU, missing=missing)).processes()
    assert set(found.processes) == {raw(7, "GPU-a", 700, mps=None), raw(9, "GPU-a", 90, mps=None)}
    assert found.asked == {"GPU-a"}


def test_a_lost_gpu_costs_only_itself(make_node: MakeNode, open_driver: OpenDriver) -> None:
    node = make_node(GPU, SimulatedGpu(uuid="GPU-b"))
    driver = open_driver(node)
    driver.processes()
    node.lose("GPU-b")
    found = driver.processes()
    assert set(found.processes) == ON_A
    assert found.asked == {"GPU-a"}
    assert found.lost == {"GPU-b"}
