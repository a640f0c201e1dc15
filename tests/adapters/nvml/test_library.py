"""Where the driver's library is looked for, and what is said if it is not there or not right."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sharer.adapters.nvml import InstalledLibrary, NvmlDriver
from sharer.adapters.nvml.errors import VERSION_MISMATCH
from sharer.adapters.nvml.library import FOLDERS, NAME, is_given, resolve_below
from sharer.core.errors import FinalError, NodeError
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


def test_no_library_anywhere_is_said_in_short_with_the_cure_and_every_place_goes_to_the_debug_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    with pytest.raises(NodeError, match=f"at none of {len(FOLDERS)} usual places") as caught:
        found(tmp_path)
    named = [folder for folder in FOLDERS if str(tmp_path / folder / NAME) in str(caught.value)]
    assert named == [FOLDERS[0], FOLDERS[-1]]
    assert "--driver-library" in str(caught.value)
    assert all(str(tmp_path / folder / NAME) in caplog.text for folder in FOLDERS)


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


# ---- a library that a container was given, and that the host has replaced since


def lines(*mount_points: str) -> str:
    """As in /proc/PID/mountinfo (proc(5))."""
    return "".join(
        f"{100 + i} 99 8:1 /x {point} ro,nosuid - ext4 /dev/sda1 ro\n" for i, point in enumerate(mount_points)
    )


class Loaded:
    """Stands in for a `ctypes.CDLL`."""

    def __init__(self, name: str) -> None:
        self._name = name


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("/usr/lib64/libnvidia-ml.so.580.95.05", True),
        ("/usr/my lib/libnvidia-ml.so.1", True),
        ("/usr/lib64/libnvidia-ml.so.590.10.01", False),
        ("/host/usr/lib64/libnvidia-ml.so.580.95.05", False),
        (NAME, False),
    ],
)
def test_a_library_is_the_container_s_own_if_that_file_is_a_mount(tmp_path: Path, name: str, given: bool) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        lines("/", "/usr/lib64", "/host", "/usr/lib64/libnvidia-ml.so.580.95.05", r"/usr/my\040lib/libnvidia-ml.so.1")
    )
    assert is_given(Loaded(name), mounts) is given


def test_what_is_not_known_to_be_the_container_s_own_is_not(tmp_path: Path) -> None:
    assert not is_given(Loaded("/a/b"), tmp_path / "none")
    assert not is_given(object(), tmp_path / "none")
    (tmp_path / "mountinfo").write_text("nonsense\n")
    assert not is_given(Loaded("/a/b"), tmp_path / "mountinfo")


def test_an_outdated_library_that_no_other_can_replace_is_final(tmp_path: Path) -> None:
    """P17: what the runtime gave a container stays the old driver's; only a new container has the new one's."""
    node = InstalledGpus(tmp_path / "driver", [A])
    driver = NvmlDriver(node.library, is_given=lambda _: True)
    driver.discover()
    driver.pause("the driver is upgraded")
    driver.resume()
    node.fail("nvmlInitWithFlags", VERSION_MISMATCH)
    with pytest.raises(FinalError, match=r"given the library of the one before \(.*libnvidia-ml.*\): the agent ends"):
        driver.discover()
    node.clear()
    assert driver.discover().gpus, "nobody is kept from asking"
    driver.close()
    node.close()


@pytest.mark.parametrize(("given", "worked"), [(False, True), (True, False)])
def test_a_mismatch_that_a_new_container_would_have_too_is_waited_out(
    tmp_path: Path, given: bool, worked: bool
) -> None:
    """P17: a library from the host's folder is replaced in place; one that never worked is the newest there is."""
    node = InstalledGpus(tmp_path / "driver", [A])
    driver = NvmlDriver(node.library, is_given=lambda _: given)
    if worked:
        driver.discover()
        driver.pause("the driver is upgraded")
        driver.resume()
    node.fail("nvmlInitWithFlags", VERSION_MISMATCH)
    with pytest.raises(NodeError, match="reboot the node") as caught:
        driver.discover()
    assert not isinstance(caught.value, FinalError)
    driver.close()
    node.close()


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
