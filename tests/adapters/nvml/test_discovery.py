"""What discovery finds, and what a wrong or missing answer costs: that field of that GPU, never the node."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharer.adapters.nvml import NvmlDriver
from sharer.core.inventory import PhysicalGpu
from sharer.core.quantities import GIB, MIB
from sharer.simulation.gpus import SimulatedGpus
from sharer.simulation.hardware import write_sys_root
from tests.adapters.nvml.conftest import MakeNode, OpenDriver
from tests.adapters.nvml.gpus import A, B, mig, only, with_migs

EVERY_FIELD = {
    "minor_number": "nvmlDeviceGetMinorNumber",
    "product": "nvmlDeviceGetName",
    "compute_capability": "nvmlDeviceGetCudaComputeCapability",
    "pci_bus_id": "nvmlDeviceGetPciInfo_v3",
}


def test_every_gpu_is_found_with_all_that_is_its_own(
    make_node: MakeNode, open_driver: OpenDriver, sys_root: Path
) -> None:
    """P26: two GPUs of different size on one node; nothing of the first is taken for the second."""
    write_sys_root(sys_root, [A, B])
    inventory = open_driver(make_node(A, B)).discover()
    assert inventory.driver_version == "580.95.05"
    assert inventory.warnings == ()
    assert inventory.gpus == (
        PhysicalGpu(
            uuid="GPU-a",
            index=0,
            minor_number=1,
            product="NVIDIA A100-SXM4-80GB",
            memory_bytes=80 * GIB,
            compute_capability=(8, 0),
            pci_bus_id="00000000:3B:00.0",
            numa_node=1,
            mig_enabled=None,
            lost=None,
        ),
        PhysicalGpu(
            uuid="GPU-b",
            index=1,
            minor_number=0,
            product="NVIDIA L4",
            memory_bytes=23034 * MIB,
            compute_capability=(8, 9),
            pci_bus_id="00000001:AF:00.0",
            numa_node=None,
            mig_enabled=None,
            lost=None,
        ),
    )


def test_gpus_that_have_not_joined_their_nvlink_fabric_are_warned_of_with_the_cure(
    make_node: MakeNode, open_driver: OpenDriver
) -> None:
    """Neighbour of P17. Reported of machines with NVLink switches: all looks well after a boot, and each CUDA program
    fails with error 802, as long as the Fabric Manager has not come up.
    """
    node = make_node(replace(A, fabric_state=2), replace(B, fabric_state=2))
    driver = open_driver(node)
    inventory = driver.discover()
    assert inventory.warnings == (
        "joining the NVLink fabric is in progress for GPU-a, GPU-b: until then CUDA cannot start there (error 802);"
        " nvidia-fabricmanager has to run on this node",
    )
    assert [gpu.lost for gpu in inventory.gpus] == [None, None]
    node.put(replace(A, fabric_state=3))
    node.put(replace(B, fabric_state=0))
    assert driver.discover().warnings == ()


def test_a_numa_node_that_cannot_be_read_is_unknown_with_the_reason(
    make_node: MakeNode, open_driver: OpenDriver
) -> None:
    gpu = only(open_driver(make_node(A)).discover().gpus)
    assert gpu.numa_node is None
    assert "0000:3b:00.0/numa_node" in dict(gpu.unknown)["numa_node"]


@pytest.mark.parametrize("code", [3, 13, 999, 4, 17, 12345])
@pytest.mark.parametrize("field", EVERY_FIELD)
def test_a_failed_query_costs_its_field_of_its_gpu_and_says_why(
    make_node: MakeNode, open_driver: OpenDriver, field: str, code: int
) -> None:
    node = make_node(A, B)
    node.fail(EVERY_FIELD[field], code, uuid="GPU-a")
    broken, whole = open_driver(node).discover().gpus
    assert getattr(broken, field) is None
    assert f"{EVERY_FIELD[field]}: NVML error {code}" in dict(broken.unknown)[field]
    assert broken.memory_bytes == 80 * GIB
    assert broken.lost is None
    assert getattr(whole, field) is not None


@pytest.mark.parametrize("field", EVERY_FIELD)
def test_a_function_that_an_older_driver_lacks_costs_its_field(
    make_node: MakeNode, open_driver: OpenDriver, field: str
) -> None:
    gpu = only(open_driver(make_node(A, missing=[EVERY_FIELD[field]])).discover().gpus)
    assert getattr(gpu, field) is None
    assert "this driver has no such function" in dict(gpu.unknown)[field]


def test_a_driver_without_mig_functions_has_gpus_without_mig(make_node: MakeNode, open_driver: OpenDriver) -> None:
    gpu = only(open_driver(make_node(replace(A, mig_enabled=True), missing=["nvmlDeviceGetMigMode"])).discover().gpus)
    assert (gpu.mig_enabled, gpu.mig_devices) == (None, ())
    assert "mig_enabled" not in dict(gpu.unknown), "no MIG mode is an answer"


def test_a_mig_mode_that_cannot_be_read_is_not_taken_for_none(make_node: MakeNode, open_driver: OpenDriver) -> None:
    """Neighbour of P18: it may be on."""
    node = make_node(A)
    node.fail("nvmlDeviceGetMigMode", 999)
    gpu = only(open_driver(node).discover().gpus)
    assert gpu.mig_enabled is None
    assert "unknown error of the driver" in dict(gpu.unknown)["mig_enabled"]


def test_without_version_2_of_the_memory_query_version_1_is_asked(make_node: MakeNode, open_driver: OpenDriver) -> None:
    node = make_node(A, missing=["nvmlDeviceGetMemoryInfo_v2"])
    assert only(open_driver(node).discover().gpus).memory_bytes == 80 * GIB
    assert node.calls("nvmlDeviceGetMemoryInfo") == 1


def test_unified_memory_is_unknown_memory_of_a_gpu_that_is_there(make_node: MakeNode, open_driver: OpenDriver) -> None:
    """P25: "not supported" is the answer of a GPU that shares the CPU's memory."""
    unified, other = open_driver(make_node(replace(A, memory_bytes=None), B)).discover().gpus
    assert unified.memory_bytes is None
    assert unified.lost is None
    assert "not supported" in dict(unified.unknown)["memory_bytes"]
    assert other.memory_bytes == 23034 * MIB


