"""GPUs that fail and recover, as pods and the kubelet see it (kubelet-contract §19 rows 21, 22)."""

from __future__ import annotations

import statistics
import time
from dataclasses import replace

from sharer.simulation.kubelet import Phase
from tests.e2e.conftest import MakeNode
from tests.e2e.gpus import GPU, A, B, gpu, mig, policy, shared, slices
from tests.e2e.node import Node

OF_A, OF_B = slices(A, 4, 20480), slices(B, 4, 20480)
NOT_SUPPORTED, UNKNOWN = 3, 999
GPU_RESET = 1


def test_a_fatal_xid_takes_all_slices_of_its_gpu_and_no_other_in_one_list(make_node: MakeNode) -> None:
    """Contract row 21, pitfalls 16 and 24, P13: within a second. Events are registered once per GPU, not per slice."""
    gpus = [gpu(number) for number in range(5)]
    node = make_node(*gpus)
    node.kubelet.start()
    node.start_agent()
    node.wait_listed(20)
    node.gpus.wait_for_calls("nvmlEventSetWait_v2", 1)
    took_s, struck = [], list[str]()
    for count, one in enumerate(gpus, 1):
        began_s = time.monotonic()
        node.gpus.xid(one.uuid, 79)
        struck += slices(one, 4, 20480)
        took_s.append(node.wait_unhealthy(struck).at_s - began_s)
        assert len(node.lists()) == 1 + count
    assert statistics.median(took_s) < 1  # not at the next look, which is after 3 s at most
    assert {message.ids for message in node.lists()} == {node.lists()[0].ids}
    assert [node.gpus.calls("nvmlDeviceRegisterEvents", uuid=one.uuid) for one in gpus] == [1] * 5


def test_a_fault_ends_for_all_slices_at_once_when_the_driver_wants_no_recovery_any_more(node: Node) -> None:
    """Contract row 21, P14: the reset is seen by the recovery action, and only by that."""
    agent = node.start_agent()
    node.wait_listed(8)
    node.gpus.put(replace(A, recovery_action=GPU_RESET))
    node.wake(B)
    node.wait_unhealthy(OF_A)
    assert "the driver asks for: GPU reset" in agent.wait_log("is at fault")
    node.gpus.put(A)
    node.wake(B)
    node.wait_unhealthy([])
    agent.wait_log(f"{A.uuid} is healthy again")
    assert [len(message.healthy_ids) for message in node.lists()] == [8, 4, 8]


def test_a_fault_that_needs_a_reset_outlives_the_agent(node: Node) -> None:
    """P14: the driver still asks for it after our restart, so no pod is given the GPU in between."""
    first = node.start_agent()
    node.wait_listed(8)
    first.kill()
    node.gpus.put(replace(A, recovery_action=GPU_RESET))
    node.start_agent()
    node.kubelet.wait_registered(GPU, 2)
    node.wait_listed(8)
    assert node.lists()[0].healthy_ids == set(OF_B)


def test_a_transient_fault_ends_after_a_quiet_time_and_a_fatal_one_never_by_itself(make_node: MakeNode) -> None:
    """P14, pitfall 24: 94; 94 again and again; 79; 31; 45; and 150. Every memory query succeeds meanwhile."""
    once, often, off_the_bus, page_fault, preempted, unknown = gpus = [gpu(number) for number in range(6)]
    node = make_node(*gpus)
    node.kubelet.start()
    node.write_policy(policy(shared(1), health="{transient: {xids: [94], recoverAfter: 3s}}"))
    agent = node.start_agent()
    node.wait_listed(6)
    slice_of = {one.uuid: f"{one.uuid}::ts-0-81920" for one in gpus}
    fatal = {slice_of[off_the_bus.uuid], slice_of[unknown.uuid]}
    for one, xid in ((once, 94), (often, 94), (off_the_bus, 79), (page_fault, 31), (preempted, 45), (unknown, 150)):
        node.gpus.xid(one.uuid, xid)
    struck = node.wait_unhealthy({*fatal, slice_of[once.uuid], slice_of[often.uuid]})
    recovered, last_event_s = {*fatal, slice_of[often.uuid]}, struck.at_s
    while not node.comes_true(lambda: node.unhealthy() == recovered, within_s=0.2):
        assert slice_of[often.uuid] in node.unhealthy()
        node.gpus.xid(often.uuid, 94)
        last_event_s = time.monotonic()
    assert node.lists()[-1].at_s - struck.at_s > 2.9
    quiet = node.wait_unhealthy(fatal)
    assert quiet.at_s - last_event_s > 3
    assert f"{off_the_bus.uuid} is at fault: XID 79 (GPU has fallen off the bus)" in agent.log
    assert f"{unknown.uuid} is at fault: XID 150" in agent.log


