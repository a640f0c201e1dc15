"""In a process of its own, with the real pynvml on a library built from C."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sharer.simulation.hardware import SimulatedGpu
from sharer.simulation.products import parse_gpus
from tests.cli.running import Ran, run, write_policy
from tests.fakes.nvml import InstalledGpus


def devices(library: Path, *arguments: str) -> Ran:
    command = [sys.executable, "-m", "sharer", "devices", "--driver-library", str(library), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return Ran(done.returncode, done.stdout, done.stderr)


def known(gpu: SimulatedGpu) -> SimulatedGpu:
    """Without what this machine's sysfs does not know of it."""
    return replace(gpu, pci_bus_id=None)


@pytest.fixture
def gpus(tmp_path: Path) -> Iterator[InstalledGpus]:
    installed = InstalledGpus(tmp_path / "lib", parse_gpus("A100-80GB,A30:mig(1g.6gb+me)"))
    yield installed
    installed.close()


def test_the_table_has_a_line_for_each_gpu_and_mig_device(gpus: InstalledGpus) -> None:
    ran = devices(gpus.path)
    first, second = gpus.gpus
    assert ran.out.startswith("2 GPUs, driver 580.95.05\n")
    assert ran.row(first.uuid) == ["0", first.uuid, "NVIDIA", "A100-SXM4-80GB", "80", "GiB", "off"]
    assert ran.row(second.uuid)[-1] == "on"
    assert ran.row(second.mig_devices[0].uuid) == (
        ["1:0", second.mig_devices[0].uuid, "MIG", "device", "5.8", "GiB", "1g.6gb+me"]
    )


def test_the_json_is_an_inventory_that_policy_plan_takes(gpus: InstalledGpus, tmp_path: Path) -> None:
    ran = devices(gpus.path, "-o", "json")
    assert json.loads(ran.out)["kind"] == "Inventory"
    file = tmp_path / "node.json"
    file.write_text(ran.out)
    planned = run("policy", "plan", write_policy(tmp_path, slices=4), "--inventory", file, "-o", "json").document()
    assert [device["uuid"] for device in planned["resources"][0]["devices"]] == [gpus.gpus[0].uuid]


def test_yaml_says_the_same_as_json(gpus: InstalledGpus) -> None:
    assert f"uuid: {gpus.gpus[0].uuid}" in devices(gpus.path, "-o", "yaml").out


def test_the_wide_table_has_what_drivers_and_topology_need(gpus: InstalledGpus) -> None:
    ran = devices(gpus.path, "-o", "wide")
    assert ran.row(gpus.gpus[0].uuid)[-5:] == ["8.0", "00000000:10:00.0", "unknown", "0", "present"]


def test_a_value_that_the_driver_does_not_tell_is_unknown_with_the_reason_and_the_data_are_partial(
    tmp_path: Path,
) -> None:
    """P25."""
    (gpu,) = parse_gpus("GB10")
    installed = InstalledGpus(tmp_path / "lib", [gpu])
    ran = devices(installed.path)
    installed.close()
    assert ran.status == 3
    assert ran.row(gpu.uuid)[4] == "unknown"
    assert f"  GPU 0, {gpu.uuid}: memory bytes is unknown: " in ran.out


def test_a_lost_gpu_is_still_listed_and_said_to_be_lost_once(gpus: InstalledGpus) -> None:
    """P15."""
    lost = gpus.gpus[0].uuid
    gpus.fail("nvmlDeviceGetMemoryInfo_v2", 15, uuid=lost)
    ran = devices(gpus.path)
    assert ran.status == 3
    assert ran.out.count(f"GPU 0, {lost}: ") == 1
    assert f"GPU 0, {lost}: lost: " in ran.out


def test_without_a_driver_one_sentence_says_what_to_do(tmp_path: Path) -> None:
    """P17."""
    ran = devices(tmp_path / "missing.so")
    assert (ran.status, ran.out) == (1, "")
    assert ran.err.startswith(f"the NVIDIA driver's library is not at {tmp_path}/missing.so")
    assert len(ran.err.splitlines()) == 1


def test_a_driver_without_gpus_is_fine(tmp_path: Path) -> None:
    installed = InstalledGpus(tmp_path / "lib")
    ran = devices(installed.path)
    installed.close()
    assert ran == (0, "no GPUs, driver 580.95.05\n", "")
