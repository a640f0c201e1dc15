"""The driver that is late, mismatched, reloaded, or does not answer at all."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sharer.adapters.nvml import NvmlDriver
from sharer.core.errors import NodeError
from sharer.simulation.gpus import SimulatedGpus
from sharer.simulation.hardware import SimulatedGpu, write_sys_root
from tests.adapters.nvml.conftest import MakeNode, OpenDriver
from tests.fakes.nvml import InstalledGpus

A, B = SimulatedGpu(uuid="GPU-a"), SimulatedGpu(uuid="GPU-b", pci_bus_id="00000000:AF:00.0")
DEADLINE_S = 1.0  # for calls that hang on purpose, and for all that they are beside


def found(driver: NvmlDriver) -> list[str]:
    return [gpu.uuid for gpu in driver.discover().gpus if gpu.lost is None]


@pytest.mark.parametrize(
    ("code", "problem", "cure"),
    [
        (9, "driver not loaded", "modprobe nvidia"),
        (18, "different versions", "reboot"),
        (4, "no permission", "root"),
        (12, "not found", "reinstall"),
        (999, "unknown error", "dmesg"),
    ],
)
def test_a_driver_that_cannot_be_opened_is_explained_with_its_cure(
    make_node: MakeNode, open_driver: OpenDriver, code: int, problem: str, cure: str
) -> None:
    """P17"""
    node = make_node(A)
    node.fail("nvmlInitWithFlags", code)
    with pytest.raises(NodeError, match=problem) as caught:
        open_driver(node).discover()
    assert f"NVML error {code}" in str(caught.value)
    assert cure in str(caught.value)


def test_a_late_driver_is_found_as_soon_as_it_is_there(make_node: MakeNode, open_driver: OpenDriver) -> None:
    """P17: not loaded, then loaded without GPUs, then with two."""
    node = make_node()
    node.init_results(9, 9)
    driver = open_driver(node)
    for _ in range(2):
        with pytest.raises(NodeError, match="driver not loaded"):
            driver.discover()
    assert driver.discover().gpus == ()
    node.set_gpus([A, B])
    assert found(driver) == ["GPU-a", "GPU-b"]


def test_a_node_without_gpus_is_an_inventory_without_gpus(make_node: MakeNode, open_driver: OpenDriver) -> None:
    inventory = open_driver(make_node()).discover()
    assert (inventory.gpus, inventory.warnings, inventory.driver_version) == ((), (), "580.95.05")


def test_a_session_that_died_is_opened_anew(make_node: MakeNode, open_driver: OpenDriver) -> None:
    """Neighbour of P17: the driver was reloaded under a running agent."""
    node = make_node(A)
    driver = open_driver(node)
    driver.discover()
    node.fail("nvmlDeviceGetCount_v2", 1, times=1)
    assert found(driver) == ["GPU-a"]
    assert node.calls("nvmlInitWithFlags") == 2


def test_gpus_that_cannot_be_counted_are_an_error_of_the_node(make_node: MakeNode, open_driver: OpenDriver) -> None:
    node = make_node(A)
    fault = node.fail("nvmlDeviceGetCount_v2", 999)
    driver = open_driver(node)
    with pytest.raises(NodeError, match="NVML does not tell its GPUs"):
        driver.discover()
    node.clear(fault)
    assert found(driver) == ["GPU-a"]


def test_a_gpu_that_is_taken_away_and_comes_back_is_seen_after_a_while(
    make_node: MakeNode, open_driver: OpenDriver
) -> None:
    """NVML looks for GPUs only when it is opened."""
    now = [0.0]
    node = make_node(A, B)
    driver = open_driver(node, reopen_after_s=60.0, now_s=lambda: now[0])
    driver.discover()
    node.remove("GPU-b")
    lost = driver.discover().gpus[1]
    assert (lost.uuid, lost.lost is not None) == ("GPU-b", True)
    now[0] = 61.0
    assert found(driver) == ["GPU-a"]
    node.put(B)
    now[0] = 100.0
    assert found(driver) == ["GPU-a"], "this session does not know it"
    node.fail("nvmlDeviceGetCount_v2", 1, times=1)
    assert found(driver) == ["GPU-a", "GPU-b"]


def test_a_new_session_is_not_opened_without_a_reason(
    make_node: MakeNode, open_driver: OpenDriver, sys_root: Path
) -> None:
    now = [0.0]
    node = make_node(A)
    write_sys_root(sys_root, [A])
    driver = open_driver(node, now_s=lambda: now[0])
    for now[0] in (0.0, 1000.0, 2000.0):
        driver.discover()
    assert node.calls("nvmlInitWithFlags") == 1


def test_a_gpu_that_is_plugged_in_while_all_others_answer_is_found_without_a_restart(
    make_node: MakeNode, open_driver: OpenDriver, sys_root: Path
) -> None:
    """Neighbour of P17. Reported of NVIDIA's plugin and operator: a card that was added was not offered before somebody
    restarted the plugin. The kernel tells of it, an open NVML does not.
    """
    now = [0.0]
    node = make_node(A)
    write_sys_root(sys_root, [A])
    driver = open_driver(node, reopen_after_s=60.0, now_s=lambda: now[0])
    assert found(driver) == ["GPU-a"]
    node.put(B)
    write_sys_root(sys_root, [B])
    now[0] = 59.0
    assert found(driver) == ["GPU-a"], "the driver is not opened again and again"
    now[0] = 60.0
    assert found(driver) == ["GPU-a", "GPU-b"]
    now[0] = 1000.0
    assert found(driver) == ["GPU-a", "GPU-b"]
    assert node.calls("nvmlInitWithFlags") == 2


def test_a_gpu_that_was_taken_off_the_bus_is_found_again_though_a_session_without_it_was_opened(
    make_node: MakeNode, open_driver: OpenDriver, sys_root: Path
) -> None:
    """Neighbour of P14: so a card is repaired, and it took hours."""
    now = [0.0]
    node = make_node(A, B)
    write_sys_root(sys_root, [A, B])
    driver = open_driver(node, reopen_after_s=60.0, now_s=lambda: now[0])
    driver.discover()
    node.remove("GPU-b")
    (sys_root / "bus/pci/drivers/nvidia/0000:af:00.0").unlink()
    driver.discover()
    now[0] = 61.0
    assert found(driver) == ["GPU-a"]
    node.put(B)
    write_sys_root(sys_root, [B])
    now[0] = 10_000.0
    assert found(driver) == ["GPU-a", "GPU-b"]


def test_a_gpu_that_the_kernel_has_and_nvml_leaves_out_is_no_reason_to_open_it_again_and_again(
    make_node: MakeNode, open_driver: OpenDriver, sys_root: Path
) -> None:
    """One that is excluded, or does not start."""
    now = [0.0]
    node = make_node(A)
    write_sys_root(sys_root, [A, B])
    driver = open_driver(node, now_s=lambda: now[0])
    for now[0] in (0.0, 100.0, 200.0):
        assert found(driver) == ["GPU-a"]
    assert node.calls("nvmlInitWithFlags") == 1


def test_closing_lets_go_of_the_driver_and_the_next_look_opens_it(make_node: MakeNode, open_driver: OpenDriver) -> None:
    node = make_node(A)
    driver = open_driver(node)
    driver.close()
    assert node.calls("nvmlShutdown") == 0, "nothing was open"
    driver.discover()
    driver.close()
    driver.close()
    assert node.calls("nvmlShutdown") == 1
    assert found(driver) == ["GPU-a"]


def test_a_second_driver_in_one_process_takes_over_and_the_first_says_so(
    make_node: MakeNode, open_driver: OpenDriver
) -> None:
    """pynvml has one library for the whole process."""
    first, second = open_driver(SimulatedGpus([A])), open_driver(make_node(B))
    assert found(first) == ["GPU-a"]
    assert found(second) == ["GPU-b"]
    with pytest.raises(NodeError, match="replaced by a newer one"):
        first.discover()
    first.close()
    assert found(second) == ["GPU-b"]


# Calls that hang.


def test_a_call_that_hangs_fails_at_its_deadline_and_later_ones_at_once_until_it_returns(
    make_node: MakeNode, open_driver: OpenDriver
) -> None:
    node = make_node(A, B)
    driver = open_driver(node, call_deadline_s=DEADLINE_S)
    driver.discover()
    fault = node.hang("nvmlDeviceGetMemoryInfo_v2", uuid="GPU-b")
    begun_s = time.monotonic()
    with pytest.raises(NodeError, match="NVML does not answer: nvmlDeviceGetMemoryInfo_v2 has been running for"):
        driver.discover()
    assert time.monotonic() - begun_s >= DEADLINE_S
    begun_s = time.monotonic()
    for _ in range(3):
        with pytest.raises(NodeError, match="NVML does not answer"):
            driver.discover()
    with pytest.raises(NodeError, match="NVML does not answer"):
        driver.close()
    assert time.monotonic() - begun_s < 3 * DEADLINE_S, "known to hang, so none of the four waits"
    node.clear(fault)
    assert eventually_found(driver) == ["GPU-a", "GPU-b"]


def test_an_nvml_that_hangs_while_it_is_opened_works_when_that_returns(
    make_node: MakeNode, open_driver: OpenDriver
) -> None:
    """Neighbour of P17: neither loaded nor missing: it does not answer."""
    node = make_node(A)
    fault = node.hang("nvmlInitWithFlags")
    driver = open_driver(node, call_deadline_s=DEADLINE_S, open_deadline_s=DEADLINE_S)
    with pytest.raises(NodeError, match="nvmlInitWithFlags has been running"):
        driver.discover()
    node.clear(fault)
    assert eventually_found(driver) == ["GPU-a"]
    assert node.calls("nvmlInitWithFlags") == 1, "the late init counts"


def test_everybody_who_waits_behind_a_call_that_hangs_is_told(make_node: MakeNode, open_driver: OpenDriver) -> None:
    node = make_node(A)
    driver = open_driver(node, call_deadline_s=DEADLINE_S)
    driver.discover()
    fault = node.hang("nvmlDeviceGetCount_v2")
    with ThreadPoolExecutor(4) as pool:
        failures = [call.exception(timeout=30) for call in [pool.submit(driver.discover) for _ in range(4)]]
    assert all(isinstance(failure, NodeError) for failure in failures)
    node.clear(fault)
    assert eventually_found(driver) == ["GPU-a"]


def test_a_job_that_nobody_waits_for_any_more_asks_nothing_more(make_node: MakeNode, open_driver: OpenDriver) -> None:
    node = make_node(A, B)
    driver = open_driver(node, call_deadline_s=DEADLINE_S)
    driver.discover()
    fault = node.hang("nvmlDeviceGetName", uuid="GPU-a")
    with pytest.raises(NodeError):
        driver.discover()
    asked = node.calls("nvmlDeviceGetName", uuid="GPU-b")
    node.clear(fault)
    assert eventually_found(driver) == ["GPU-a", "GPU-b"]
    assert node.calls("nvmlDeviceGetName", uuid="GPU-b") == asked + 1


def test_many_slow_calls_are_no_hang(make_node: MakeNode, open_driver: OpenDriver) -> None:
    node = make_node(A, B)
    node.delay("nvmlDeviceGetName", 0.5)
    node.delay("nvmlDeviceGetMemoryInfo_v2", 0.5)
    begun_s = time.monotonic()
    assert found(open_driver(node, call_deadline_s=1.8)) == ["GPU-a", "GPU-b"]
    assert time.monotonic() - begun_s >= 2.0, "longer than one call may take"


def eventually_found(driver: NvmlDriver) -> list[str]:
    """What is found once the call that hung has returned; the thread needs a moment for that."""
    end_s = time.monotonic() + 30
    while True:
        try:
            return found(driver)
        except NodeError:
            if time.monotonic() > end_s:
                raise
            threading.Event().wait(0.01)


# Other processes, and the library's file.


def test_a_library_that_comes_late_is_found_with_its_folder(open_driver: OpenDriver, tmp_path: Path) -> None:
    """P17: glibc remembers that a folder was missing at the first try; we do not."""
    node = InstalledGpus(tmp_path / "driver" / "usr" / "lib64", [A], installed=False)
    driver = open_driver(node)
    for _ in range(2):
        with pytest.raises(NodeError, match=r"is not at .*libnvidia-ml\.so\.1"):
            driver.discover()
    node.install()
    assert found(driver) == ["GPU-a"]


LOOK = """
import sys
from pathlib import Path
from sharer.adapters.nvml import InstalledLibrary, NvmlDriver
from sharer.core.errors import NodeError
driver = NvmlDriver(InstalledLibrary(Path(sys.argv[1])), call_deadline_s=float(sys.argv[2]))
for line in sys.stdin:
    try:
        print(*[gpu.uuid for gpu in driver.discover().gpus], flush=True)
    except NodeError as error:
        print(error, flush=True)
print("bye", flush=True)
"""


def test_another_process_sees_what_is_steered_and_ends_although_a_call_hangs(tmp_path: Path) -> None:
    node = InstalledGpus(tmp_path / "driver", [A])
    command = [sys.executable, "-c", LOOK, str(node.path), "1.0"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def look() -> str:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("\n")
            process.stdin.flush()
            return process.stdout.readline().strip()

        try:
            node.init_results(9)
            assert "driver not loaded" in look()
            assert look() == "GPU-a"
            node.put(B)
            node.fail("nvmlDeviceGetCount_v2", 1, times=1)
            assert look() == "GPU-a GPU-b"
            node.hang("nvmlDeviceGetName")
            assert "NVML does not answer" in look()
            process.stdin.close()
            assert process.stdout.readline() == "bye\n"
            assert process.wait(timeout=30) == 0
        finally:
            process.kill()
    node.close()
