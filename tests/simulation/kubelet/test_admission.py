"""The fake kubelet admits pods as the real one, also where that is unkind (kubelet-contract §3 to §7)."""

from __future__ import annotations

import contextlib
import dataclasses
import threading

import pytest

from sharer.kubeletapi import deviceplugin_pb2 as pb
from sharer.simulation.kubelet import (
    ContainerSpec,
    ContainerState,
    KubeletPanic,
    Phase,
    PodStatus,
)
from tests.fakes.bare_plugin import BarePlugin, allocation, device_list, preference
from tests.fakes.clock import Clock
from tests.simulation.kubelet.node import FAST, GPU, Node, answer_when_released, fake_node

OTHER = "example.com/other"


def rejection(pod: PodStatus) -> str:
    """What the plugin's or kubelet's error was in an `UnexpectedAdmissionError`."""
    before, after = "Pod was rejected: Allocate failed due to ", ", which is unexpected"
    assert (pod.phase, pod.reason) == (Phase.FAILED, "UnexpectedAdmissionError")
    assert pod.message.startswith(before)
    assert pod.message.endswith(after)
    return pod.message[len(before) : -len(after)]


def preferring(node: Node, devices: str, reply: bytes) -> BarePlugin:
    plugin = node.plugin(devices)
    plugin.options = pb.DevicePluginOptions(get_preferred_allocation_available=True)
    plugin.on_prefer = lambda request: reply
    node.register(plugin)
    return plugin


# -- choosing (§5)


def test_a_container_is_given_what_the_plugin_answered() -> None:
    with fake_node() as node:
        plugin = node.registered("abc")
        mount = pb.Mount(container_path="/c", host_path="/h", read_only=True)
        device = pb.DeviceSpec(container_path="/dev/x", host_path="/dev/x", permissions="rw")
        plugin.on_allocate = lambda ids: allocation(
            envs={"IDS": ",".join(sorted(ids))}, mounts=[mount], devices=[device], cdi_devices=[{"name": "a/b=c"}]
        )
        pod = node.kubelet.start_pod("p", {GPU: 2})
        assert (pod.phase, pod.container().state, pod.container().starts) == (Phase.RUNNING, ContainerState.RUNNING, 1)
        assert pod.env() == {"IDS": ",".join(pod.ids(GPU))}
        given = pod.container().given
        assert given is not None
        assert (given.mounts, given.devices, given.cdi_names) == ((mount,), (device,), ("a/b=c",))


def test_without_a_preference_the_choice_is_random_and_repeats_with_the_seed() -> None:
    def choices(seed: int) -> list[tuple[str, ...]]:
        with fake_node(dataclasses.replace(FAST, seed=seed)) as node:
            plugin = node.registered("abcdefgh")
            for name in "pqrs":
                node.kubelet.start_pod(name, {GPU: 2})
            return [ids for _, ids in plugin.calls]

    assert choices(1) == choices(1)
    assert len({tuple(choices(seed)) for seed in range(5)}) == 5


def test_too_few_free_devices_reject_the_pod() -> None:
    with fake_node() as node:
        node.registered("ab")
        node.kubelet.start_pod("p", {GPU: 1})
        pod = node.kubelet.start_pod("q", {GPU: 2})
        assert rejection(pod) == f"requested number of devices unavailable for {GPU}. Requested: 2, Available: 1"
        assert pod.container().state is ContainerState.TERMINATED


def test_a_limit_of_zero_fails_where_no_device_is_healthy() -> None:
    """§5"""
    with fake_node() as node:
        plugin = node.registered("a")
        assert node.kubelet.start_pod("p", {GPU: 0}).phase is Phase.RUNNING
        plugin.send(device_list("", unhealthy="a"))
        node.kubelet.wait_capacity(GPU, 1, 0)
        assert rejection(node.kubelet.start_pod("q", {GPU: 0})).startswith("no healthy devices present")


def test_a_resource_that_the_node_does_not_know_is_silently_not_given() -> None:
    """§4, §22: the pod runs without any device."""
    with fake_node() as node:
        pod = node.kubelet.start_pod("p", {GPU: 1})
        assert (pod.phase, pod.ids(GPU)) == (Phase.RUNNING, ())


def test_an_expired_resource_rejects_by_the_fit_check() -> None:
    """§2.5, §4: the key stays on the node with 0."""
    clock = Clock()
    with fake_node(dataclasses.replace(FAST, clock=clock)) as node:
        node.registered("a").stop()
        node.kubelet.wait_capacity(GPU, 1, 0)
        clock.now_s += 301
        node.kubelet.wait_capacity(GPU, 0)
        pod = node.kubelet.start_pod("p", {GPU: 1})
        assert (pod.phase, pod.reason) == (Phase.FAILED, f"OutOf{GPU}")
        assert pod.message.startswith(f"Pod was rejected: Node didn't have enough resource: {GPU}, requested: 1")


