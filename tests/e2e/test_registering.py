"""The agent comes to be registered, whatever it finds at its start (kubelet-contract §19, rows 1 to 8)."""

from __future__ import annotations

import itertools
import json
import socket
import subprocess

import pytest

from sharer.simulation.kubelet import Die, Refuse
from tests.e2e.conftest import MakeNode
from tests.e2e.gpus import GPU, WHOLE, A, B, policy, shared
from tests.e2e.node import Node

BAD_NAMES = ("gpu", "x.kubernetes.io/g", "requests.a/g", "A.io/g", "a.io/" + "g" * 64)
DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND, VERSION_MISMATCH = 9, 12, 18


def test_each_resource_is_registered_once_and_listed_at_once(node: Node) -> None:
    """Contract rows 1, 2, 3, 18 and 19, pitfalls 1, 2, 4, 8 and 16; of these the node checks the rest in every test."""
    node.write_policy(policy(f"{{match: {{uuid: [{A.uuid}]}}, strategy: exclusive}}", shared(4)))
    agent = node.start_agent()
    for resource, count in ((WHOLE, 1), (GPU, 4)):
        node.wait_listed(count, resource)
        agent.wait_log(f"registered {resource}: {count} slices")
    assert sorted(call.resource for call in node.kubelet.register_calls()) == [WHOLE, GPU]
    assert sorted(call.endpoint for call in node.kubelet.register_calls()) == node.our_sockets()
    for call in node.kubelet.register_calls():
        assert call.took_s is not None
        assert call.took_s < 5  # a kubelet would wait for 10 s for a server that does not serve
    assert min(stream.messages[0].at_s - stream.opened_at_s for stream in node.kubelet.streams()) < 1
    assert node.ids(WHOLE) == (f"{A.uuid}::ex-0",)
    assert node.ids(GPU) == tuple(f"{B.uuid}::ts-{replica}-20480" for replica in range(4))


def test_resource_names_that_the_kubelet_would_refuse_never_get_there(node: Node) -> None:
    """Contract row 4, pitfall 48: all are told at once. The agent lives on, and a good policy is all it takes."""
    node.write_policy(policy(*(shared(4, f"resource: {name}") for name in BAD_NAMES)))
    agent = node.start_agent()
    agent.wait_log(f"rules[{len(BAD_NAMES) - 1}].resource: ")
    for number, name in enumerate(BAD_NAMES):
        [told] = agent.said(f"{node.policy_file}:{4 + number}:62: rules[{number}].resource: ")
        assert repr(name)[:20] in told
    assert node.kubelet.register_calls() == []
    assert node.our_sockets() == []
    node.write_policy(policy())
    node.wake(A)
    node.wait_listed(8)


def test_refusals_are_answered_with_ever_longer_pauses_and_said_once(node: Node) -> None:
    """P09 (c), pitfall 9: and what is accepted at last is served by the one socket that there is."""
    text = 'requested API version "v1beta1" is not supported by kubelet. Supported version is ["v2"]'
    node.kubelet.on_next_register(Refuse(text), Refuse(text))
    agent = node.start_agent()
    node.wait_listed(8)
    calls = node.kubelet.register_calls()
    pauses_s = [later.at_s - call.at_s for call, later in itertools.pairwise(calls)]
    assert [pause_s > least_s for pause_s, least_s in zip(pauses_s, (1, 2), strict=True)] == [True, True]
    assert len(agent.said(text)) == 1
    assert node.our_sockets() == [calls[-1].endpoint]


@pytest.mark.parametrize("found", ["no directory", "no socket", "dead socket"])
def test_a_kubelet_that_comes_later_is_registered_with_at_once(make_node: MakeNode, found: str) -> None:
    """Contract rows 7 and 8, pitfall 12, P09 (b): within 2 s of its socket, whatever is there before."""
    node = make_node(A, B)
    if found == "no directory":
        node.directory.rmdir()
    if found == "dead socket":
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(node.kubelet.socket))
    agent = node.start_agent()
    agent.wait_log(f"nobody listens on {node.kubelet.socket}")
    node.kubelet.start()
    node.kubelet.wait_registered(GPU)
    node.wait_listed(8)
    assert len(node.kubelet.register_calls()) == 1


def test_a_kubelet_that_dies_in_the_middle_of_registering_is_registered_with_when_it_is_back(node: Node) -> None:
    """P09 (d): before its answer, and between Register and ListAndWatch."""
    node.kubelet.on_next_register(Die(answer=False), Die())
    node.start_agent()
    for _ in range(2):
        node.kubelet.wait_for(lambda: not node.kubelet.running)
        node.kubelet.start()
    node.wait_listed(8)
    assert len(node.kubelet.register_calls()) == 3


