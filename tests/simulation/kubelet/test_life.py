"""The fake kubelet dies and comes back as the real one does (kubelet-contract §2.7, §10, §11, §22)."""

from __future__ import annotations

import dataclasses
import os
import socket
import threading
from pathlib import Path

import grpc
import pytest

from sharer.kubeletapi import deviceplugin_pb2 as pb
from sharer.simulation.kubelet import (
    Capacity,
    CheckpointEntry,
    ContainerState,
    Die,
    FakeKubelet,
    Phase,
    SocketState,
    read_checkpoint,
    write_checkpoint,
)
from sharer.simulation.kubelet.sockets import socket_state
from tests.fakes.bare_plugin import allocation, device_list, preference
from tests.simulation.kubelet.node import FAST, GPU, IMPATIENT, answer_when_released, fake_node, refusal


def test_a_start_deletes_top_level_sockets_and_nothing_else() -> None:
    """§2.7"""
    with fake_node() as node:
        folder = node.kubelet.device_plugin_dir
        (folder / "sub").mkdir()
        held = []
        for name in ("other.sock", "sub/kept.sock"):
            held.append(socket.socket(socket.AF_UNIX))
            held[-1].bind(str(folder / name))
        (folder / "link.sock").symlink_to(folder / "sub/kept.sock")
        (folder / "dangling").symlink_to(folder / "nothing")
        (folder / "a-file").write_text("mine")
        write_checkpoint(node.kubelet.checkpoint, [], {})
        node.kubelet.kill()
        node.kubelet.wipe()
        names = {str(path.relative_to(folder)) for path in folder.rglob("*")}
        assert names == {"sub", "sub/kept.sock", "dangling", "a-file", "kubelet_internal_checkpoint"}
        for bound in held:
            bound.close()


def test_a_killed_kubelet_leaves_both_sockets_behind_and_dead() -> None:
    """§2.7: the file is there, connecting is refused; nothing of its own lies about besides."""
    with fake_node() as node:
        node.kubelet.kill()
        assert socket_state(str(node.kubelet.socket)) is SocketState.DEAD
        assert socket_state(str(node.kubelet.podresources_socket)) is SocketState.DEAD
        assert sorted(path.name for path in node.root.rglob("*")) == [
            "device-plugins",
            "kubelet.sock",
            "kubelet.sock",
            "pod-resources",
        ]


def test_its_death_cancels_the_list_at_once_on_the_plugins_side() -> None:
    """§2.7"""
    with fake_node() as node:
        plugin = node.registered("a")
        ended = threading.Event()
        plugin.on_stream_end = ended.set
        node.kubelet.kill()
        assert ended.wait(30)


def test_the_plugins_socket_is_gone_before_the_kubelets_is_there() -> None:
    """§2.7: a server whose file was wiped looks fine from inside, and Register fails with the dial error."""
    with fake_node(IMPATIENT) as node:
        plugin = node.registered("a")
        node.kubelet.restart()
        assert not (node.kubelet.device_plugin_dir / "bare.sock").exists()
        assert refusal(plugin)[1] == "failed to dial device plugin: context deadline exceeded"


def test_podresources_is_back_before_the_registration_socket() -> None:
    """runtime-facts 58"""
    with fake_node(dataclasses.replace(FAST, podresources_lead_s=0.05)) as node:
        lead_ns = node.kubelet.socket.stat().st_ctime_ns - node.kubelet.podresources_socket.stat().st_ctime_ns
        assert lead_ns > 40_000_000


def test_the_new_registration_socket_can_have_the_old_inode_number() -> None:
    """§22: seen on a real node. Others on this machine may take the number first, so there are several tries."""
    with fake_node() as node:
        for _ in range(10):
            before = node.kubelet.socket.stat()
            (node.root / "in-the-way").touch()
            node.kubelet.restart(same_inode=True)
            after = node.kubelet.socket.stat()
            assert after.st_ctime_ns != before.st_ctime_ns
            if (after.st_dev, after.st_ino) == (before.st_dev, before.st_ino):
                return
        pytest.skip("this file system does not reuse inode numbers (tmpfs never does)")


