"""The two simulated libraries fail where the real one would, and their structs are NVML's."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterator
from ctypes import byref, c_uint, c_ulonglong, create_string_buffer
from pathlib import Path

import pynvml
import pytest

from sharer.adapters.nvml.processes import FirstVersion
from sharer.simulation.hardware import SimulatedGpu, SimulatedMig, SimulatedProcess
from sharer.simulation.nvml.entry import FUNCTIONS
from sharer.simulation.steering import GpuSteering
from tests.adapters.nvml.conftest import MakeNode
from tests.fakes.nvml.build import build, header
from tests.fakes.nvml.layout import STRUCTS, CNode

SUCCESS, UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NOT_FOUND, INSUFFICIENT_SIZE, TIMEOUT = 0, 1, 2, 3, 6, 7, 10
VERSION_MISMATCH, NO_GPUS = 25, 28
GPU = SimulatedGpu(
    uuid="GPU-a",
    mig_enabled=True,
    mig_devices=(SimulatedMig(uuid="MIG-1", index=1, gpu_instance_id=7, profile="1g.10gb", memory_bytes=2**33),),
    processes=(
        SimulatedProcess(pid=7, used_bytes=2**20),
        SimulatedProcess(pid=0, used_bytes=None, gpu_instance_id=7, compute_instance_id=0),
        SimulatedProcess(pid=9, used_bytes=5, kind="graphics"),
        SimulatedProcess(pid=8, used_bytes=6, kind="mps"),
    ),
)


class Library:
    """The functions of a library, called as pynvml calls them."""

    def __init__(self, node: GpuSteering) -> None:
        self._library = node.library()

    def __call__(self, function: str, *arguments: object) -> int:
        called: Callable[..., int] = getattr(self._library, function)
        return called(*arguments)

    def device(self, index: int = 0) -> object:
        handle = pynvml.c_nvmlDevice_t()
        assert self("nvmlDeviceGetHandleByIndex_v2", c_uint(index), byref(handle)) == SUCCESS
        return handle


@pytest.fixture
def node(make_node: MakeNode) -> GpuSteering:
    return make_node(GPU)


@pytest.fixture
def library(node: GpuSteering) -> Library:
    return Library(node)


@pytest.fixture
def device(library: Library) -> object:
    assert library("nvmlInitWithFlags", 0) == SUCCESS
    return library.device()


@pytest.fixture(autouse=True)
def pynvml_is_left_as_it_was() -> Iterator[None]:
    yield
    pynvml.nvmlLib = None
    pynvml._nvmlGetFunctionPointer_cache.clear()


def test_nothing_answers_before_init_and_after_the_last_shutdown(library: Library) -> None:
    count = c_uint()
    assert library("nvmlDeviceGetCount_v2", byref(count)) == UNINITIALIZED
    assert library("nvmlShutdown") == UNINITIALIZED
    assert [library("nvmlInitWithFlags", 0), library("nvmlInitWithFlags", 0)] == [SUCCESS, SUCCESS]
    assert library("nvmlShutdown") == SUCCESS
    assert library("nvmlDeviceGetCount_v2", byref(count)) == SUCCESS
    assert count.value == 1
    assert library("nvmlShutdown") == SUCCESS
    assert library("nvmlDeviceGetCount_v2", byref(count)) == UNINITIALIZED


def test_a_node_without_gpus_is_an_error_unless_it_is_allowed(make_node: MakeNode) -> None:
    library = Library(make_node())
    assert [library("nvmlInitWithFlags", 0), library("nvmlInitWithFlags", 1)] == [NO_GPUS, SUCCESS]


def test_a_handle_of_an_earlier_session_is_refused(library: Library, device: object) -> None:
    buffer = create_string_buffer(96)
    assert library("nvmlDeviceGetUUID", device, buffer, c_uint(96)) == SUCCESS
    library("nvmlShutdown")
    assert library("nvmlDeviceGetUUID", device, buffer, c_uint(96)) == UNINITIALIZED
    library("nvmlInitWithFlags", 0)
    assert library("nvmlDeviceGetUUID", device, buffer, c_uint(96)) in (INVALID_ARGUMENT, SUCCESS)
    assert library("nvmlDeviceGetUUID", pynvml.c_nvmlDevice_t(), buffer, c_uint(96)) == INVALID_ARGUMENT


def test_null_pointers_are_refused(library: Library, device: object) -> None:
    assert library("nvmlDeviceGetUUID", device, None, c_uint(96)) == INVALID_ARGUMENT
    assert library("nvmlDeviceGetCount_v2", None) == INVALID_ARGUMENT
    assert library("nvmlDeviceGetMemoryInfo", device, None) == INVALID_ARGUMENT
    assert library("nvmlDeviceGetHandleByIndex_v2", c_uint(0), None) == INVALID_ARGUMENT


def test_an_index_that_is_too_high_is_refused(library: Library, device: object) -> None:
    handle = pynvml.c_nvmlDevice_t()
    assert library("nvmlDeviceGetHandleByIndex_v2", c_uint(1), byref(handle)) == INVALID_ARGUMENT
    assert library("nvmlDeviceGetMigDeviceHandleByIndex", device, c_uint(0), byref(handle)) == NOT_FOUND
    assert library("nvmlDeviceGetMigDeviceHandleByIndex", device, c_uint(7), byref(handle)) == INVALID_ARGUMENT


def test_a_buffer_that_is_too_small_is_refused(library: Library, device: object) -> None:
    buffer = create_string_buffer(6)
    assert library("nvmlDeviceGetUUID", device, buffer, c_uint(5)) == INSUFFICIENT_SIZE
    assert library("nvmlDeviceGetUUID", device, buffer, c_uint(6)) == SUCCESS
    assert buffer.value == b"GPU-a"


def test_a_struct_of_another_version_is_refused(library: Library, device: object) -> None:
    memory = pynvml.c_nvmlMemory_v2_t()
    memory.version = 1
    assert library("nvmlDeviceGetMemoryInfo_v2", device, byref(memory)) == VERSION_MISMATCH


def test_events_come_only_to_who_registered_and_only_later_ones(
    node: GpuSteering, library: Library, device: object
) -> None:
    node.xid("GPU-a", 1)
    event_set, data = pynvml.c_nvmlEventSet_t(), pynvml.c_nvmlEventData_t()
    assert library("nvmlEventSetWait_v2", event_set, byref(data), c_uint(0)) == INVALID_ARGUMENT
    assert library("nvmlEventSetCreate", byref(event_set)) == SUCCESS
    node.xid("GPU-a", 2)
    assert library("nvmlEventSetWait_v2", event_set, byref(data), c_uint(0)) == TIMEOUT
    assert library("nvmlDeviceRegisterEvents", device, c_ulonglong(2), event_set) == NOT_SUPPORTED
    assert library("nvmlDeviceRegisterEvents", device, c_ulonglong(8), event_set) == SUCCESS
    node.xid("GPU-a", 3)
    node.xid("GPU-a", 4, gpu_instance_id=7)
    for expected in ((3, 2**32 - 1), (4, 7)):
        assert library("nvmlEventSetWait_v2", event_set, byref(data), c_uint(0)) == SUCCESS
        assert (data.eventData, data.gpuInstanceId, data.eventType) == (*expected, 8)
    assert library("nvmlEventSetFree", event_set) == SUCCESS
    assert library("nvmlEventSetFree", event_set) == INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("ask", "expected"),
    [
        ("nvmlDeviceGetComputeRunningProcesses_v3", [(7, 2**20, 2**32 - 1), (0, None, 7)]),
        ("nvmlDeviceGetGraphicsRunningProcesses_v3", [(9, 5, 2**32 - 1)]),
        ("nvmlDeviceGetMPSComputeRunningProcesses_v3", [(8, 6, 2**32 - 1)]),
    ],
)
def test_process_lists_are_told_by_kind_with_what_is_not_known(
    node: GpuSteering, ask: str, expected: list[tuple[int, int | None, int]]
) -> None:
    pynvml.nvmlLib = node.library()
    pynvml.nvmlInitWithFlags(0)
    found = getattr(pynvml, ask)(pynvml.nvmlDeviceGetHandleByIndex(0))
    assert [(process.pid, process.usedGpuMemory, process.gpuInstanceId) for process in found] == expected


def test_a_missing_function_is_missing(make_node: MakeNode) -> None:
    node = make_node(GPU, missing=["nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetMigMode"])
    library = node.library()
    with pytest.raises(AttributeError):
        library.nvmlDeviceGetMigMode  # type: ignore[attr-defined]  # noqa: B018
    assert callable(library.nvmlDeviceGetMemoryInfo)  # type: ignore[attr-defined]


def test_calls_are_counted_by_function_and_device(node: GpuSteering, library: Library, device: object) -> None:
    buffer = create_string_buffer(96)
    for _ in range(3):
        library("nvmlDeviceGetUUID", device, buffer, c_uint(96))
    assert node.calls("nvmlDeviceGetUUID") == node.calls("nvmlDeviceGetUUID", uuid="GPU-a") == 3
    assert node.calls("nvmlDeviceGetUUID", uuid="GPU-b") == node.calls("nvmlDeviceGetName") == 0


def test_a_fault_spares_the_first_calls_and_is_used_up(node: GpuSteering, library: Library, device: object) -> None:
    node.fail("nvmlDeviceGetUUID", 15, after=1, times=2)
    buffer = create_string_buffer(96)
    assert [library("nvmlDeviceGetUUID", device, buffer, c_uint(96)) for _ in range(4)] == [0, 15, 15, 0]


def test_faults_take_turns_in_their_order(node: GpuSteering, library: Library) -> None:
    node.init_results(9, 12, 18)
    assert [library("nvmlInitWithFlags", 0) for _ in range(4)] == [9, 12, 18, SUCCESS]


# The C library.


def test_both_libraries_have_the_same_functions() -> None:
    sources = (Path(__file__).parents[2] / "fakes" / "nvml").glob("*.c")
    exported = {name for source in sources for name in re.findall(r"(?m)^nvmlReturn_t (nvml\w+)\(", source.read_text())}
    assert exported - {"nvmlInit_v2"} == set(FUNCTIONS)


@pytest.mark.parametrize(
    ("c_name", "python"),
    [
        ("nvmlMemory_t", pynvml.c_nvmlMemory_t),
        ("nvmlMemory_v2_t", pynvml.c_nvmlMemory_v2_t),
        ("nvmlPciInfo_t", pynvml.nvmlPciInfo_t),
        ("nvmlDeviceAttributes_t", pynvml.c_nvmlDeviceAttributes),
        ("nvmlEventData_t", pynvml.c_nvmlEventData_t),
        ("nvmlFieldValue_t", pynvml.c_nvmlFieldValue_t),
        ("nvmlGpuInstanceInfo_t", pynvml.c_nvmlGpuInstanceInfo_t),
        ("nvmlGpuInstanceProfileInfo_v2_t", pynvml.c_nvmlGpuInstanceProfileInfo_v2_t),
        ("nvmlSetMemoryLimits_v1_t", pynvml.c_nvmlSetMemoryLimits_v1_t),
        ("nvmlGetMemoryLimits_v1_t", pynvml.c_nvmlGetMemoryLimits_v1_t),
        ("nvmlProcessInfo_v1_t", FirstVersion),
        ("nvmlProcessInfo_v2_t", pynvml.c_nvmlProcessInfo_v3_t),
        *((f"struct {struct.__name__.removeprefix('C').lower()}", struct) for struct in STRUCTS),
        ("struct node up to its lock", CNode),
    ],
)
def test_a_struct_has_the_size_that_the_compiler_gives_it(c_name: str, python: type[ctypes.Structure]) -> None:
    library = ctypes.CDLL(str(build()))
    library.fake_sizeof.restype = ctypes.c_uint64
    assert library.fake_sizeof(c_name.encode()) == ctypes.sizeof(python) > 0


def test_the_header_is_nvidias_own() -> None:
    assert "nvmlDeviceGetNvLinkRemotePciInfo_v2" in header().read_text()