def test_as_json_every_line_is_an_event_also_when_kubelets_die(node: Node) -> None:
    """gRPC's core has much to say about a connection that drops, and writes where the log goes."""
    deaths = 4
    node.kubelet.on_next_register(*[Die(answer=False)] * deaths)
    agent = node.start_agent("--log-format=json")
    for _ in range(deaths):
        node.kubelet.wait_for(lambda: not node.kubelet.running)
        node.kubelet.start()
    node.wait_listed(8)
    agent.terminate()
    events = [json.loads(line) for line in agent.lines]
    assert [event["level"] for event in events if "UNAVAILABLE" in event["message"]] == ["warning"]
    assert events[-1]["message"] == "stopped"


def test_without_an_inotify_instance_everything_works_and_one_warning_says_what_to_raise(node: Node) -> None:
    """P10: in a user namespace whose limit is 0, so that inotify_init1 itself says EMFILE."""
    no_inotify = ("unshare", "-Ur", "sh", "-c", 'echo 0 >/proc/sys/user/max_inotify_instances && exec "$0" "$@"')
    if subprocess.run([*no_inotify, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("this machine lets nobody make a user namespace (unshare -Ur)")
    agent = node.start_agent(below=no_inotify)
    node.wait_listed(8)
    agent.wait_log("fs.inotify.max_user_instances")
    assert len(agent.said("fs.inotify.max_user_instances")) == 1
    assert "anon_inode:inotify" not in agent.open_files()
    node.kubelet.restart()
    node.kubelet.wait_registered(GPU, 2)
    node.write_policy(policy(shared(5)))
    agent.wait_log("planned 10")
    assert len(agent.said("inotify")) == 1


def test_the_process_has_one_inotify_instance(node: Node) -> None:
    """P10: they are scarce on a busy node."""
    agent = node.start_agent()
    node.wait_listed(8)
    assert agent.open_files().count("anon_inode:inotify") == 1


def test_a_driver_that_comes_late_is_registered_as_soon_as_there_are_gpus(make_node: MakeNode) -> None:
    """P17, first script, pitfall 15: no library, no kernel module, no GPU; then two. The reason is said each time."""
    node = make_node(driver_installed=False)
    node.kubelet.start()
    agent = node.start_agent()
    agent.wait_log(f"library is not at {node.gpus.path}")
    not_loaded = node.gpus.fail("nvmlInitWithFlags", DRIVER_NOT_LOADED)
    node.gpus.install()
    agent.wait_log("modprobe nvidia")
    node.gpus.clear(not_loaded)
    agent.wait_log("found no GPU")
    assert node.kubelet.register_calls() == []
    node.write_device_files([A, B])
    node.gpus.set_gpus([A, B])
    node.wait_listed(8)
    assert len(node.kubelet.register_calls()) == 1


@pytest.mark.parametrize(
    ("code", "cure"), [(VERSION_MISMATCH, "reload the module"), (LIBRARY_NOT_FOUND, "incomplete: reinstall it")]
)
def test_a_driver_that_cannot_be_used_is_explained_and_asked_again_without_a_word(
    make_node: MakeNode, code: int, cure: str
) -> None:
    """P17, second and third script: nothing is offered, nothing ends, and the log does not grow."""
    node = make_node(A)
    node.kubelet.start()
    node.gpus.fail("nvmlInitWithFlags", code)
    agent = node.start_agent()
    assert "NVML cannot be opened" in agent.wait_log(cure)
    node.gpus.wait_for_calls("nvmlInitWithFlags", 3)
    assert len(agent.said(cure)) <= 2  # by who looks for GPUs and by who waits for XIDs
    assert node.kubelet.register_calls() == []
    assert agent.running


def test_on_a_node_without_gpus_the_agent_idles_without_a_warning(make_node: MakeNode) -> None:
    """P17: a driver that works and counts 0."""
    node = make_node()
    node.kubelet.start()
    agent = node.start_agent()
    agent.wait_log("found no GPU")
    node.gpus.wait_for_calls("nvmlDeviceGetCount_v2", node.gpus.calls("nvmlDeviceGetCount_v2") + 1)
    assert agent.said(" WARNING ") == []
    assert node.kubelet.register_calls() == []
    assert agent.terminate() < 5
