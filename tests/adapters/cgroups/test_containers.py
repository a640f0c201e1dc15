"""Where the cgroups of pods and containers are, whose they are, and when they come and go."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from sharer.adapters.cgroups.containers import SCRATCH, CgroupTree
from sharer.adapters.watch import DirectoryWatch
from sharer.core.errors import NodeError
from tests.fakes.cgroups import FakeCgroups
from tests.fakes.clock import Clock
from tests.fakes.no_watch import NoWatch

UID, OTHER = "0e1f8a3b-0000-4000-8000-00000000000a", "0e1f8a3b-0000-4000-8000-00000000000b"
ONE, TWO = "1" * 64, "2" * 64
GIVE_UP_S = 30.0


@pytest.fixture
def tree(tmp_path: Path) -> FakeCgroups:
    return FakeCgroups(tmp_path)


def reader(tree: FakeCgroups, clock: Clock | None = None) -> CgroupTree:
    return CgroupTree(tree.root, tree.proc_root, NoWatch(), now_s=clock or Clock())


def test_pods_of_every_class_are_found_with_their_containers(tree: FakeCgroups) -> None:
    for number, quality in enumerate(("guaranteed", "burstable", "besteffort")):
        tree.add_pod(f"{UID[:-1]}{number}", quality)
    leaf = tree.add_container(f"{UID[:-1]}1", ONE, "main")
    (tree.pod(f"{UID[:-1]}1") / "crio-conmon-1.scope").mkdir()
    found = reader(tree).read()
    assert set(found) == {f"{UID[:-1]}{number}" for number in range(3)}
    pod = found[f"{UID[:-1]}1"]
    assert pod.path == str(leaf.parent)
    assert [(one.container_id, one.path, one.name, one.inner) for one in pod.containers] == [
        (ONE, str(leaf), "main", None)
    ]


def test_only_the_pods_that_are_asked_for_are_looked_into(tree: FakeCgroups) -> None:
    tree.add_pod(UID)
    tree.add_pod(OTHER)
    assert set(reader(tree).read([UID, "gone"])) == {UID}


def test_the_systemd_drivers_names_are_understood(tmp_path: Path) -> None:
    tree = FakeCgroups(tmp_path)
    tree.remove(tree.kubepods)
    pod = tree.root / "kubepods.slice/kubepods-burstable.slice" / f"kubepods-burstable-pod{UID.replace('-', '_')}.slice"
    (pod / f"cri-containerd-{ONE}.scope").mkdir(parents=True)
    found = reader(tree).read()
    assert [one.container_id for one in found[UID].containers] == [ONE]


def test_a_mixture_of_both_versions_is_read_from_the_second(tmp_path: Path) -> None:
    pod = tmp_path / "unified/kubepods/burstable" / f"pod{UID}"
    pod.mkdir(parents=True)
    (tmp_path / "unified/cgroup.controllers").write_text("")
    (tmp_path / "memory/kubepods/burstable" / f"pod{OTHER}").mkdir(parents=True)
    assert set(CgroupTree(tmp_path, tmp_path, NoWatch()).read()) == {UID}


def test_a_sandbox_has_no_name(tree: FakeCgroups) -> None:
    tree.add_pod(UID)
    tree.add_container(UID, ONE)
    tree.record(tree.pid(tree.pod(UID) / ONE), UID)
    assert [one.name for one in reader(tree).read()[UID].containers] == [None]


def test_a_container_gets_its_name_when_its_mounts_are_there(tree: FakeCgroups) -> None:
    """At its cgroup's mkdir it holds nothing, or the runtime's first process (runtime-facts 33)."""
    clock, names = Clock(), []
    tree.add_pod(UID)
    leaf = tree.add_container(UID, ONE)
    cgroups = reader(tree, clock)
    for _ in range(4):
        names.append(cgroups.read()[UID].containers[0].name)
        clock.now_s += 0.005
        tree.record(tree.pid(leaf), UID, "main")
    assert names == [None, "main", "main", "main"]


def test_a_nameless_cgroup_is_looked_into_ever_more_rarely(tree: FakeCgroups) -> None:
    """A sandbox never has a name, and there is one in each pod."""
    clock = Clock(0.0)
    tree.add_pod(UID)
    leaf = tree.add_container(UID, ONE)
    cgroups = reader(tree, clock)
    while clock.now_s < 100.0:
        cgroups.read()
        clock.now_s += 1.0
    tree.record(tree.pid(leaf), UID, "main")
    seen_s = next(clock.now_s for _ in range(100) if _tick(clock, cgroups))
    assert 101.0 < seen_s < 160.0


@pytest.mark.parametrize("ends", ["container", "pod"])
def test_what_has_ended_is_forgotten_also_where_one_pod_at_a_time_is_looked_into(tree: FakeCgroups, ends: str) -> None:
    """Found by endurance: a name for each container that ever ran. What comes again in its place is looked into."""
    cgroups = reader(tree)
    tree.add_pod(UID)
    leaf = tree.add_container(UID, ONE, "first")
    assert [one.name for one in cgroups.read([UID])[UID].containers] == ["first"]
    tree.remove(leaf if ends == "container" else tree.pod(UID))
    cgroups.read([UID])
    if ends == "pod":
        tree.add_pod(UID)
    tree.add_container(UID, ONE, "second")
    assert [one.name for one in cgroups.read([UID])[UID].containers] == ["second"]


def _tick(clock: Clock, cgroups: CgroupTree) -> bool:
    clock.now_s += 1.0
    return cgroups.read()[UID].containers[0].name is not None


def test_two_answers_about_whose_a_container_is_are_none(tree: FakeCgroups) -> None:
    """A pod's author may mount such a file of another of its containers, with a hostPath volume."""
    tree.add_pod(UID)
    leaf = tree.add_container(UID, ONE)
    tree.record(tree.pid(leaf), UID, "main", "side")
    assert reader(tree).read()[UID].containers[0].name is None