def test_what_other_containers_of_a_rejected_pod_were_given_stays_recorded_until_the_next_look() -> None:
    """§5"""
    with fake_node() as node:
        node.registered("ab")
        two = [ContainerSpec(name="x", limits={GPU: 1}), ContainerSpec(name="y", limits={GPU: 2})]
        rejection(node.kubelet.start_pod("p", containers=two))
        assert len(node.kubelet.records()) == 1
        assert node.kubelet.start_pod("q", {GPU: 2}).phase is Phase.RUNNING


def test_a_failing_checkpoint_write_rejects_the_pod() -> None:
    """§5"""
    with fake_node() as node:
        node.registered("ab")
        node.kubelet.fail_checkpoint_writes("no space left on device")
        error = rejection(node.kubelet.start_pod("p", {GPU: 1}))
        assert error == 'failed to write checkpoint file "kubelet_internal_checkpoint": no space left on device'
        node.kubelet.fail_checkpoint_writes(None)
        assert node.kubelet.start_pod("q", {GPU: 2}).phase is Phase.RUNNING


# -- preferred allocation (§6)


@pytest.mark.parametrize(
    ("reply", "possible"),
    [
        (preference("cd"), {"cd"}),
        (preference("d"), {"ad", "bd", "cd"}),
        (preference(""), {"ab", "ac", "ad", "bc", "bd", "cd"}),
        (b"", {"ab", "ac", "ad", "bc", "bd", "cd"}),
        (preference("bcd"), {"bc", "bd", "cd"}),
        (preference("xxdd"), {"ad", "bd", "cd"}),
    ],
    ids=["exact", "too few", "empty", "no responses", "too many", "unknown and duplicate"],
)
def test_a_preference_is_advice_of_which_the_kubelet_takes_what_it_can_use(reply: bytes, possible: set[str]) -> None:
    """§6: filled up, cut down, cleaned, always at random."""
    seen = set()
    with fake_node() as node:
        preferring(node, "abcd", reply)
        for n in range(12):
            seen.add("".join(node.kubelet.start_pod(f"p{n}", {GPU: 2}).ids(GPU)))
            node.kubelet.delete_pod(f"p{n}")
    assert seen <= possible
    assert len(seen) == 1 or len(possible) > 1


def test_an_error_in_the_preference_rejects_the_pod() -> None:
    """§6"""
    with fake_node() as node:
        plugin = preferring(node, "ab", b"")

        def refuse(request: object) -> bytes:
            raise ValueError("no idea")

        plugin.on_prefer = refuse
        error = rejection(node.kubelet.start_pod("p", {GPU: 1}))
        assert error == (
            "device plugin GetPreferredAllocation rpc failed with err: rpc error: code = InvalidArgument desc = no idea"
        )


def test_the_preference_is_asked_even_without_a_choice_and_with_the_total_size() -> None:
    """§6: must_include is what an init container left; size counts it."""
    with fake_node() as node:
        requests: list[pb.ContainerPreferredAllocationRequest] = []
        plugin = preferring(node, "abc", b"")

        def prefer(request: pb.ContainerPreferredAllocationRequest) -> bytes:
            requests.append(request)
            return b""

        plugin.on_prefer = prefer
        pod = node.kubelet.start_pod("p", {GPU: 3}, init_containers=[ContainerSpec(name="i", limits={GPU: 1})])
        first, second = requests
        assert (sorted(first.available_deviceIDs), list(first.must_include_deviceIDs), first.allocation_size) == (
            ["a", "b", "c"],
            [],
            1,
        )
        assert tuple(second.must_include_deviceIDs) == pod.ids(GPU, "i")
        assert (sorted(second.available_deviceIDs), second.allocation_size) == (["a", "b", "c"], 3)


# -- Allocate (§7)


def test_an_allocate_error_is_the_pods_last_word_and_gives_the_ids_back() -> None:
    """§7, §22"""
    with fake_node() as node:
        plugin = node.registered("a")

        def refuse(ids: object) -> bytes:
            raise ValueError("a is at fault")

        plugin.on_allocate = refuse
        pod = node.kubelet.start_pod("p", {GPU: 1})
        assert rejection(pod) == "rpc error: code = InvalidArgument desc = a is at fault"
        assert node.kubelet.allocated(GPU) == frozenset()


