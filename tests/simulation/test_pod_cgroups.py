"""The simulated host's cgroups and processes follow what runs on the simulated kubelet, as real ones would."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from sharer.adapters.cgroups import Cgroups, CgroupTree
from sharer.adapters.processes import ProcFs
from sharer.core.errors import NodeError
from sharer.kubeletapi import deviceplugin_pb2 as pb
from sharer.simulation.cgroups import PodCgroups, end_process, write_host_pids, write_process
from sharer.simulation.kubelet import ContainerSpec, ContainerState
from tests.fakes.no_watch import NoWatch
from tests.simulation.kubelet.node import GPU, Node, fake_node

LATE = "example.com/late"


@pytest.fixture
def node() -> Iterator[Node]:
    with fake_node() as node:
        node.registered("abcd")
        yield node


@pytest.fixture
def tree(node: Node) -> Iterator[PodCgroups]:
    tree = PodCgroups(node.kubelet, node.root / "cgroup")
    tree.start()
    with contextlib.closing(tree):
        yield tree


def wait_populated(node: Node, wanted: Mapping[str, bool]) -> None:
    """Until the real adapter reads this. The tree follows within moments, on another thread."""
    cgroups, found = Cgroups(node.root / "cgroup", NoWatch()), None
    for _ in range(3000):
        with contextlib.suppress(NodeError):  # a folder in the making
            found = dict(cgroups.read().populated)
            if found == wanted:
                return
        threading.Event().wait(0.01)
    raise AssertionError(f"{found} instead of {wanted}")


def leaves(node: Node, uid: str) -> set[str]:
    """Below the root; what vanishes while it is looked at is not there."""
    root = node.root / "cgroup"
    return {
        str(Path(pod, leaf).relative_to(root))
        for pod, found, _ in os.walk(root)
        if Path(pod).name == f"pod{uid}"
        for leaf in found
    }


def wait_leaves(node: Node, tree: PodCgroups, uid: str, *containers: str) -> None:
    """Until just the sandbox and these containers have leaves."""
    wanted = {tree.path(uid).lstrip("/"), *(tree.path(uid, name).lstrip("/") for name in containers)}
    for _ in range(3000):
        if leaves(node, uid) == wanted:
            return
        threading.Event().wait(0.01)
    raise AssertionError(leaves(node, uid))


def test_a_pod_is_there_from_its_first_container_to_its_last(node: Node, tree: PodCgroups) -> None:
    wait_populated(node, {})
    pod = node.kubelet.start_pod("p", {GPU: 1})
    wait_populated(node, {pod.uid: True})
    wait_leaves(node, tree, pod.uid, "main")
    node.kubelet.end_pod("p")
    wait_populated(node, {})


def test_a_forgotten_pod_is_there_until_its_remnant_ends(node: Node, tree: PodCgroups) -> None:
    pod = node.kubelet.start_pod("p", {GPU: 1})
    node.kubelet.force_delete_pod("p")
    wait_populated(node, {pod.uid: True})
    node.kubelet.end_remnant(pod.uid)
    wait_populated(node, {})


def test_a_container_that_crashes_takes_its_own_leaf_with_it(node: Node, tree: PodCgroups) -> None:
    pod = node.kubelet.start_pod("p", containers=[ContainerSpec(name="a"), ContainerSpec(name="b")])
    wait_populated(node, {pod.uid: True})
    node.kubelet.crash_container("p", "a")
    wait_leaves(node, tree, pod.uid, "b")


def test_a_process_is_seen_in_its_pod_until_it_ends(tmp_path: Path, node: Node, tree: PodCgroups) -> None:
    uid = "6a9f3b1e-4f0d-4d64-9d0a-1b6a3f9d8c11"
    write_process(tmp_path, 7, tree.path(uid, "main"), "python")
    table = ProcFs(tmp_path)
    assert not table.sees_the_host()
    write_host_pids(tmp_path)
    assert table.sees_the_host()
    found = table.identify(7)
    assert found is not None
    assert [pod[0] for pod in found.pods] == [uid]
    end_process(tmp_path, 7)
    assert table.identify(7) is None


def test_each_container_has_a_process_whose_mounts_tell_its_name(tmp_path: Path, node: Node) -> None:
    tree = PodCgroups(node.kubelet, node.root / "cgroup", tmp_path)
    tree.start()
    with contextlib.closing(tree):
        pod = node.kubelet.start_pod("p", containers=[ContainerSpec(name="a"), ContainerSpec(name="b")])
        wait_leaves(node, tree, pod.uid, "a", "b")
        cgroups, named = CgroupTree(node.root / "cgroup", tmp_path, NoWatch()), None
        for _ in range(3000):  # a process comes a moment after its leaf
            named = sorted(str(one.name) for one in cgroups.read()[pod.uid].containers)
            if named == ["None", "a", "b"]:
                return
            threading.Event().wait(0.01)
        raise AssertionError(named)


def test_a_pod_whose_start_is_delayed_has_its_cgroup_and_its_sandbox(node: Node, tree: PodCgroups) -> None:
    """The kubelet makes them before it asks a plugin whether a container may start (runtime-facts §4)."""

    def refuse(ids: Sequence[str]) -> bytes:
        raise ValueError("not yet")

    plugin = node.plugin("z", LATE, "late.sock")
    plugin.options = pb.DevicePluginOptions(pre_start_required=True)
    plugin.on_pre_start = refuse
    node.register(plugin)
    pod = node.kubelet.start_pod("p", {LATE: 1})
    assert pod.container().state is ContainerState.WAITING
    wait_leaves(node, tree, pod.uid)
