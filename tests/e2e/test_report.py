"""`sharer report` beside a running agent, and the policy over an agent's restarts."""

from __future__ import annotations

import os
import stat
import subprocess
import sys

import pytest

from sharer.adapters.local_socket import FILE_NAME
from sharer.cli.report.command import read_report
from sharer.core.errors import NodeError
from tests.e2e.gpus import GPU, A, policy, shared, slices
from tests.e2e.node import Node
from tests.e2e.process import PATIENCE_S
from tests.e2e.reported import wait_report

WINDOW = {"rollout": "{window: 10m}"}


def shows(node: Node, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sharer", "report", f"--run-dir={node.run_dir}", *flags]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)


def test_the_report_counts_as_the_kubelet_does(node: Node) -> None:
    node.start_agent()
    node.wait_listed(8)
    node.kubelet.wait_capacity(GPU, 8)
    node.kubelet.start_pod("train", {GPU: 1})
    report = wait_report(node, lambda one: len(one.status.holders) == 1, "that a slice is not free any more")
    (resource,) = report.status.resources
    assert (resource.slices, resource.held, resource.free) == (8, 1, 7)
    assert (report.status.node.kernel, report.status.node.cgroup) == (os.uname().release, "v2")
    done = shows(node)
    assert f"{GPU}       8     1     7" in done.stdout
    assert done.returncode in (0, 3), done.stderr
    assert bool(done.stderr) == (done.returncode == 3)


def test_only_root_can_ask_and_nothing_is_left_of_the_socket_at_the_end(node: Node) -> None:
    """Threat 10."""
    agent = node.start_agent()
    node.wait_listed(8)
    path = node.run_dir / FILE_NAME
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(node.run_dir.stat().st_mode) == 0o750
    agent.terminate()
    assert not path.exists()
    done = shows(node)
    assert done.returncode == 1
    assert "there is no such socket" in done.stderr


def test_the_socket_of_a_killed_agent_is_replaced_by_the_next_one_s(node: Node) -> None:
    agent = node.start_agent()
    node.wait_listed(8)
    agent.kill()
    with pytest.raises(NodeError, match="the agent that made this socket has ended"):
        read_report(node.run_dir)
    node.start_agent()
    wait_report(node, lambda one: len(one.slices) == 8, "the next agent's slices")


def test_an_agent_that_waits_for_the_lock_leaves_the_socket_of_the_other_one_alone(node: Node) -> None:
    node.start_agent()
    node.wait_listed(8)
    second = node.start_agent("--node-name=second")
    second.wait_log("another sharer agent")
    assert read_report(node.run_dir).metadata.name == node.kubelet.settings.node_name
    second.terminate()
    assert read_report(node.run_dir).metadata.name == node.kubelet.settings.node_name


def test_a_socket_that_cannot_be_made_is_one_warning_and_the_node_is_shared_all_the_same(node: Node) -> None:
    node.run_dir.mkdir(parents=True)
    (node.run_dir / FILE_NAME).mkdir()
    agent = node.start_agent()
    node.wait_listed(8)
    agent.wait_log("cannot listen on")
    assert len(agent.said("cannot listen on")) == 1


def test_a_staged_policy_is_reported_and_survives_a_restart_without_taking_effect(node: Node) -> None:
    """DESIGN §4: within its rollout.window the policy of before stays in force, also over a SIGKILL."""
    agent = node.start_agent()
    node.wait_listed(8)
    node.write_policy(policy(shared(2), **WINDOW))
    agent.wait_log("is staged: it takes effect")
    for _ in range(2):
        report = wait_report(node, lambda one: one.status.policy.staged is not None, "the staged policy")
        told = report.status.policy
        assert told.staged is not None
        assert told.staged.hash == told.wanted_hash != told.hash
        assert [one.id for one in report.slices if one.gpu_uuid == A.uuid] == slices(A, 4, 20480)
        agent.kill()
        agent = node.start_agent()
        agent.wait_log("is staged: it takes effect")
        node.wait_listed(8)


def test_a_damaged_last_good_policy_is_set_aside_and_the_agent_goes_on(node: Node) -> None:
    """P32."""
    agent = node.start_agent()
    node.wait_listed(8)
    agent.terminate()
    kept = node.run_dir / "policy-last-good.yaml"
    kept.write_bytes(kept.read_bytes()[:-20])
    again = node.start_agent()
    node.wait_listed(8)
    again.wait_log("is damaged: set aside")
    assert len(again.said("is damaged: set aside")) == 1
    assert kept.exists()
    assert kept.with_name("policy-last-good.yaml.damaged").exists()


def test_a_staged_policy_takes_effect_at_the_node_s_turn_without_any_help(node: Node) -> None:
    """DESIGN §4: within 5 s of it."""
    agent = node.start_agent()
    node.wait_listed(8)
    node.write_policy(policy(shared(2), rollout="{window: 1s}"))
    agent.wait_log("policy in force: ", count=2)
    node.kubelet.wait_for(lambda: slices(A, 2, 40960)[0] in node.ids(), PATIENCE_S, "the new cut")
