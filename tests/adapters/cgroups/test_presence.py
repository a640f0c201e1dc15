"""Pod cgroups are found on every layout, and whether somebody lives in them is told or an error, never guessed."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from sharer.adapters.cgroups import Cgroups, cgroup_version
from sharer.adapters.watch import DirectoryWatch
from sharer.core.errors import NodeError

UID = "6a9f3b1e-4f0d-4d64-9d0a-1b6a3f9d8c11"
OTHER = "11111111-2222-3333-4444-555555555555"
HASH = "0123456789abcdef0123456789abcdef"
BARS = UID.replace("-", "_")
PAUSE, APP = "a" * 64, "b" * 64


class ByHand:
    """A watcher that a test lets call."""

    def __init__(self) -> None:
        self.changed: dict[str, Callable[[], None]] = {}

    def subscribe(self, directory: str, changed: Callable[[], None]) -> Callable[[], None]:
        self.changed[directory] = changed
        return lambda: self.changed.pop(directory, None) and None


def cgroup2(folder: Path, *, populated: bool) -> None:
    """A cgroup of version 2."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cgroup.events").write_text(f"populated {int(populated)}\nfrozen 0\n")
    (folder / "cgroup.procs").touch()


def cgroup1(folder: Path, procs: str = "") -> None:
    """A cgroup of version 1."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cgroup.procs").write_text(procs)


def unified(root: Path) -> Path:
    """The root of a hierarchy of version 2."""
    root.mkdir(parents=True, exist_ok=True)
    (root / "cgroup.controllers").write_text("cpu memory pids\n")
    return root


def read(root: Path) -> dict[str, bool]:
    return dict(Cgroups(root, ByHand()).read().populated)


@pytest.mark.parametrize(
    ("mounted", "version"),
    [
        (("cgroup.controllers", "kubepods.slice"), "v2"),
        (("unified/cgroup.controllers", "memory", "systemd"), "hybrid"),
        (("memory", "systemd"), "v1"),
        ((), None),
    ],
)
def test_how_cgroups_are_mounted_is_told_by_what_lies_at_their_root(
    tmp_path: Path, mounted: tuple[str, ...], version: str | None
) -> None:
    for name in mounted:
        (tmp_path / name).mkdir(parents=True)
    assert cgroup_version(tmp_path) == version
    assert cgroup_version(tmp_path / "nowhere") is None


@pytest.mark.parametrize(
    ("folder", "uid"),
    [
        (f"kubepods/pod{UID}", UID),
        (f"kubepods/burstable/pod{UID}", UID),
        (f"kubepods/besteffort/pod{HASH}", HASH),
        (f"kubepods.slice/kubepods-pod{BARS}.slice", UID),
        (f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{BARS}.slice", UID),
        (f"kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{HASH}.slice", HASH),
        (f"kubelet/kubepods/burstable/pod{UID}", UID),
        (
            "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice"
            f"/kubelet-kubepods-burstable-pod{BARS}.slice",
            UID,
        ),
        (f"anything/kubepods/pod{UID}", UID),
    ],
)
def test_a_pod_is_found_with_every_driver_and_below_every_root(tmp_path: Path, folder: str, uid: str) -> None:
    """runtime-facts 44, 46."""
    cgroup2(unified(tmp_path) / folder, populated=True)
    assert read(tmp_path) == {uid: True}


def test_what_only_looks_like_a_pod_is_none(tmp_path: Path) -> None:
    for name in ("burstable", "podcast", f"pod{UID}x", "system.slice", f"pod{UID[:-1]}"):
        cgroup2(unified(tmp_path) / "kubepods" / name, populated=True)
    cgroup2(tmp_path / f"user.slice/pod{UID}", populated=True)
    assert read(tmp_path) == {}


def test_a_pod_of_version_2_lives_while_its_cgroup_is_populated(tmp_path: Path) -> None:
    cgroup2(unified(tmp_path) / f"kubepods/pod{UID}", populated=True)
    cgroup2(tmp_path / f"kubepods/pod{OTHER}", populated=False)
    assert read(tmp_path) == {UID: True, OTHER: False}


@pytest.mark.parametrize("controller", ["systemd", "pids", "memory", "cpu"])
def test_a_pod_of_version_1_lives_while_a_container_of_it_has_a_process(tmp_path: Path, controller: str) -> None:
    """Without host PIDs, the processes of others read as 0 (runtime-facts 52)."""
    pods = tmp_path / controller / "kubepods/burstable"
    cgroup1(pods / f"pod{UID}")
    cgroup1(pods / f"pod{UID}" / PAUSE)
    cgroup1(pods / f"pod{UID}" / APP, "0\n")
    cgroup1(pods / f"pod{OTHER}" / PAUSE)
    assert read(tmp_path) == {UID: True, OTHER: False}


def test_a_process_below_a_container_counts_and_one_in_the_pod_itself(tmp_path: Path) -> None:
    """crun's `container`, systemd in a container."""
    pods = tmp_path / "pids/kubepods"
    cgroup1(pods / f"pod{UID}" / APP / "container/init.scope", "42\n")
    cgroup1(pods / f"pod{OTHER}", "42\n")
    assert read(tmp_path) == {UID: True, OTHER: True}