def test_twenty_restarts_leak_no_thread_and_no_file() -> None:
    """§19 row 9, of the fake itself. gRPC's own threads come and go by a few; a leak would be 18 or more."""

    def usage() -> tuple[int, int]:
        return threading.active_count(), len(os.listdir("/proc/self/fd"))

    with fake_node() as node:
        plugin = node.registered("ab")
        node.kubelet.start_pod("p", {GPU: 1})
        measured = []
        for _ in range(20):
            node.kubelet.restart()
            plugin.stop()
            plugin.serve()
            node.register(plugin)
            measured.append(usage())
        (threads_before, files_before), (threads_after, files_after) = measured[1], measured[-1]
        assert threads_after < threads_before + 6
        assert files_after < files_before + 6
        assert len([call for call in node.kubelet.register_calls() if call.error is None]) == 21


def test_a_closed_kubelet_leaves_no_thread_behind() -> None:
    before = set(threading.enumerate())
    with fake_node() as node:
        node.registered("a")
        node.kubelet.on_next_register(Die())
        node.plugin("a", endpoint="b.sock").register()
        node.kubelet.wait_for(lambda: not node.kubelet.running)
        node.kubelet.start()
    left = [thread.name for thread in set(threading.enumerate()) - before if "kubelet" in thread.name]
    assert left == []


# -- the checkpoint


def test_the_checkpoint_is_written_for_each_list_and_each_container() -> None:
    """§11: only healthy IDs are registered; no file of another name stays; mode 0600."""
    with fake_node() as node:
        plugin = node.registered(device_list("ab", unhealthy="c"))
        plugin.on_allocate = lambda ids: allocation(envs={"X": "1"})
        entries, registered = read_checkpoint(node.kubelet.checkpoint)
        assert (entries, sorted(registered[GPU])) == ([], ["a", "b"])
        pod = node.kubelet.start_pod("p", {GPU: 2})
        entries, _ = read_checkpoint(node.kubelet.checkpoint)
        (entry,) = entries
        assert (entry.pod_uid, entry.container, entry.resource) == (pod.uid, "main", GPU)
        assert sorted(entry.ids_by_numa[-1]) == ["a", "b"]
        assert dict(entry.response.envs) == {"X": "1"}
        assert node.kubelet.checkpoint.stat().st_mode & 0o777 == 0o600
        assert sorted(path.name for path in node.kubelet.device_plugin_dir.iterdir()) == [
            "bare.sock",
            "kubelet.sock",
            "kubelet_internal_checkpoint",
        ]


def test_the_checkpoint_has_the_real_files_form() -> None:
    """§11: the example there."""
    with fake_node() as node:
        path = node.kubelet.device_plugin_dir / "x"
        response = pb.ContainerAllocateResponse(
            envs={"SHARER_DEVICE": "GPU-0"}, cdi_devices=[pb.CDIDevice(name="sharer.io/gpu=0")]
        )
        entry = CheckpointEntry(
            pod_uid="6a9f", container="c", resource=GPU, ids_by_numa={-1: ("GPU-0::0",)}, response=response
        )
        write_checkpoint(path, [entry], {GPU: ["GPU-0::0"]})
        text = path.read_text()
        assert text.startswith(
            '{"Data":{"PodDeviceEntries":[{"PodUID":"6a9f","ContainerName":"c","ResourceName":"example.com/gpu",'
            '"DeviceIDs":{"-1":["GPU-0::0"]},"AllocResp":"ChYKDVNIQVJFUl9ERVZJQ0USBUdQVS0wKhEKD3NoYXJlci5pby9ncHU9MA=="}],'
            '"RegisteredDevices":{"example.com/gpu":["GPU-0::0"]}},"Checksum":'
        )
        write_checkpoint(path, [], {})
        assert path.read_text().startswith('{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":')


