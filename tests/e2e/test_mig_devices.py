"""MIG devices that are there, are not, come and go."""

from __future__ import annotations

from dataclasses import replace

from sharer.simulation.hardware import SimulatedGpu, SimulatedMig
from sharer.simulation.kubelet import Phase
from tests.e2e.conftest import MakeNode
from tests.e2e.gpus import GPU, gpu, mig, policy, shared, slices

SMALL = "nvidia.com/mig-1g.10gb"
MIG_RULE = "{match: {}, strategy: mig}"
REFRESH_S = 40.0  # the agent looks for new devices every 10 s


def ids(*devices: SimulatedMig) -> set[str]:
    return {f"{device.uuid}::mig-0" for device in devices}


def test_mig_devices_come_and_go_and_other_gpus_never_notice(make_node: MakeNode) -> None:
    """P18, P19, contract row 22: instances come to a GPU that had none, and those of another go, each in its way.

    The third GPU's indexes have gaps, and the one that is deleted haunts the session: its handle and UUID still answer.
    None of it is news for the GPU that is shared whole (contract row 23).
    """
    of_full, of_gapped = tuple(mig(1, index) for index in range(3)), tuple(mig(2, index) for index in (0, 2, 5))
    empty, full, whole = gpu(0, mig_devices=()), gpu(1, mig_devices=of_full), gpu(3)
    gapped = gpu(2, mig_devices=of_gapped)
    node = make_node(empty, full, gapped, whole)
    node.kubelet.start()
    node.write_policy(policy(MIG_RULE, shared(4)))
    agent = node.start_agent()
    node.wait_listed(6, SMALL)
    node.wait_listed(4, GPU)
    assert set(node.ids(SMALL)) == ids(*of_full, *of_gapped)
    agent.wait_log(f"{empty.uuid}, offers nothing: MIG mode is on and there is no MIG device")

    new, haunting = (mig(0, 0), mig(0, 3)), of_gapped[1]
    for changed in (
        replace(empty, mig_devices=new),
        replace(full, mig_devices=()),
        replace(gapped, mig_devices=(of_gapped[0], replace(haunting, stale=True), of_gapped[2])),
    ):
        node.write_device_files([changed])
        node.gpus.put(changed)
    node.wait_listed(8, SMALL, timeout_s=REFRESH_S)
    node.wait_unhealthy(ids(*of_full, haunting), SMALL)
    assert set(node.ids(SMALL)) == ids(*of_full, *of_gapped, *new)
    pods = [node.kubelet.start_pod(f"p{number}", {SMALL: 1}) for number in range(5)]
    assert [pod.phase for pod in pods] == [*[Phase.RUNNING] * 4, Phase.FAILED]
    assert [message.ids for message in node.lists(GPU)] == [tuple(slices(whole, 4, 20480))]


def test_a_held_mig_device_that_did_not_outlive_a_reboot_stays_listed_as_unhealthy(make_node: MakeNode) -> None:
    """Neighbour of P18, DESIGN §2: its UUID died with the instance; the one made in its place has another."""
    before, after = mig(0, 0), mig(1, 0)
    node = make_node(gpu(0, mig_devices=(before,)))
    node.kubelet.start()
    node.write_policy(policy(MIG_RULE))
    first = node.start_agent()
    node.wait_listed(1, SMALL)
    assert set(node.kubelet.start_pod("p", {SMALL: 1}).ids(SMALL)) == ids(before)
    first.kill()
    node.kubelet.wait_stream(SMALL, lambda stream: not stream.live)
    node.gpus.put(gpu(0, mig_devices=(after,)))
    node.start_agent()
    node.wait_listed(2, SMALL)
    node.wait_unhealthy(ids(before), SMALL)
    assert set(node.ids(SMALL)) == ids(before, after)


def test_a_gpu_in_mig_mode_is_never_offered_whole(make_node: MakeNode) -> None:
    """P18: also where only its neighbours can be offered."""
    empty, cut, whole = gpu(0, mig_devices=()), gpu(1, mig_devices=(mig(1, 0),)), gpu(2)
    node = make_node(empty, cut, whole)
    node.kubelet.start()
    agent = node.start_agent()
    node.wait_listed(4)
    assert list(node.ids()) == slices(whole, 4, 20480)
    agent.wait_log(f"{empty.uuid}, offers nothing")
    assert [call.resource for call in node.kubelet.register_calls()] == [GPU]


def test_each_profile_has_a_resource_of_its_own(make_node: MakeNode) -> None:
    """P20: five 1g.10gb, one 1g.10gb+me and one 1g.20gb on each of two GPUs; and three kinds of 1g.24gb."""

    def seven(number: int) -> SimulatedGpu:
        profiles = [*["1g.10gb"] * 5, "1g.10gb+me", "1g.20gb"]
        return gpu(number, mig_devices=tuple(mig(number, index, name) for index, name in enumerate(profiles)))

    kinds = ("1g.24gb", "1g.24gb+me", "1g.24gb+gfx")
    third = gpu(2, mig_devices=tuple(mig(2, index, name) for index, name in enumerate(kinds)))
    node = make_node(seven(0), seven(1), third)
    node.kubelet.start()
    node.write_policy(policy(MIG_RULE))
    node.start_agent()
    wanted = {"1g.10gb": 10, "1g.10gb.me": 2, "1g.20gb": 2, "1g.24gb": 1, "1g.24gb.me": 1, "1g.24gb.gfx": 1}
    for name, count in wanted.items():
        node.kubelet.wait_capacity(f"nvidia.com/mig-{name}", count)
    assert len(node.kubelet.register_calls()) == len(wanted)


def test_a_container_gets_the_nodes_of_its_instance(make_node: MakeNode) -> None:
    """Runtime facts: without both capability files CUDA sees no device."""
    one = mig(0, 2)
    node = make_node(gpu(0, mig_devices=(one,)))
    node.kubelet.start()
    node.write_policy(policy(MIG_RULE))
    node.start_agent()
    node.wait_listed(1, SMALL)
    given = node.kubelet.start_pod("p", {SMALL: 1}).container().given
    assert given is not None
    names = [device.container_path for device in given.devices]
    assert "/dev/nvidia0" in names
    assert sum(name.startswith("/dev/nvidia-caps/nvidia-cap") for name in names) == 2
    assert given.env["SHARER_GPU_UUIDS"] == one.uuid
