"""The agent as a process beside MPS control daemons, of which their supervisor's files tell."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import replace

import pytest

from sharer.adapters.mps import MpsStateFiles
from sharer.core.mps.state import MpsGpu, MpsInterface, MpsState, folder_name
from sharer.core.report.node import MpsReport
from sharer.simulation.cgroups import write_process
from sharer.simulation.hardware import SimulatedGpu, SimulatedProcess
from sharer.simulation.kubelet import PodStatus
from tests.e2e.conftest import MakeNode
from tests.e2e.gpus import GPU, WHOLE, gpu, policy, slices
from tests.e2e.node import Node
from tests.e2e.process import Agent
from tests.e2e.reported import wait_report

MPS = "nvidia.com/gpu.mps"
PID = 4711
DIRECTORY, LIMIT = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"


def mps(count: int, *gpus: SimulatedGpu) -> str:
    """The rule that gives these GPUs, or all, to MPS."""
    match = f"{{uuid: [{', '.join(one.uuid for one in gpus)}]}}" if gpus else "{}"
    memory = "memory: {enforce: [driver, mps, watch]}"
    return f"{{match: {match}, resource: {MPS}, strategy: mps, slices: {count}, {memory}}}"


def clients(one: SimulatedGpu, count: int, limit_mib: int) -> list[str]:
    """The IDs of a GPU's slices when it is shared by MPS."""
    return [f"{one.uuid}::mps-{replica}-{limit_mib}-{100 // count}" for replica in range(count)]


def serve(node: Node, *gpus: SimulatedGpu, problem: str | None = None, **parts: object) -> None:
    """The supervisor says that the daemon serves these GPUs, just now."""
    usual: dict[str, object] = {
        "interface": MpsInterface.LEGACY,
        "gpus": {one.uuid: MpsGpu(clients=0) for one in gpus},
    }
    mps_dir = node.root / "state/mps"
    (mps_dir / folder_name(MPS)).mkdir(parents=True, exist_ok=True)
    state = MpsState(resource=MPS, written_at_s=time.time(), problem=problem, **(usual | parts))  # type: ignore[arg-type]
    MpsStateFiles(mps_dir).write(state)


def wanted_of(node: Node) -> tuple[MpsReport, ...]:
    """What the report tells the supervisor, as soon as it tells anything."""
    found = wait_report(node, lambda found: bool(found.mps), "what the daemon is to serve").mps
    assert found is not None
    return found


def start_with_a_pod_on_mps(node: Node, only: SimulatedGpu) -> tuple[Agent, PodStatus]:
    """The daemon serves the node's one GPU in four slices, and the agent knows that pod `train` holds one."""
    node.kubelet.start()
    node.write_policy(policy(mps(4)))
    serve(node, only)
    agent = node.start_agent()
    node.wait_listed(4, MPS)
    node.wait_unhealthy([], MPS)
    pod = node.kubelet.start_pod("train", {MPS: 1})
    agent.wait_log("default/train (main) holds")
    return agent, pod


def limits_mib(env: Mapping[str, str]) -> dict[str, int]:
    """What MPS would read from the variable. A byte count, or an entry without a device, is none."""
    entries = [re.fullmatch(r"([^=]+)=([0-9]+)M", entry) for entry in env[LIMIT].split(",")]
    return {entry[1]: int(entry[2]) for entry in entries if entry is not None}


def test_of_three_gpus_only_the_container_on_mps_meets_the_daemon(make_node: MakeNode) -> None:
    """P40: mount and variable for the first only; the directory is there, and any user may enter it."""
    first, second, third = gpu(0), gpu(1), gpu(2)
    node = make_node(first, second, third)
    node.kubelet.start()
    rules = mps(4, first), f"{{match: {{uuid: [{second.uuid}]}}, strategy: time-slicing, slices: 4}}"
    node.write_policy(policy(*rules, "{match: {}, strategy: exclusive}"))
    node.start_agent()
    node.wait_unhealthy(clients(first, 4, 20480), MPS)
    serve(node, first)
    node.wait_unhealthy([], MPS)
    on_mps = node.kubelet.start_pod("mps", {MPS: 1})
    given = on_mps.container().given
    assert given is not None
    (mount,) = [one for one in given.mounts if "mps" in one.container_path]
    pipe = node.root / "state/mps" / folder_name(MPS) / "pipe"
    assert (mount.container_path, mount.host_path) == (on_mps.env()[DIRECTORY], str(pipe))
    assert pipe.stat().st_mode & 0o777 == 0o755
    for name in (GPU, WHOLE):
        other = node.kubelet.start_pod(name, {name: 1})
        given = other.container().given
        assert given is not None
        assert [one for one in given.mounts if "mps" in one.container_path] == []
        assert not any(variable.startswith("CUDA_MPS") for variable in other.env())