def test_the_record_of_another_pod_says_nothing(tree: FakeCgroups) -> None:
    tree.add_pod(UID)
    leaf = tree.add_container(UID, ONE)
    tree.record(tree.pid(leaf), OTHER, "main")
    assert reader(tree).read()[UID].containers[0].name is None


def test_other_mounts_below_a_pods_folder_are_no_record(tree: FakeCgroups) -> None:
    tree.add_pod(UID)
    leaf = tree.add_container(UID, ONE)
    folder = tree.proc_root / str(tree.pid(leaf))
    folder.mkdir()
    (folder / "mountinfo").write_text(
        f"30 22 8:1 /var/lib/kubelet/pods/{UID}/volume-subpaths/data/main/0 /data rw - ext4 /dev/sda1 rw\n"
        f"31 22 8:1 /var/lib/kubelet/pods/{UID}/containers/main/0b5e0000/deeper /x rw - ext4 /dev/sda1 rw\n"
        f"32 22 8:1 /var/lib/kubelet/pods/{UID}/etc-hosts /etc/hosts rw - ext4 /dev/sda1 rw\n"
        "broken line\n"
    )
    assert reader(tree).read()[UID].containers[0].name is None


def test_a_kubelet_with_its_own_file_system_is_understood(tree: FakeCgroups) -> None:
    tree.add_pod(UID)
    leaf = tree.add_container(UID, ONE)
    folder = tree.proc_root / str(tree.pid(leaf))
    folder.mkdir()
    (folder / "mountinfo").write_text(f"30 22 8:1 /pods/{UID}/containers/main-2/0b5e0000 /tmp/x rw - xfs /dev/sdb rw\n")
    assert reader(tree).read()[UID].containers[0].name == "main-2"


def test_a_container_of_many_mounts_is_known_though_the_kernel_gives_them_a_page_a_read(tree: FakeCgroups) -> None:
    """A pipe stands for it: it gives no more than it holds, and the record comes after that."""
    tree.add_pod(UID)
    leaf = tree.add_container(UID, ONE)
    folder = tree.proc_root / str(tree.pid(leaf))
    folder.mkdir()
    os.mkfifo(folder / "mountinfo")
    others = "22 1 0:5 / /data rw,relatime - overlay overlay rw\n" * 4000  # a pipe holds 64 KiB
    record = f"30 22 8:1 /pods/{UID}/containers/main/0b5e0000 /tmp/x rw - xfs /dev/sdb rw\n"
    kernel = threading.Thread(target=(folder / "mountinfo").write_text, args=(others + record,), daemon=True)
    kernel.start()
    assert reader(tree).read()[UID].containers[0].name == "main"
    kernel.join(GIVE_UP_S)


def test_without_the_hosts_pids_no_container_is_known(tree: FakeCgroups) -> None:
    """Then cgroup.procs shows 0 (runtime-facts 52)."""
    tree.add_pod(UID)
    leaf = tree.add_container(UID, ONE, "main")
    (leaf / "cgroup.procs").write_text("0\n")
    assert reader(tree).read()[UID].containers[0].name is None


def test_the_child_that_crun_makes_is_the_one_that_holds_every_process(tree: FakeCgroups) -> None:
    tree.add_pod(UID)
    leaf = tree.add_container(UID, ONE, "main", inner="container")
    found = reader(tree).read()[UID].containers[0]
    assert (found.inner, found.name) == (str(leaf / "container"), "main")


def test_processes_in_several_children_have_only_the_outer_one_in_common(tree: FakeCgroups) -> None:
    """An init system inside the container makes such; what it moves about stays within the outer one."""
    tree.add_pod(UID)
    leaf = tree.add_container(UID, ONE, inner="init.scope")
    other = leaf / "system.slice"
    other.mkdir()
    (other / "cgroup.events").write_text("populated 1\n")
    assert reader(tree).read()[UID].containers[0].inner is None


def test_an_empty_child_is_passed_over(tree: FakeCgroups) -> None:
    tree.add_pod(UID)
    leaf = tree.add_container(UID, ONE, "main")
    (leaf / "mine").mkdir()
    assert reader(tree).read()[UID].containers[0].inner is None


