"""Every end of a registration is followed by exactly one other (kubelet-contract §2.4, §2.7, §19 rows 9 to 14)."""

from __future__ import annotations

import shutil

import pytest

from sharer.simulation.kubelet import KubeletSettings, Phase
from tests.e2e.conftest import MakeNode
from tests.e2e.gpus import GPU, WHOLE, A, B, policy, shared, slices
from tests.e2e.node import Node
from tests.fakes.bare_plugin import BarePlugin, device_list


def test_twenty_kubelet_restarts_are_twenty_registrations_and_leave_nothing_open(node: Node) -> None:
    """Contract rows 9, 11 and 14, pitfall 10, P09 (a): every second kubelet.sock has the inode number before it."""
    node.write_policy(policy(f"{{match: {{uuid: [{A.uuid}]}}, strategy: exclusive}}", shared(4)))
    agent = node.start_agent()
    used = []
    for count in range(1, 22):
        for resource, size in ((WHOLE, 1), (GPU, 4)):
            node.kubelet.wait_registered(resource, count)
            node.wait_listed(size, resource)
        used.append((agent.threads(), len(agent.open_files())))
        if count <= 20:
            node.kubelet.restart(same_inode=count % 2 == 0)
    assert len(node.kubelet.register_calls()) == 2 * 21
    assert len({message.ids for stream in node.kubelet.streams() for message in stream.messages}) == 2
    early, late = used[2:8], used[-6:]
    assert min(threads for threads, _ in late) <= max(threads for threads, _ in early)
    assert min(files for _, files in late) <= max(files for _, files in early)


def test_a_deleted_socket_is_replaced_after_the_old_stream_has_ended(node: Node) -> None:
    """Contract rows 12 and 14, pitfall 5, P09 (e): within 5 s. That the stream had ended by then, the node checks."""
    node.start_agent()
    node.wait_listed(8)
    node.kubelet.plugin_socket(GPU).unlink()
    call = node.kubelet.wait_registered(GPU, 2)
    node.wait_listed(8)
    assert node.our_sockets() == [call.endpoint]


def test_a_directory_that_is_removed_with_everything_in_it_is_followed_when_it_is_there_again(node: Node) -> None:
    """Neighbour of P09: as `kubeadm reset` does it. What watched the old directory sees nothing of the new one."""
    agent = node.start_agent()
    node.wait_listed(8)
    node.kubelet.kill()
    agent.wait_log("nobody listens")
    shutil.rmtree(node.directory)
    node.directory.mkdir()
    node.kubelet.start()
    node.kubelet.wait_registered(GPU, 2)
    node.wait_listed(8)
    node.kubelet.plugin_socket(GPU).unlink()
    node.kubelet.wait_registered(GPU, 3)
    node.kubelet.restart()
    node.kubelet.wait_registered(GPU, 4)
    node.wait_listed(8)


def test_a_stream_that_the_kubelet_ends_is_followed_by_a_pause_and_a_registration(node: Node) -> None:
    """Contract rows 13 and 15, pitfall 9: and the other resource is not disturbed."""
    node.write_policy(policy(f"{{match: {{uuid: [{A.uuid}]}}, strategy: exclusive}}", shared(4)))
    node.start_agent()
    node.wait_listed(4)
    node.wait_listed(1, WHOLE)
    node.kubelet.cut_stream(GPU)
    second = node.kubelet.wait_registered(GPU, 2)
    node.wait_listed(4)
    first = node.kubelet.streams(GPU)[0]
    assert first.ended_at_s is not None
    assert second.at_s - first.ended_at_s > 0.9  # the kubelet sees the end it made a little later than the agent
    assert [stream.live for stream in node.kubelet.streams(WHOLE)] == [True]
    assert len(node.kubelet.register_calls(WHOLE)) == 1


@pytest.mark.parametrize("agent_too", [False, True])
def test_running_and_crashed_pods_survive_a_restart_of_the_kubelet(make_node: MakeNode, agent_too: bool) -> None:
    """Contract §22: who is registered again before the kubelet knows its pods loses none, whoever restarts."""
    settings = KubeletSettings(podresources_lead_s=0, sources_ready_after_s=3)
    node = make_node(A, B, settings=settings)
    node.kubelet.start()
    agent = node.start_agent()
    node.wait_listed(8)
    for name in ("running", "crashed"):
        node.kubelet.start_pod(name, {GPU: 1})
    held = {pod.name: pod.ids(GPU) for pod in node.kubelet.pods()}
    node.kubelet.crash_container("crashed")
    if agent_too:
        agent.kill()
    node.kubelet.restart()
    if agent_too:
        node.start_agent()
    node.kubelet.wait_for(lambda: node.kubelet.sources_ready)
    assert [pod.phase for pod in node.kubelet.pods()] == [Phase.RUNNING, Phase.RUNNING]
    assert node.kubelet.restart_container("crashed").starts == 2
    assert {pod.name: pod.ids(GPU) for pod in node.kubelet.pods()} == held