def test_gpus_that_are_lost_or_vanish_keep_their_ids_and_delay_no_other(make_node: MakeNode) -> None:
    """Contract row 22, pitfall 17, P15: one answers "lost" to everything, one is off the bus. Then both are back."""
    first, second, lost, gone = gpus = [gpu(number) for number in range(4)]
    node = make_node(*gpus)
    node.kubelet.start()
    node.start_agent()
    node.wait_listed(16)
    loss = node.gpus.lose(lost.uuid)
    node.gpus.remove(gone.uuid)
    node.wake(first)
    node.wait_unhealthy([*slices(lost, 4, 20480), *slices(gone, 4, 20480)])
    pods = [node.kubelet.start_pod(f"p{number}", {GPU: 1}) for number in range(9)]
    assert [pod.phase for pod in pods] == [*[Phase.RUNNING] * 8, Phase.FAILED]
    node.gpus.clear(loss)
    node.gpus.set_gpus(gpus)
    node.wake(second)
    node.wait_unhealthy([])
    assert {message.ids for message in node.lists()} == {node.lists()[0].ids}


def test_a_gpu_that_is_missing_after_a_restart_takes_nothing_but_itself(make_node: MakeNode) -> None:
    """Contract row 22, pitfall 17, P15, variant: it is not counted any more. What a pod holds stays, Unhealthy."""
    gpus = [gpu(number) for number in range(4)]
    node = make_node(*gpus)
    node.kubelet.start()
    node.write_policy(policy(shared(4, "placement: spread")))
    first = node.start_agent()
    node.wait_listed(16)
    [held] = [node.kubelet.start_pod(f"p{number}", {GPU: 1}).ids(GPU) for number in range(4)][2]
    assert held in slices(gpus[2], 4, 20480)
    first.kill()
    node.kubelet.wait_stream(GPU, lambda stream: not stream.live)
    node.gpus.remove(gpus[2].uuid)
    node.start_agent()
    node.wait_listed(13)
    pods = [node.kubelet.start_pod(f"p{number}", {GPU: 1}) for number in range(4, 13)]
    assert {pod.phase for pod in pods} == {Phase.RUNNING}
    assert node.unhealthy() == {held}


def test_a_gpu_that_cannot_report_events_is_offered_and_one_that_fails_to_is_not(make_node: MakeNode) -> None:
    """P16: SUCCESS, NOT_SUPPORTED, UNKNOWN."""
    monitored, unmonitored, failing = gpu(0), gpu(1), gpu(2)
    node = make_node(monitored, unmonitored, failing)
    node.kubelet.start()
    node.gpus.fail("nvmlDeviceRegisterEvents", NOT_SUPPORTED, uuid=unmonitored.uuid)
    node.gpus.fail("nvmlDeviceRegisterEvents", UNKNOWN, uuid=failing.uuid)
    agent = node.start_agent()
    node.wait_unhealthy(slices(failing, 4, 20480))
    agent.wait_log(f"{unmonitored.uuid} cannot report XIDs: it is offered")
    assert "NVML error 999" in agent.wait_log(f"{failing.uuid} is at fault")
    assert monitored.uuid not in agent.log


def test_an_xid_of_a_mig_device_takes_that_device_and_one_of_its_gpu_all_of_them(make_node: MakeNode) -> None:
    """Neighbour of P13: an instance that nobody knows is never dropped: no part of that GPU can be trusted."""
    first, second = mig(0, 0), mig(0, 1)
    cut, other = gpu(0, mig_devices=(first, second)), gpu(1, mig_devices=(mig(1, 0), mig(1, 1)))
    node = make_node(cut, other)
    node.kubelet.start()
    node.write_policy(policy("{match: {}, strategy: mig}"))
    node.start_agent()
    resource = "nvidia.com/mig-1g.10gb"
    node.wait_listed(4, resource)
    node.gpus.xid(cut.uuid, 79, gpu_instance_id=first.gpu_instance_id, compute_instance_id=0)
    node.wait_unhealthy([f"{first.uuid}::mig-0"], resource)
    node.gpus.xid(other.uuid, 79, gpu_instance_id=99, compute_instance_id=0)
    everything_of_the_other = [f"{mig(1, index).uuid}::mig-0" for index in range(2)]
    node.wait_unhealthy([f"{first.uuid}::mig-0", *everything_of_the_other], resource)


def test_an_event_that_fits_no_gpu_is_told_and_blames_none(node: Node) -> None:
    agent = node.start_agent()
    node.wait_listed(8)
    node.gpus.wait_for_calls("nvmlEventSetWait_v2", 1)
    node.gpus.xid(None, 79)
    agent.wait_log("XID 79 (GPU has fallen off the bus) on a GPU that the driver does not name")
    assert len(node.lists()) == 1


def test_a_pod_on_a_gpu_at_fault_runs_on_and_its_status_says_so(node: Node) -> None:
    """Contract §13, §22: running pods are not touched, a container restarts from its stored answer."""
    node.start_agent()
    node.wait_listed(8)
    [held] = node.kubelet.start_pod("train", {GPU: 1}).ids(GPU)
    assert node.kubelet.resource_health("train") == {held: "Healthy"}
    node.gpus.xid(A.uuid if held in OF_A else B.uuid, 79)
    node.wait_unhealthy(OF_A if held in OF_A else OF_B)
    assert node.kubelet.resource_health("train") == {held: "Unhealthy"}
    assert node.kubelet.restart_container("train").starts == 2
    assert node.kubelet.pod("train").phase is Phase.RUNNING