def test_on_a_hybrid_host_the_empty_unified_tree_tells(tmp_path: Path) -> None:
    """runtime-facts 40: it mirrors every pod, and only it has `populated`."""
    cgroup2(unified(tmp_path / "unified") / f"kubepods/pod{UID}", populated=True)
    cgroup1(tmp_path / f"memory/kubepods/pod{UID}")
    assert read(tmp_path) == {UID: True}


def test_on_a_hybrid_host_whose_unified_tree_has_no_pods_version_1_tells(tmp_path: Path) -> None:
    unified(tmp_path / "unified")
    cgroup1(tmp_path / f"pids/kubepods/pod{UID}" / APP, "42\n")
    assert read(tmp_path) == {UID: True}


def test_a_folder_of_pods_that_a_driver_left_behind_does_not_hide_the_other_one(tmp_path: Path) -> None:
    (unified(tmp_path) / "kubepods/burstable").mkdir(parents=True)
    cgroup2(tmp_path / f"kubepods.slice/kubepods-pod{BARS}.slice", populated=True)
    assert read(tmp_path) == {UID: True}


def test_a_cluster_inside_a_pod_is_not_looked_into(tmp_path: Path) -> None:
    cgroup2(unified(tmp_path) / f"kubepods/pod{UID}", populated=True)
    cgroup2(tmp_path / f"kubepods/pod{UID}/{APP}/kubelet/kubepods/pod{OTHER}", populated=True)
    assert read(tmp_path) == {UID: True}


def test_without_any_pods_folder_nothing_is_known_and_the_flag_is_named(tmp_path: Path) -> None:
    """A private cgroup namespace, or a host path that was not mounted: silence must not look like dead pods."""
    with pytest.raises(NodeError, match=r"below .*: no hierarchy has a kubepods folder.*--cgroup-root"):
        read(unified(tmp_path))
    with pytest.raises(NodeError):
        read(tmp_path / "missing")


def test_a_pod_that_is_gone_is_not_in_the_reading(tmp_path: Path) -> None:
    cgroups = Cgroups(unified(tmp_path), ByHand())
    pod = tmp_path / f"kubepods/pod{UID}"
    cgroup2(pod, populated=True)
    assert cgroups.read().populated == {UID: True}
    for file in pod.iterdir():
        file.unlink()
    pod.rmdir()
    assert cgroups.read().populated == {}


def test_what_cannot_be_read_is_an_error_and_not_a_dead_pod(tmp_path: Path) -> None:
    """EIO, EACCES, a full table of open files: no news. A loop of links is one that root cannot read either."""
    pod = unified(tmp_path) / f"kubepods/pod{UID}"
    pod.mkdir(parents=True)
    (pod / "cgroup.events").symlink_to("cgroup.events")
    with pytest.raises(NodeError, match=rf"cannot be read: {pod}/cgroup\.events: Too many levels"):
        read(tmp_path)