def test_only_the_gpus_of_the_rule_are_the_daemon_s_and_each_has_its_own_limit(make_node: MakeNode) -> None:
    """P21: 24, 24, 80 and 80 GB, MPS for the last two. What the daemon is told is by UUID; so are the variables."""
    small, large = [gpu(n, memory_mib=24576) for n in (0, 1)], [gpu(n, memory_mib=81920) for n in (2, 3)]
    node = make_node(*small, *large)
    node.kubelet.start()
    node.write_policy(policy(mps(4, *large), "{match: {}, strategy: exclusive}"))
    serve(node, *large)
    node.start_agent()
    node.wait_listed(8, MPS)
    node.wait_unhealthy([], MPS)
    (wanted,) = wanted_of(node)
    assert wanted.slices == {one.uuid: tuple(clients(one, 4, 20480)) for one in large}
    with node.plugin(MPS) as plugin:
        (given,) = plugin.allocate([clients(large[1], 4, 20480)[2]])
    assert limits_mib(given.envs) == {large[1].uuid: 20480}


@pytest.mark.parametrize(("count", "memory_mib", "limit"), [(48, 81920, 1706), (4, 24576, 6144), (4, 49152, 12288)])
def test_a_limit_is_whole_mib_rounded_down_for_each_gpu(
    make_node: MakeNode, count: int, memory_mib: int, limit: int
) -> None:
    """P22: shares sum up to no more than the GPU, and the words are those that MPS understands."""
    only = gpu(0, memory_mib=memory_mib)
    node = make_node(only)
    node.kubelet.start()
    node.write_policy(policy(mps(count).replace("memory: {", f"memory: {{limit: {limit}Mi, ")))
    serve(node, only)
    node.start_agent()
    node.wait_listed(count, MPS)
    node.wait_unhealthy([], MPS)
    pod = node.kubelet.start_pod("one", {MPS: 1})
    assert limits_mib(pod.env()) == {only.uuid: limit}
    assert limit * count <= memory_mib


def test_a_gpu_that_is_too_old_for_mps_is_refused_and_offered_again_by_a_policy_without_it(make_node: MakeNode) -> None:
    """P24: capability 6.1 beside 7.5. Compute modes are the supervisor's; it is told of the second GPU alone."""
    old, new = gpu(0, compute_capability=(6, 1)), gpu(1, compute_capability=(7, 5))
    node = make_node(old, new)
    node.kubelet.start()
    node.write_policy(policy(mps(4)))
    serve(node, new)
    agent = node.start_agent()
    agent.wait_log(f"{old.uuid}, offers nothing: MPS needs compute capability 7.0, and this GPU has 6.1")
    node.wait_listed(4, MPS)
    (wanted,) = wanted_of(node)
    assert list(wanted.slices) == [new.uuid]
    node.write_policy(policy())
    node.wait(lambda: len(node.lists()) > 0 and len(node.ids()) >= 4, "time slices of the old GPU")
    assert set(slices(old, 4, 20480)) <= set(node.ids())


def test_a_container_on_mps_is_called_held_when_its_process_is_the_daemon_s_client(make_node: MakeNode) -> None:
    only = gpu(0)
    node = make_node(only)
    _, pod = start_with_a_pod_on_mps(node, only)
    serve(node, only)
    write_process(node.root / "proc", PID, node.cgroups.path(pod.uid, "main"), "python")
    node.gpus.put(replace(only, processes=(SimulatedProcess(pid=PID, used_bytes=2**30, kind="mps"),)))
    found = wait_report(node, lambda one: any(h.held_by == "mps" for h in one.status.holders), "held by mps")
    assert [(one.pod, one.held_by) for one in found.status.holders] == [("train", "mps")]


def test_a_daemon_that_crashes_takes_free_slices_along_and_leaves_the_held_one(make_node: MakeNode) -> None:
    """DESIGN §3's health rule, over an agent that starts again in the middle."""
    only = gpu(0)
    node = make_node(only)
    agent, pod = start_with_a_pod_on_mps(node, only)
    serve(node, only, problem="nvidia-cuda-mps-control was killed by SIGSEGV; it is started again")
    free = set(clients(only, 4, 20480)) - set(pod.ids(MPS))
    node.wait_unhealthy(free, MPS)
    agent.kill()
    serve(node, only, problem="nvidia-cuda-mps-control was killed by SIGSEGV; it is started again")
    node.start_agent()
    node.kubelet.wait_registered(MPS, 2)
    node.wait_unhealthy(free, MPS)
    assert pod.ids(MPS)[0] in node.lists(MPS)[-1].healthy_ids