@pytest.mark.parametrize(
    ("memory_bytes", "used_bytes"), [(0, 0), (8 * GIB, 9 * GIB), (2**64 - 1, 0), (2**50, 2**49)], ids=str
)
def test_memory_that_cannot_be_true_is_unknown(
    make_node: MakeNode, open_driver: OpenDriver, memory_bytes: int, used_bytes: int
) -> None:
    """P23, P25: 0 would be no limit at all."""
    node = make_node(replace(A, memory_bytes=memory_bytes, used_bytes=used_bytes))
    gpu = only(open_driver(node).discover().gpus)
    assert gpu.memory_bytes is None
    assert "cannot be true" in dict(gpu.unknown)["memory_bytes"]


def test_a_name_with_bad_bytes_is_an_unknown_name(make_node: MakeNode, open_driver: OpenDriver) -> None:
    broken, whole = open_driver(make_node(replace(A, name=b"NVIDIA \xff\xfe"), B)).discover().gpus
    assert broken.product is None
    assert "not UTF-8" in dict(broken.unknown)["product"]
    assert (broken.memory_bytes, whole.product) == (80 * GIB, "NVIDIA L4")


def test_an_empty_name_is_an_unknown_name(make_node: MakeNode, open_driver: OpenDriver) -> None:
    gpu = only(open_driver(make_node(replace(A, name=b""))).discover().gpus)
    assert "empty" in dict(gpu.unknown)["product"]


def test_a_compute_capability_of_zero_is_unknown(make_node: MakeNode, open_driver: OpenDriver) -> None:
    gpu = only(open_driver(make_node(replace(A, compute_capability=(0, 0)))).discover().gpus)
    assert gpu.compute_capability is None
    assert "compute_capability" in dict(gpu.unknown)


def test_a_compute_mode_that_keeps_processes_off_is_found_with_its_name(
    make_node: MakeNode, open_driver: OpenDriver
) -> None:
    """Neighbour of P24: somebody else sets it at any time, and `nvidia-smi` is all that would tell."""
    simulated = make_node(A, B)
    driver = open_driver(simulated)
    simulated.set_compute_mode(A.uuid, 3)
    assert [gpu.restricted for gpu in driver.discover().gpus] == ["exclusive process", None]
    simulated.set_compute_mode(A.uuid, 2)
    assert [gpu.restricted for gpu in driver.discover().gpus] == ["prohibited", None]
    simulated.set_compute_mode(A.uuid, 0)
    assert [gpu.restricted for gpu in driver.discover().gpus] == [None, None]