def test_a_pod_of_version_1_is_alive_also_when_another_container_of_it_is_by_now(tmp_path: Path) -> None:
    """Where somebody lived last time is looked at first, and not believed for ever."""
    pod = tmp_path / f"pids/kubepods/pod{UID}"
    cgroups = Cgroups(tmp_path, ByHand())
    for alive in (PAUSE, APP, None):
        for leaf in (PAUSE, APP):
            cgroup1(pod / leaf, "42\n" if leaf == alive else "")
        assert cgroups.read().populated == {UID: alive is not None}


def test_the_folders_of_the_pods_that_matter_are_followed_and_no_others(tmp_path: Path) -> None:
    watcher = ByHand()
    cgroups = Cgroups(unified(tmp_path), watcher)
    for uid in (UID, OTHER):
        cgroup2(tmp_path / f"kubepods/pod{uid}", populated=True)
    told: list[str] = []
    cgroups.follow([UID], lambda: told.append("early"))
    assert not watcher.changed, "a pod's folder is known once it was read"
    cgroups.read()
    cgroups.follow([UID, HASH], lambda: told.append("changed"))
    assert list(watcher.changed) == [f"{tmp_path}/kubepods/pod{UID}"]
    watcher.changed[f"{tmp_path}/kubepods/pod{UID}"]()
    assert told == ["changed"], "it may have changed between the reading and now"
    watcher.changed[f"{tmp_path}/kubepods/pod{UID}"]()
    assert told == ["changed"], "a watcher calls every second, and nothing has"
    cgroup2(tmp_path / f"kubepods/pod{UID}" / APP, populated=True)
    watcher.changed[f"{tmp_path}/kubepods/pod{UID}"]()
    assert told == ["changed"] * 2
    shutil.rmtree(tmp_path / f"kubepods/pod{UID}")
    watcher.changed[f"{tmp_path}/kubepods/pod{UID}"]()
    assert told == ["changed"] * 3
    cgroups.follow([OTHER], lambda: None)
    assert list(watcher.changed) == [f"{tmp_path}/kubepods/pod{OTHER}"]
    cgroups.follow([], lambda: None)
    assert not watcher.changed


@contextmanager
def real_cgroup() -> Iterator[Path]:
    """A cgroup of this kernel's version 2 with a kubepods folder; removed afterwards. Skips where it cannot be made."""
    roots = [root for root in (Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup")) if is_cgroup2(root)]
    try:
        root = Path(tempfile.mkdtemp(prefix="sharer-test-", dir=roots[0]))
    except (IndexError, OSError) as error:
        pytest.skip(f"no cgroup of version 2 can be made here: {error}")
    try:
        (root / "kubepods").mkdir()
        yield root
    finally:
        for folder, _, _ in os.walk(root, topdown=False):
            os.rmdir(folder)


def is_cgroup2(root: Path) -> bool:
    return (root / "cgroup.controllers").exists()


def test_on_a_real_kernel_a_pod_lives_from_its_first_process_to_its_last_and_its_end_is_told_at_once() -> None:
    """runtime-facts §5, §6."""
    with real_cgroup() as root, closing(DirectoryWatch(interval_s=3600.0)) as watch:
        cgroups, changed = Cgroups(root, watch), threading.Event()
        leaf = root / f"kubepods/pod{UID}" / APP
        leaf.mkdir(parents=True)
        assert cgroups.read().populated == {UID: False}
        with subprocess.Popen(["sleep", "60"]) as process:
            (leaf / "cgroup.procs").write_text(str(process.pid))
            assert cgroups.read().populated == {UID: True}
            cgroups.follow([UID], changed.set)
            assert changed.wait(30), "a folder that is watched only now may have changed before"
            changed.clear()
            process.kill()
        assert cgroups.read().populated == {UID: False}
        leaf.rmdir()
        assert changed.wait(30)
        leaf.parent.rmdir()
        assert cgroups.read().populated == {}