def test_after_a_restart_resources_are_known_and_empty_until_the_plugin_registers() -> None:
    """§2.7"""
    with fake_node() as node:
        node.registered("ab")
        node.kubelet.restart()
        assert node.kubelet.capacity(GPU) == Capacity(0, 0)
        pod = node.kubelet.start_pod("p", {GPU: 1})
        assert f"no healthy devices present; cannot allocate unhealthy devices {GPU}" in pod.message


def test_entries_of_ended_pods_stay_until_the_next_allocation() -> None:
    """runtime-facts 57: they survive a restart and the rewrite it brings."""
    with fake_node() as node:
        plugin = node.registered("ab")
        uid = node.kubelet.start_pod("p", {GPU: 1}).uid
        node.kubelet.end_pod("p")
        node.kubelet.restart()
        plugin.stop()
        plugin.serve()
        node.register(plugin)
        assert [entry.pod_uid for entry in read_checkpoint(node.kubelet.checkpoint)[0]] == [uid]
        new = node.kubelet.start_pod("q", {GPU: 1}).uid
        assert [entry.pod_uid for entry in read_checkpoint(node.kubelet.checkpoint)[0]] == [new]


@pytest.mark.parametrize("damage", ["", "{", '{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":1}'])
def test_with_a_damaged_checkpoint_running_pods_ids_are_given_again(damage: str) -> None:
    """§11, P32"""
    with fake_node() as node:
        plugin = node.plugin("ab")
        plugin.options = pb.DevicePluginOptions(get_preferred_allocation_available=True)
        plugin.on_prefer = lambda request: preference("a")
        node.register(plugin)
        old = node.kubelet.start_pod("old", {GPU: 1})
        node.kubelet.kill()
        node.kubelet.checkpoint.write_text(damage)
        node.kubelet.start()
        plugin.stop()
        plugin.serve()
        node.register(plugin)
        new = node.kubelet.start_pod("new", {GPU: 1})
        assert node.kubelet.pod("old").phase is new.phase is Phase.RUNNING
        assert old.ids(GPU) == new.ids(GPU) == ("a",)


# -- what a restart does to pods (§7, §10)


def test_a_running_pod_outlives_a_restart_without_plugin_and_a_pod_in_back_off_does_not() -> None:
    """§22: no Allocate for either."""
    with fake_node() as node:
        plugin = node.registered("ab")
        node.kubelet.start_pod("running", {GPU: 1})
        node.kubelet.start_pod("crashing", {GPU: 1})
        node.kubelet.crash_container("crashing")
        node.kubelet.restart()
        node.kubelet.wait_for(lambda: node.kubelet.sources_ready)
        assert node.kubelet.pod("running").container().state is ContainerState.RUNNING
        crashing = node.kubelet.pod("crashing")
        assert (crashing.phase, crashing.reason) == (Phase.FAILED, "UnexpectedAdmissionError")
        assert len(plugin.calls) == 2


def test_a_pod_in_back_off_survives_if_the_plugin_is_back_first() -> None:
    """§22: with its old answer, without Allocate; with its ID unhealthy it is rejected."""
    with fake_node(dataclasses.replace(FAST, sources_ready_after_s=None)) as node:
        plugin = node.registered("abc")
        plugin.on_allocate = lambda ids: allocation(envs={"IDS": ",".join(ids)})
        for name in ("well", "sick"):
            node.kubelet.start_pod(name, {GPU: 1})
            node.kubelet.crash_container(name)
        (sick,) = node.kubelet.pod("sick").ids(GPU)
        node.kubelet.restart()
        plugin.stop()
        plugin.send(device_list(set("abc") - {sick}, unhealthy=[sick]))
        plugin.serve()
        node.register(plugin)
        node.kubelet.sources_become_ready()
        node.kubelet.wait_for(lambda: node.kubelet.sources_ready)
        assert node.kubelet.pod("sick").message == (
            "Pod was rejected: Allocate failed due to previously allocated devices are no longer healthy;"
            f" cannot allocate unhealthy devices {GPU}, which is unexpected"
        )
        plugin.on_allocate = lambda ids: allocation(envs={"IDS": "new"})
        node.kubelet.restart_container("well")
        assert node.kubelet.pod("well").env() == {"IDS": node.kubelet.pod("well").ids(GPU)[0]}
        assert [method for method, _ in plugin.calls] == ["Allocate", "Allocate"]