def test_a_driver_that_does_not_tell_its_version_is_warned_of(make_node: MakeNode, open_driver: OpenDriver) -> None:
    inventory = open_driver(make_node(A, driver_version=None)).discover()
    assert inventory.driver_version is None
    assert "version" in only(inventory.warnings)


# GPUs that are lost.


def test_a_gpu_that_falls_off_the_bus_is_lost_and_the_rest_is_found(
    make_node: MakeNode, open_driver: OpenDriver
) -> None:
    """P15: from now on every call on it answers GPU_IS_LOST."""
    node = make_node(A, B)
    driver = open_driver(node)
    before = driver.discover()
    node.lose("GPU-a")
    lost, whole = driver.discover().gpus
    assert lost.uuid == "GPU-a"
    assert "fallen off the bus" in (lost.lost or "")
    assert dict(lost.unknown)["memory_bytes"] == lost.lost
    assert whole == before.gpus[1]
    node.clear()
    assert driver.discover() == before


def test_a_gpu_that_was_lost_before_the_start_is_warned_of(make_node: MakeNode, open_driver: OpenDriver) -> None:
    """P15, after a restart: nobody knows its UUID any more."""
    node = make_node(A, B)
    node.lose("GPU-a")
    inventory = open_driver(node).discover()
    assert [gpu.uuid for gpu in inventory.gpus] == ["GPU-b"]
    assert inventory.gpus[0].index == 1
    assert "GPU 0 cannot be asked" in only(inventory.warnings)


def test_a_gpu_that_gets_lost_while_it_is_looked_at_keeps_what_was_read(
    make_node: MakeNode, open_driver: OpenDriver
) -> None:
    """Neighbour of P15: between two questions of one look."""
    node = make_node(A, B)
    node.fail("nvmlDeviceGetMemoryInfo_v2", 15, uuid="GPU-a")
    lost, whole = open_driver(node).discover().gpus
    assert (lost.product, lost.memory_bytes, lost.compute_capability) == ("NVIDIA A100-SXM4-80GB", None, None)
    assert lost.lost is not None
    assert whole.lost is None
    assert node.calls("nvmlDeviceGetMemoryInfo", uuid="GPU-a") == 0, "a lost GPU is not asked again"


def test_a_gpu_without_a_readable_uuid_is_warned_of(make_node: MakeNode, open_driver: OpenDriver) -> None:
    """Neighbour of P15: one that was lost before anybody knew it."""
    node = make_node(A, B)
    node.fail("nvmlDeviceGetUUID", 999, uuid="GPU-b")
    inventory = open_driver(node).discover()
    assert [gpu.uuid for gpu in inventory.gpus] == ["GPU-a"]
    assert "GPU 1" in only(inventory.warnings)


PER_GPU_FUNCTIONS = [
    "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetUUID", "nvmlDeviceGetName", "nvmlDeviceGetMinorNumber",
    "nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetMigMode",
    "nvmlDeviceGetCudaComputeCapability", "nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetMigDeviceHandleByIndex",
    "nvmlDeviceGetAttributes_v2", "nvmlDeviceGetGpuInstanceId", "nvmlDeviceGetComputeInstanceId", "*",
]  # fmt: skip


@given(
    faults=st.lists(
        st.tuples(
            st.sampled_from(PER_GPU_FUNCTIONS),
            st.sampled_from([1, 2, 3, 4, 6, 7, 9, 13, 15, 16, 17, 19, 999, 54321]),
            st.integers(0, 3),
            st.none() | st.integers(1, 3),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_whatever_one_gpu_answers_the_others_are_found_as_they_are(
    faults: list[tuple[str, int, int, int | None]],
) -> None:
    """P15. Only on the Python NVML: the C library would be loaded hundreds of times."""
    node = SimulatedGpus([with_migs(mig(0), mig(2)), with_migs(mig(4), uuid="GPU-b"), replace(A, uuid="GPU-c")])
    with contextlib.closing(NvmlDriver(node.library)) as driver:
        expected = driver.discover().gpus
        for function, code, after, times in faults:
            node.fail(function, code, uuid="GPU-b", after=after, times=times)
        for _ in range(3):
            found = {gpu.uuid: gpu for gpu in driver.discover().gpus}
            assert (found["GPU-a"], found["GPU-c"]) == (expected[0], expected[2])
        node.clear()
        assert driver.discover().gpus == expected