def test_an_empty_answer_leaks_the_ids() -> None:
    """§7: until some pod with devices goes away or another Allocate fails."""
    with fake_node() as node:
        plugin = node.registered("ab")
        node.kubelet.start_pod("holder", {GPU: 1})
        plugin.on_allocate = lambda ids: b""
        pod = node.kubelet.start_pod("p", {GPU: 1})
        assert rejection(pod) == "no containers return in allocation response "
        error = rejection(node.kubelet.start_pod("q", {GPU: 1}))
        assert error == f"requested number of devices unavailable for {GPU}. Requested: 1, Available: 0"
        plugin.on_allocate = lambda ids: allocation()
        node.kubelet.end_pod("holder")
        assert node.kubelet.start_pod("r", {GPU: 2}).phase is Phase.RUNNING


def test_init_containers_sidecars_and_apps_reuse_ids_within_the_pod() -> None:
    """§7: `init i1, sidecar, init i2, app c`, one each: i1→a, sidecar→a, i2→b, c→b; with no free in between."""
    with fake_node() as node:
        plugin = node.registered("abcd")
        pod = node.kubelet.start_pod(
            "p",
            containers=[ContainerSpec(name="c", limits={GPU: 1})],
            init_containers=[
                ContainerSpec(name="i1", limits={GPU: 1}),
                ContainerSpec(name="s", limits={GPU: 1}, sidecar=True),
                ContainerSpec(name="i2", limits={GPU: 1}),
            ],
        )
        ids = {name: pod.ids(GPU, name) for name in ("i1", "s", "i2", "c")}
        assert ids["i1"] == ids["s"] != ids["i2"] == ids["c"]
        assert len(plugin.calls) == 4
        assert node.kubelet.allocated(GPU) == set(ids["i1"] + ids["c"])
        states = [container.state for container in pod.containers]
        ended, runs = ContainerState.TERMINATED, ContainerState.RUNNING
        assert states == [ended, runs, ended, runs]


def test_a_slow_allocate_holds_up_every_other_pod() -> None:
    """§5, P12"""
    with fake_node() as node:
        plugin = node.registered("ab")
        entered, release = answer_when_released(plugin)
        starters = [threading.Thread(target=node.kubelet.start_pod, args=("p", {GPU: 1}))]
        starters[0].start()
        assert entered.wait(30)
        starters.append(threading.Thread(target=node.kubelet.start_pod, args=("unrelated",)))
        starters[1].start()
        node.kubelet.wait_for(lambda: len(node.kubelet.pods()) == 2)
        assert [pod.phase for pod in node.kubelet.pods()] == [Phase.PENDING, Phase.PENDING]
        release.set()
        for starter in starters:
            starter.join()
        assert [pod.phase for pod in node.kubelet.pods()] == [Phase.RUNNING, Phase.RUNNING]


def test_dropping_an_id_while_its_allocate_is_in_flight_crashes_the_kubelet() -> None:
    """§3"""
    with fake_node() as node:
        plugin = node.registered("a")

        def drop(ids: object) -> bytes:
            plugin.send(device_list("b"))
            node.kubelet.wait_for(lambda: node.kubelet.healthy(GPU) == {"b"})
            return allocation()

        plugin.on_allocate = drop
        with pytest.raises(KubeletPanic, match="device a was dropped from the list while its Allocate was in flight"):
            node.kubelet.start_pod("p", {GPU: 1})
        assert not node.kubelet.running
        assert len(node.kubelet.take_panics()) == 1


def test_a_panic_that_nobody_took_fails_the_test() -> None:
    with pytest.raises(KubeletPanic), fake_node() as node:
        plugin = node.registered("a")

        def drop(ids: object) -> bytes:
            plugin.send(device_list(""))
            node.kubelet.wait_for(lambda: not node.kubelet.healthy(GPU))
            return allocation()

        plugin.on_allocate = drop

        def start() -> None:
            with contextlib.suppress(KubeletPanic):
                node.kubelet.start_pod("p", {GPU: 1})

        starter = threading.Thread(target=start)
        starter.start()
        starter.join()


def test_a_held_id_turned_unhealthy_keeps_its_pod_and_defers_a_resize() -> None:
    """§5, §13, §22"""
    with fake_node() as node:
        plugin = node.registered("ab")
        (held,) = node.kubelet.start_pod("p", {GPU: 1}).ids(GPU)
        assert node.kubelet.resize_pod("p") is None
        plugin.send(device_list(set("ab") - {held}, unhealthy=[held]))
        node.kubelet.wait_capacity(GPU, 2, 1)
        assert "previously allocated devices are no longer healthy" in str(node.kubelet.resize_pod("p"))
        assert node.kubelet.pod("p").phase is Phase.RUNNING
        assert node.kubelet.resource_health("p") == {held: "Unhealthy"}
        plugin.send(device_list(set("ab") - {held}))
        node.kubelet.wait_capacity(GPU, 1)
        assert node.kubelet.resource_health("p") == {held: "Healthy"}
        assert node.kubelet.restart_container("p").state is ContainerState.RUNNING