def test_a_pod_started_while_the_kubelet_is_down_waits_for_it() -> None:
    with fake_node() as node:
        plugin = node.registered("a")
        node.kubelet.kill()
        assert node.kubelet.start_pod("p", {GPU: 1}).phase is Phase.PENDING
        plugin.stop()
        node.kubelet.start()
        node.kubelet.wait_for(lambda: node.kubelet.pod("p").phase is Phase.FAILED)


def test_a_pod_that_ends_or_is_deleted_while_the_kubelet_is_down_is_gone_when_it_is_back() -> None:
    with fake_node() as node:
        node.registered("ab")
        node.kubelet.start_pod("ends", {GPU: 1})
        node.kubelet.start_pod("deleted", {GPU: 1})
        node.kubelet.kill()
        node.kubelet.end_pod("ends")
        node.kubelet.delete_pod("deleted")
        assert [pod.phase for pod in node.kubelet.pods()] == [Phase.RUNNING, Phase.RUNNING]
        node.kubelet.start()
        node.kubelet.wait_for(lambda: node.kubelet.sources_ready)
        (pod,) = node.kubelet.pods()
        assert (pod.name, pod.phase.terminal) == ("ends", True)


def test_an_allocate_that_the_kubelets_death_interrupts_is_made_again_at_the_next_start() -> None:
    """§7: a record missing at container start."""
    with fake_node(dataclasses.replace(FAST, sources_ready_after_s=None)) as node:
        plugin = node.registered("a")
        entered, release = answer_when_released(plugin)
        starter = threading.Thread(target=node.kubelet.start_pod, args=("p", {GPU: 1}))
        starter.start()
        assert entered.wait(30)
        node.kubelet.kill()
        starter.join()
        release.set()
        assert node.kubelet.pod("p").phase is Phase.PENDING
        node.kubelet.start()
        plugin.stop()
        plugin.serve()
        node.register(plugin)
        node.kubelet.sources_become_ready()
        node.kubelet.wait_for(lambda: node.kubelet.pod("p").phase is Phase.RUNNING)
        assert len(plugin.calls) == 2


def test_a_reboot_stops_every_container() -> None:
    """§7: "not running", so without the plugin the pod is rejected."""
    with fake_node() as node:
        node.registered("a")
        node.kubelet.start_pod("p", {GPU: 1})
        node.kubelet.reboot()
        node.kubelet.wait_for(lambda: node.kubelet.sources_ready)
        assert node.kubelet.pod("p").reason == "UnexpectedAdmissionError"


def test_a_socket_path_that_is_too_long_is_said_so(tmp_path: Path) -> None:
    kubelet = FakeKubelet(tmp_path / ("x" * 100), FAST)
    with pytest.raises(OSError, match="has at most 107 bytes"):
        kubelet.start()
    assert not kubelet.running


def test_a_wait_that_fails_says_what_is_so() -> None:
    with fake_node() as node:
        plugin = node.plugin("a", "gpu")
        with pytest.raises(grpc.RpcError):
            plugin.register()
        with pytest.raises(TimeoutError, match=r'registration 1 of gpu.*the ResourceName "gpu" is invalid'):
            node.kubelet.wait_registered("gpu", timeout_s=0.01)