def test_an_agent_that_was_killed_comes_back_with_the_same_ids_in_the_same_order(node: Node) -> None:
    """Contract row 20, pitfall 18, also where the driver counts the GPUs the other way round after a reboot."""
    first = node.start_agent()
    node.wait_listed(8)
    before = node.ids()
    first.kill()
    node.kubelet.wait_stream(GPU, lambda stream: not stream.live)
    node.gpus.set_gpus([B, A])
    node.start_agent()
    node.wait_listed(8)
    assert set(node.ids()) == set(before) == {*slices(A, 4, 20480), *slices(B, 4, 20480)}
    assert len(node.our_sockets()) == 1


def test_a_second_agent_waits_for_the_first_and_follows_it_at_once(node: Node) -> None:
    """Contract row 17, pitfall 7, P11: it says who is there, touches nothing, and takes over when the first is gone."""
    first = node.start_agent()
    node.wait_listed(8)
    second = node.start_agent()
    assert f"pid {first.pid}" in second.wait_log("waiting until it ends")
    assert len(node.kubelet.register_calls()) == 1
    first.kill()
    node.kubelet.wait_registered(GPU, 2)
    node.wait_listed(8)
    assert len(node.our_sockets()) == 1


def test_a_second_agent_that_is_told_to_stop_leaves_the_first_alone(node: Node) -> None:
    """P11."""
    first = node.start_agent()
    node.wait_listed(8)
    second = node.start_agent()
    second.wait_log("waiting until it ends")
    assert second.terminate() < 5
    assert first.running
    assert [stream.live for stream in node.kubelet.streams()] == [True]


def test_a_second_agent_with_another_run_directory_waits_too_and_undoes_nothing(node: Node) -> None:
    """P11: the kubelet is one. A second one registered over the first, and its end failed every pod that came later."""
    first = node.start_agent()
    node.wait_listed(8)
    second = node.start_agent(f"--run-dir={node.root}/run/other")
    said = second.wait_log("waiting until it ends")
    assert f"another sharer agent serves the kubelet of {node.directory}" in said
    assert "remove one of the two from this node" in said
    assert second.terminate() < 5
    assert node.kubelet.start_pod("after", {GPU: 1}).phase is Phase.RUNNING
    third = node.start_agent(f"--run-dir={node.root}/run/other")
    third.wait_log("waiting until it ends")
    assert len(node.kubelet.register_calls()) == 1
    first.kill()
    node.kubelet.wait_registered(GPU, 2, timeout_s=10)
    node.wait_listed(8)


def test_a_rival_that_comes_later_is_noticed_and_its_end_takes_nothing(node: Node) -> None:
    """Neighbour of P11: the vendor's plugin is installed beside us, and removed. Nothing of ours ends by its coming."""
    agent = node.start_agent()
    node.wait_listed(8)
    node.rivals = 1
    rival = BarePlugin(node.directory, GPU, device_list(["GPU-of-the-rival"]))
    rival.serve()
    rival.register()
    assert "another plugin has registered this name since" in agent.wait_log(f"registering {GPU} again")
    node.kubelet.wait_registered(GPU, 3)
    node.wait_listed(8)
    rival.stop()
    node.kubelet.wait_capacity(GPU, 8)
    assert node.kubelet.start_pod("after", {GPU: 1}).phase is Phase.RUNNING
    assert agent.said("registering") == agent.said("another plugin has registered this name since")


def test_a_rival_that_was_there_first_and_leaves_later_is_followed_by_a_registration(node: Node) -> None:
    """P11: at the end of its stream the kubelet closes ours, and every slice is unhealthy until we register again."""
    rival = BarePlugin(node.directory, GPU, device_list(["GPU-of-the-rival"]))
    rival.serve()
    rival.register()
    node.rivals = 1
    node.wait_listed(1)
    node.start_agent()
    node.wait_listed(8)
    rival.stop()
    node.kubelet.wait_registered(GPU, 3)
    node.kubelet.wait_capacity(GPU, 8)
