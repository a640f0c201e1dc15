"""Where the driver's library is looked for, and what is said if it is not there or not right."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sharer.adapters.nvml import InstalledLibrary, NvmlDriver
from sharer.adapters.nvml.library import FOLDERS, NAME, resolve_below
from sharer.core.errors import NodeError
from sharer.simulation.hardware import SimulatedGpu
from tests.fakes.nvml import InstalledGpus

A, B = SimulatedGpu(uuid="GPU-a"), SimulatedGpu(uuid="GPU-b")


def found(*roots: Path, path: Path | None = None) -> list[str]:
    driver = NvmlDriver(InstalledLibrary(path, roots))
    gpus = [gpu.uuid for gpu in driver.discover().gpus]
    driver.close()
    return gpus


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_library_is_found_in_every_usual_folder_of_the_host(tmp_path: Path, folder: str) -> None:
    InstalledGpus(tmp_path / folder, [A]).close()
    assert found(tmp_path) == ["GPU-a"]


def test_the_first_root_counts(tmp_path: Path) -> None:
    InstalledGpus(tmp_path / "host/usr/lib64", [A]).close()
    InstalledGpus(tmp_path / "own/usr/lib64", [B]).close()
    assert found(tmp_path / "host", tmp_path / "own") == ["GPU-a"]
    assert found(tmp_path / "none", tmp_path / "own") == ["GPU-b"]


def test_a_named_file_is_the_only_one_that_counts(tmp_path: Path) -> None:
    node = InstalledGpus(tmp_path / "elsewhere", [A])
    InstalledGpus(tmp_path / "usr/lib64", [B]).close()
    assert found(tmp_path, path=node.path) == ["GPU-a"]
    with pytest.raises(NodeError, match=r"is not at /nowhere/libnvidia-ml\.so\.1 \(--driver-library\)"):
        found(tmp_path, path=Path("/nowhere/libnvidia-ml.so.1"))
    node.close()


def test_a_named_file_may_be_named_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    InstalledGpus(tmp_path / "here", [A]).close()
    monkeypatch.chdir(tmp_path)
    assert found(path=Path("here") / NAME) == ["GPU-a"]


def test_no_library_anywhere_is_said_with_all_places_and_the_cure(tmp_path: Path) -> None:
    with pytest.raises(NodeError, match="is not installed below") as caught:
        found(tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert all(folder in str(caught.value) for folder in FOLDERS)
    assert "--driver-library" in str(caught.value)


@pytest.mark.skipif(
    any((Path("/") / folder / NAME).exists() for folder in FOLDERS), reason="this machine has an NVIDIA driver"
)
def test_last_of_all_counts_what_the_dynamic_loader_finds_by_name(tmp_path: Path) -> None:
    node = InstalledGpus(tmp_path / "odd", [A])
    look = "from sharer.adapters.nvml import NvmlDriver; print(*[gpu.uuid for gpu in NvmlDriver().discover().gpus])"
    command, environment = [sys.executable, "-c", look], os.environ | {"LD_LIBRARY_PATH": str(node.path.parent)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "GPU-a\n"
    node.close()


@pytest.mark.parametrize("content", [b"", b"not a library", b"\x7fELF\x01\x01\x01"], ids=["empty", "text", "32-bit"])
def test_a_broken_library_is_named_with_its_fault_and_the_next_one_is_tried(tmp_path: Path, content: bytes) -> None:
    broken = tmp_path / FOLDERS[0] / NAME
    broken.parent.mkdir(parents=True)
    broken.write_bytes(content)
    with pytest.raises(NodeError, match="cannot be loaded") as caught:
        found(tmp_path)
    assert str(broken) in str(caught.value)
    InstalledGpus(tmp_path / FOLDERS[2], [A]).close()
    assert found(tmp_path) == ["GPU-a"]


def test_absolute_links_are_followed_inside_the_hosts_tree(tmp_path: Path) -> None:
    """Debian's alternatives: the name is an absolute link to another absolute link."""
    host = tmp_path / "host"
    InstalledGpus(host / "usr/lib/nvidia/current", [A]).close()
    (host / "etc/alternatives").mkdir(parents=True)
    (host / "etc/alternatives/nvml").symlink_to(f"/usr/lib/nvidia/current/{NAME}")
    (host / FOLDERS[0]).mkdir(parents=True)
    (host / FOLDERS[0] / NAME).symlink_to("/etc/alternatives/nvml")
    assert found(host) == ["GPU-a"]


def test_links_in_a_circle_lead_nowhere(tmp_path: Path) -> None:
    (tmp_path / "usr/lib64").mkdir(parents=True)
    (tmp_path / "usr/lib64" / NAME).symlink_to(f"/usr/lib64/{NAME}")
    with pytest.raises(NodeError, match="is not installed"):
        found(tmp_path)


def test_dots_do_not_lead_out_of_the_root(tmp_path: Path) -> None:
    (tmp_path / "usr").mkdir()
    os.symlink("../../../../etc/nvml", tmp_path / "usr/link")
    assert resolve_below(tmp_path, tmp_path / "usr/link") == tmp_path / "etc/nvml"


def test_an_upgraded_driver_is_used_without_a_restart(tmp_path: Path) -> None:
    """The file's name stays, the file behind it changes: glibc would go on with the old one."""
    folder = tmp_path / "usr/lib64"
    old = InstalledGpus(folder / "580", [A], driver_version="580.95.05")
    new = InstalledGpus(folder / "590", [A], driver_version="590.10.01")
    (folder / NAME).symlink_to(f"580/{NAME}")
    driver = NvmlDriver(InstalledLibrary(None, [tmp_path]))
    assert driver.discover().driver_version == "580.95.05"
    (folder / "new").symlink_to(f"590/{NAME}")
    (folder / "new").replace(folder / NAME)
    old.fail("nvmlDeviceGetCount_v2", 18)
    assert driver.discover().driver_version == "590.10.01"
    driver.close()
    old.close()
    new.close()