def test_a_tree_that_cannot_be_read_is_no_news(tree: FakeCgroups) -> None:
    tree.add_pod(UID)
    (tree.add_container(UID, ONE) / "cgroup.procs").unlink()
    os.symlink("cgroup.procs", tree.pod(UID) / ONE / "cgroup.procs")  # ELOOP
    with pytest.raises(NodeError, match="cannot be read"):
        reader(tree).read()


def test_a_scratch_cgroup_lies_where_pods_do_and_is_gone_afterwards(tree: FakeCgroups) -> None:
    cgroups = reader(tree)
    for _ in range(2):
        with cgroups.scratch() as path:
            assert Path(path).parent == tree.kubepods
            assert Path(path).is_dir()
        assert not Path(path).exists()


def test_a_scratch_cgroup_that_was_left_behind_is_taken_over(tree: FakeCgroups) -> None:
    (tree.kubepods / SCRATCH).mkdir()
    with reader(tree).scratch() as path:
        assert path == str(tree.kubepods / SCRATCH)
    assert not (tree.kubepods / SCRATCH).exists()


def test_before_the_first_pod_the_scratch_cgroup_is_at_the_top(tree: FakeCgroups) -> None:
    tree.remove(tree.kubepods)
    with reader(tree).scratch() as path:
        assert Path(path).parent == tree.root


def test_the_first_version_of_cgroups_has_no_place_for_a_limit(tmp_path: Path) -> None:
    tree = FakeCgroups(tmp_path, version=1)
    with pytest.raises(NodeError, match="need cgroup v2, and .* is of version 1"), reader(tree).scratch():
        pass


def test_a_tree_that_cannot_be_written_says_what_to_do(tree: FakeCgroups) -> None:
    (tree.kubepods / SCRATCH).write_text("in the way, as a read-only mount would be")
    with pytest.raises(NodeError, match="mounted writable"), reader(tree).scratch():
        pass


def test_what_is_below_a_cgroup_and_that_it_is_gone(tree: FakeCgroups) -> None:
    tree.add_pod(UID)
    leaf = tree.add_container(UID, ONE)
    cgroups = reader(tree)
    assert cgroups.below(str(tree.pod(UID))) == (str(leaf),)
    assert cgroups.below(str(leaf)) == ()
    assert cgroups.below(str(tree.root / "gone")) is None
    assert cgroups.roots() == tuple(str(tree.kubepods / name) for name in ("", "besteffort", "burstable"))


@pytest.fixture
def followed(tree: FakeCgroups) -> Iterator[queue.SimpleQueue[str]]:
    """The UIDs that are told, in order."""
    told: queue.SimpleQueue[str] = queue.SimpleQueue()
    with contextlib.closing(DirectoryWatch(interval_s=0.05)) as watch:
        CgroupTree(tree.root, tree.proc_root, watch).follow(told.put)
        yield told


def wait_for(told: queue.SimpleQueue[str], uid: str) -> None:
    while told.get(timeout=GIVE_UP_S) != uid:
        pass


def test_a_pod_is_told_when_it_comes_when_its_containers_do_and_when_it_goes(
    tree: FakeCgroups, followed: queue.SimpleQueue[str]
) -> None:
    tree.add_pod(UID)
    wait_for(followed, UID)
    leaf = tree.add_container(UID, ONE)
    wait_for(followed, UID)
    tree.remove(leaf)
    wait_for(followed, UID)
    tree.remove(tree.pod(UID))
    wait_for(followed, UID)


def test_a_pod_that_was_there_before_is_told_once(tmp_path: Path) -> None:
    tree = FakeCgroups(tmp_path)
    tree.add_pod(UID, "guaranteed")
    told: queue.SimpleQueue[str] = queue.SimpleQueue()
    with contextlib.closing(DirectoryWatch(interval_s=0.02)) as watch:
        CgroupTree(tree.root, tree.proc_root, watch).follow(told.put)
        wait_for(told, UID)
        tree.add_pod(OTHER)
        assert told.get(timeout=GIVE_UP_S) == OTHER


def test_pods_of_a_kubelet_that_starts_later_are_told(tmp_path: Path) -> None:
    tree = FakeCgroups(tmp_path)
    tree.kubepods.rename(tree.root.parent / "later")
    told: queue.SimpleQueue[str] = queue.SimpleQueue()
    with contextlib.closing(DirectoryWatch(interval_s=0.02)) as watch:
        CgroupTree(tree.root, tree.proc_root, watch).follow(told.put)
        (tree.root.parent / "later").rename(tree.kubepods)
        tree.add_pod(UID, "besteffort")
        wait_for(told, UID)


def test_without_inotify_everything_is_told_at_the_timers_pace(tmp_path: Path) -> None:
    def no_inotify() -> None:
        raise OSError(24, "Too many open files")

    tree = FakeCgroups(tmp_path)
    told: queue.SimpleQueue[str] = queue.SimpleQueue()
    watch = DirectoryWatch(open_inotify=no_inotify, interval_s=0.02)  # type: ignore[arg-type]  # it never returns
    with contextlib.closing(watch):
        CgroupTree(tree.root, tree.proc_root, watch).follow(told.put)
        tree.add_pod(UID)
        wait_for(told, UID)
        tree.add_container(UID, ONE)
        wait_for(told, UID)
