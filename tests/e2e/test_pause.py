"""With NVIDIA's GPU Operator: who manages the driver pauses us by a label, and finds nothing of ours open."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence

import pytest

from sharer.simulation.apiserver import NODE, node_object
from tests.e2e.api import Api
from tests.e2e.gpus import GPU, A, B, gpu, policy, slices
from tests.e2e.node import Node
from tests.e2e.pages import HTTP, metrics, read, wait_page
from tests.e2e.process import Agent
from tests.e2e.reported import wait_report

PLUGIN, CLIENT = "nvidia.com/gpu.deploy.device-plugin", "nvidia.com/gpu.deploy.client"
DISCOVERY = "nvidia.com/gpu.deploy.gpu-feature-discovery"
UPGRADE = "paused-for-driver-upgrade"
DRIVER_NOT_LOADED, VERSION_MISMATCH = 9, 18


def label(api: Api, **labels: str) -> None:
    """The Node's labels from now on."""
    keys = {"plugin": PLUGIN, "client": CLIENT, "discovery": DISCOVERY}
    given = {keys[name]: value for name, value in labels.items()}
    api.server.put(NODE, node_object(api.node_name, uid="node-uid", labels=given))


def start(node: Node, api: Api, *flags: str, below: Sequence[str] = ()) -> Agent:
    """An agent that follows its Node."""
    label(api, plugin="true")
    agent = node.start_agent(api.only_pods, *flags, below=below)
    node.wait_listed(8)
    api.server.wait_watches(1, resource="nodes")
    return agent


def is_open(node: Node) -> bool:
    """Whether anybody has NVML open: the library counts."""
    return node.gpus.calls("nvmlInitWithFlags") > node.gpus.calls("nvmlShutdown")


def another_round(node: Node, agent: Agent) -> None:
    """Wait until the agent has looked at everything once more: a policy of other words is in force by then."""
    node.write_policy(f"{policy()}# once more\n")
    agent.wait_log("policy in force: ", 2)


def test_while_paused_nvml_is_closed_and_every_slice_is_unhealthy_and_still_registered(node: Node, api: Api) -> None:
    agent = start(node, api, HTTP)
    assert is_open(node)
    began_s = time.monotonic()
    label(api, plugin=UPGRADE)
    node.wait_unhealthy(node.ids())
    node.wait(lambda: not is_open(node), "NVML closed")
    assert time.monotonic() - began_s < 5, "the operator goes on after some seconds"
    said = agent.wait_log(f"paused by the node's label {PLUGIN}={UPGRADE}: NVML is closed, and no slice is given out")
    assert " INFO " in said
    assert len(node.kubelet.live_streams(GPU)) == len(node.kubelet.register_calls()) == 1
    opened = node.gpus.calls("nvmlInitWithFlags")
    report = wait_report(node, lambda one: one.status.gpus[0].health == "unhealthy", "the pause")
    assert report.status.gpus[0].reason == f"paused by the node's label {PLUGIN}={UPGRADE}"
    assert read(agent, "/readyz") == (503, f"paused by the node's label {PLUGIN}={UPGRADE}\n")
    assert read(agent, "/healthz")[0] == 200
    assert metrics(agent)["sharer_paused"] == 1
    another_round(node, agent)
    assert node.gpus.calls("nvmlInitWithFlags") == opened


def test_slices_are_healthy_again_once_the_new_driver_answers_and_not_before(node: Node, api: Api) -> None:
    """Neighbour of P17: the operator takes its label back before the driver's container has loaded the module."""
    agent = start(node, api, HTTP)
    label(api, plugin=UPGRADE)
    node.wait_unhealthy(node.ids())
    node.wait(lambda: not is_open(node), "NVML closed")
    node.gpus.fail("nvmlInitWithFlags", DRIVER_NOT_LOADED)
    label(api, plugin="true")
    agent.wait_log("the pause is over")
    agent.wait_log("driver not loaded")
    assert node.unhealthy() == set(node.ids())
    node.gpus.clear()
    node.wait_unhealthy(())
    assert wait_page(agent, "/readyz", lambda status, _: status == 200)[1] == "ready\n"
    assert metrics(agent)["sharer_paused"] == 0
    assert len(node.kubelet.register_calls()) == 1


def test_a_changed_set_of_gpus_is_found_after_the_pause(node: Node, api: Api) -> None:
    agent = start(node, api)
    label(api, client="paused-for-mig-change")
    node.wait_unhealthy(node.ids())
    node.wait(lambda: not is_open(node), "NVML closed")
    third = gpu(2)
    node.write_device_files((A, B, third))
    node.gpus.set_gpus((A, B, third))
    label(api, client="true")
    node.wait_listed(12)
    node.wait_unhealthy(())
    assert set(slices(third, 4, 20480)) <= set(node.ids())
    agent.wait_log(f"found {third.uuid}")


def test_a_node_without_the_operator_s_own_plugin_is_paused_too(node: Node, api: Api) -> None:
    """The operator leaves a label that is "false" as it is, and 26.3 and older have none for clients of others."""
    agent = start(node, api)
    label(api, plugin="false", discovery=UPGRADE)
    node.wait_unhealthy(node.ids())
    node.wait(lambda: not is_open(node), "NVML closed")
    agent.wait_log(f"paused by the node's label {DISCOVERY}={UPGRADE}")
    label(api, plugin="false", discovery="true")
    node.wait_unhealthy(())


def test_an_agent_whose_container_has_the_old_driver_s_library_ends_so_that_it_is_given_the_new_one(
    node: Node, api: Api
) -> None:
    """The container runtime has mounted the library's file, and no other takes its place while the container lives."""
    given = ("unshare", "-Urm", "sh", "-c", f'mount --bind {node.gpus.path} {node.gpus.path} && exec "$0" "$@"')
    if subprocess.run([*given, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("this machine lets nobody mount anything in a user namespace (unshare -Urm)")
    agent = start(node, api, below=given)
    held = node.ids()
    label(api, plugin=UPGRADE)
    node.wait(lambda: not is_open(node), "NVML closed")
    node.gpus.fail("nvmlInitWithFlags", VERSION_MISMATCH)
    label(api, plugin="true")
    assert agent.wait_end() == 1
    assert " ERROR " in agent.wait_log(f"given the library of the one before ({node.gpus.path}): the agent ends")
    assert agent.said("Traceback") == []
    assert node.our_sockets() == [], "it has ended in order"
    node.gpus.clear()
    node.start_agent(api.only_pods)
    node.wait_unhealthy(())
    assert node.ids() == held


def test_a_flag_turns_it_off_or_names_another_label_one_of_ours_too(node: Node, api: Api) -> None:
    agent = start(node, api, "--pause-label=example.com/gpu-maintenance,sharer.dev/maintenance")
    label(api, plugin=UPGRADE)
    another_round(node, agent)
    assert "paused by" not in agent.log
    labels = {"sharer.dev/maintenance": "paused-for-firmware"}
    api.server.put(NODE, node_object(api.node_name, uid="node-uid", labels=labels))
    agent.wait_log("paused by the node's label sharer.dev/maintenance=paused-for-firmware")
    node.wait_unhealthy(node.ids())
    found = wait_report(node, lambda report: report.status.node.driver is not None, "any")
    assert not any("means nothing" in str(warning) for warning in found.status.warnings)
