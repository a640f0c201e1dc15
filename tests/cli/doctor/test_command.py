"""`sharer doctor` on a node with its agent, on one with nothing, and beside an API server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sharer.adapters.kube.calls import Call
from sharer.adapters.kube.client import KubeClient
from sharer.adapters.kube.survey import ask_rights
from sharer.adapters.kube.timings import KubeTimings
from sharer.cli.doctor.node_survey import as_seen_here, rights_of
from sharer.core.doctor.survey import Right
from sharer.settings import Settings, read_settings
from sharer.simulation.apiserver import DAEMON_SET, GPU_NODE, NODE, POLICY_BINDING, RUNTIME_CLASS, node_object
from tests.cli.running import run
from tests.deploy.chart import objects, of_kind
from tests.deploy.crd import gpu_node_crd
from tests.deploy.granted import granted
from tests.e2e.api import CONFIG_MAP_NAME, NAMESPACE, Api, open_api
from tests.e2e.gpus import A, B
from tests.e2e.node import Node, open_node

TOOLKIT = """
accept-nvidia-visible-devices-envvar-when-unprivileged = false
[nvidia-container-runtime]
mode = "cdi"
"""


@pytest.fixture
def node() -> Iterator[Node]:
    with open_node(A, B) as made:
        made.kubelet.start()
        yield made


@pytest.fixture
def api(node: Node) -> Iterator[Api]:
    with open_api(node.root, node.kubelet.settings.node_name) as made:
        yield made


def install(node: Node) -> None:
    """What a well installed node has besides its driver's library."""
    proc = node.root / "proc"
    (proc / "driver/nvidia").mkdir(parents=True, exist_ok=True)
    (proc / "driver/nvidia/version").write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\nGCC version: 12\n"
    )
    (node.root / "etc/nvidia-container-runtime").mkdir(parents=True)
    (node.root / "etc/nvidia-container-runtime/config.toml").write_text(TOOLKIT)
    cgroups = node.root / "sys/fs/cgroup"
    (cgroups / "cgroup.controllers").write_text("cpu memory dmem\n")
    (cgroups / "kubepods/cgroup.subtree_control").write_text("cpu memory dmem\n")
    node.write_driver_spec((A, B))


def doctor(node: Node, *flags: str, variables: Sequence[tuple[str, str]] = ()) -> tuple[int, dict[str, Any]]:
    """Exit status and checks by name, as JSON tells them; with the flags that the node's agent is given."""
    root = node.root
    agent = {
        "node-name": node.kubelet.settings.node_name,
        "device-plugin-dir": node.directory,
        "pod-resources-socket": node.kubelet.podresources_socket,
        "run-dir": node.run_dir,
        "host-root": root,
        "proc-root": root / "proc",
        "sys-root": root / "sys",
        "cgroup-root": root / "sys/fs/cgroup",
        "driver-library": node.gpus.path,
    }
    flags = (*(f"--{name}={value}" for name, value in agent.items()), *flags)
    environment = {name: value for name, value in os.environ.items() if name not in ("KUBECONFIG", "HOME")}
    done = subprocess.run(
        [sys.executable, "-m", "sharer", "doctor", "--node", "-o", "json", *flags],
        capture_output=True, text=True, check=False, timeout=60, env={**environment, **dict(variables)},
    )  # fmt: skip
    assert done.stderr == ""
    document = json.loads(done.stdout)
    assert (document["kind"], document["node"]) == ("Doctor", node.kubelet.settings.node_name)
    return done.returncode, {check["name"]: check for check in document["checks"]}


def test_a_well_installed_node_with_its_agent_is_fine(node: Node) -> None:
    install(node)
    node.start_agent(injection="auto")
    node.wait_listed(8)
    status, checks = doctor(node, "--kubernetes=off")
    assert [(name, one["found"]) for name, one in checks.items() if one["level"] in ("fail", "unknown")] == []
    assert status == 0
    assert checks["NVIDIA driver"]["found"] == "580.95.05"
    assert checks["CDI specs"]["level"] == "ok"
    assert checks["slices"]["found"] == "8 × nvidia.com/gpu.shared, 8 free"
    assert checks["source checkpoint"]["level"] == "ok"


def test_a_node_with_nothing_says_what_is_missing_and_what_to_do_for_all_of_it_at_once(node: Node) -> None:
    node.kubelet.kill()
    status, checks = doctor(node, f"--driver-library={node.root}/none.so")
    assert status == 1
    failed = {name for name, one in checks.items() if one["level"] == "fail"}
    assert failed == {"NVIDIA driver", "NVML", "kubelet's plugin socket", "kubelet's pod resources", "agent"}
    assert all(one["cure"] for one in checks.values() if one["level"] in ("warn", "fail"))
    assert checks["RBAC"]["level"] == "unknown"


def test_another_plugin_and_its_socket_are_seen_where_the_kubelet_remembers_them(node: Node) -> None:
    """P11: the preflight."""
    (node.directory / "nvidia-gpu.sock").touch()
    _, checks = doctor(node)
    assert "nvidia-gpu.sock" in checks["other plugins for these GPUs"]["found"]


def test_a_spec_that_the_agent_would_not_use_is_not_called_right(node: Node) -> None:
    """After the GPUs were numbered anew."""
    install(node)
    node.write_driver_spec((replace(A, minor_number=B.minor_number), B))
    _, checks = doctor(node)
    assert checks["CDI specs"]["level"] == "fail"
    assert f"1 of 2: the CDI spec of nvidia.com/gpu={A.uuid} is out of date" in checks["CDI specs"]["found"]


def test_device_nodes_that_systemd_would_take_from_containers_are_named(node: Node) -> None:
    """Reported of NVIDIA's toolkit for years: after a systemctl daemon-reload containers had no GPU any more."""
    install(node)
    assert doctor(node)[1]["device nodes by number"]["level"] == "ok"
    (node.root / "sys/fs/cgroup/kubepods.slice").mkdir()
    said = doctor(node)[1]["device nodes by number"]
    assert said["level"] == "warn"
    assert "nvidia-uvm, nvidia-uvm-tools, nvidia0, nvidia1, nvidiactl" in said["found"]
    number = os.stat(node.root / "dev/nvidia0").st_rdev  # all of them are links to one device
    (node.root / "dev/char").mkdir()
    (node.root / f"dev/char/{os.major(number)}:{os.minor(number)}").symlink_to("../nvidia0")
    assert doctor(node)[1]["device nodes by number"]["level"] == "ok"


def test_it_changes_nothing(node: Node) -> None:
    install(node)

    def everything() -> set[tuple[str, int]]:
        # A file "node" is the simulated driver's own, which counts the questions.
        files = (path for path in node.root.rglob("*") if not path.is_symlink() and path.name != "node")
        return {(str(path), path.stat().st_mtime_ns) for path in files}

    before = everything()
    doctor(node)
    assert everything() ^ before == set()


def of_cluster(api: Api) -> tuple[int, dict[str, Any]]:
    ran = run("doctor", "-o", "json", "--kubeconfig", api.only_pods.partition("=")[2])
    document = ran.document()
    assert document["node"] is None
    return ran.status, {check["name"]: check for check in document["checks"]}


def put_gpu_node(api: Api) -> None:
    labels = {"nvidia.com/gpu.present": "true"}
    api.server.put(NODE, node_object(api.node_name, uid="node-uid", labels=labels))


def test_without_a_node_the_cluster_is_looked_at(api: Api) -> None:
    """P37: a node with GPUs and without an agent."""
    put_gpu_node(api)
    status, checks = of_cluster(api)
    assert checks["API server"]["level"] == "ok"
    assert checks["GPU nodes without an agent"]["found"] == f"1: {api.node_name}"
    assert checks["agent DaemonSet"]["found"] == "there is none"
    assert checks["admission policies"]["level"] == checks["RuntimeClass"]["level"] == "warn"
    assert status == 1


def test_what_the_chart_installs_is_fine_once_its_pods_are_ready(api: Api) -> None:
    api.server.define(gpu_node_crd())
    put_gpu_node(api)
    api.server.put(GPU_NODE, {"metadata": {"name": api.node_name}})
    api.server.put(RUNTIME_CLASS, {"metadata": {"name": "nvidia"}, "handler": "nvidia"})
    chart = objects(of="full")
    for binding in of_kind("ValidatingAdmissionPolicyBinding", chart):
        api.server.put(POLICY_BINDING, binding)

    def with_ready(pods: int) -> dict[str, Any]:
        for workload in of_kind("DaemonSet", chart):
            status = {"desiredNumberScheduled": 1, "numberReady": pods}
            api.server.put(DAEMON_SET, {**workload, "status": status})
        return of_cluster(api)[1]

    assert with_ready(0)["agent DaemonSet"]["level"] == "fail"
    checks = with_ready(1)
    assert checks["agent DaemonSet"]["level"] == "ok", checks["agent DaemonSet"]
    assert checks["admission policies"]["found"] == "requests: Deny, workloads: Warn, bypass: Deny, agents: Deny"
    assert checks["API server"]["found"].endswith("answers, version v1.36.2")
    assert {one["level"] for one in checks.values()} <= {"ok", "unknown"}


def test_an_installation_that_only_warns_is_told_so(api: Api) -> None:
    for binding in of_kind("ValidatingAdmissionPolicyBinding", objects()):
        api.server.put(POLICY_BINDING, binding)
    _, checks = of_cluster(api)
    assert checks["admission policies"]["level"] == "warn"
    assert "bypass: Warn" in checks["admission policies"]["found"]


def test_rights_are_those_that_the_api_server_grants(node: Node, api: Api) -> None:
    """P36: a missing right is told with the rule that grants it, before anything has failed."""
    api.server.grant(granted({}))
    settings = (f"--policy-configmap={NAMESPACE}/{CONFIG_MAP_NAME}", f"--namespace={NAMESPACE}")

    def rights() -> dict[str, dict[str, Any]]:
        _, checks = doctor(node, f"--kubeconfig={api.only_pods.partition('=')[2]}", *settings)
        return {name: one for name, one in checks.items() if name.startswith("RBAC")}

    assert {one["level"] for one in rights().values()} == {"ok"}
    evictions = rights()["RBAC: evictions, where a policy says onExceed: evict"]
    assert "is not allowed, and needed for nothing else" in evictions["found"]
    api.server.forbid("patch", "gpunodes/status")
    assert rights()["RBAC: GpuNode"] == {
        "name": "RBAC: GpuNode", "level": "warn", "found": "patch gpunodes/status.sharer.dev is not allowed",
        "cure": 'grant {apiGroups: ["sharer.dev"], resources: [gpunodes/status], verbs: [patch]}',
    }  # fmt: skip


def test_where_the_host_s_tree_is_mounted_its_root_is_enough(tmp_path: Path) -> None:
    """`kubectl debug node/…` mounts it at /host; the agent's pod has its own mounts, and not the whole tree."""
    for folder in ("var/lib/kubelet/device-plugins", "run/sharer", "sys/fs/cgroup", "dev"):
        (tmp_path / folder).mkdir(parents=True)
    seen = as_seen_here(read_settings([f"--host-root={tmp_path}", "--dev-root=/own"], {}))
    assert seen.device_plugin_dir == tmp_path / "var/lib/kubelet/device-plugins"
    assert (seen.run_dir, seen.cgroup_root) == (tmp_path / "run/sharer", tmp_path / "sys/fs/cgroup")
    assert seen.dev_root == Path("/own")
    assert seen.pod_resources_socket == Settings(node_name="", policy=None).pod_resources_socket, "it is not there"
    assert as_seen_here(read_settings([], {})).run_dir == Path("/run/sharer")


def test_a_toolkit_that_cannot_be_seen_is_not_said_to_be_missing(node: Node) -> None:
    """The agent's pod is not shown the host's /etc."""
    install(node)
    (node.root / "etc/nvidia-container-runtime/config.toml").unlink()
    _, checks = doctor(node)
    assert checks["NVIDIA container toolkit"]["level"] == "unknown"
    assert "kubectl debug node/" in checks["NVIDIA container toolkit"]["cure"]
    (node.root / "etc/os-release").write_text("NAME=x\n")
    _, checks = doctor(node)
    assert checks["NVIDIA container toolkit"]["level"] == "warn"


def test_what_may_not_be_read_is_unknown_and_names_the_rule(api: Api) -> None:
    api.server.forbid("list", "nodes")
    _, checks = of_cluster(api)
    assert checks["GPU nodes without an agent"]["level"] == "unknown"
    assert "resources: [nodes]" in checks["GPU nodes without an agent"]["found"]


def test_the_table_has_a_line_for_each_check_and_its_cure_below(api: Api) -> None:
    put_gpu_node(api)
    ran = run("doctor", "--kubeconfig", api.only_pods.partition("=")[2])
    lines = ran.out.splitlines()
    assert lines[0].startswith("ok       API server: ")
    [number] = [number for number, line in enumerate(lines) if line.startswith("warn     GPU nodes without an agent: ")]
    assert lines[number + 1].startswith("         what to do: ")
    assert lines[-1].startswith("the cluster: ")


def test_a_server_that_cannot_be_reached_is_said_once_and_not_asked_again(tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(
        "{apiVersion: v1, kind: Config, current-context: a, users: [{name: u, user: {}}],"
        " contexts: [{name: a, context: {cluster: c, user: u}}],"
        ' clusters: [{name: c, cluster: {server: "http://127.0.0.1:1"}}]}'
    )
    ran = run("doctor", "-o", "json", "--kubeconfig", kubeconfig)
    server, *others = ran.document()["checks"]
    assert (ran.status, server["level"], {one["level"] for one in others}) == (1, "fail", {"unknown"})
    assert server["found"] == (
        "the API server cannot be reached to list nodes in the whole cluster:"
        " port 1 of 127.0.0.1: Failed to establish a new connection: Connection refused"
    )
    assert {one["found"] for one in others} == {"not known, because the API server cannot be reached"}


def test_flags_of_an_agent_without_a_node_are_wrong_input() -> None:
    ran = run("doctor", "--host-root=/host")
    assert ran.status == 2
    assert "--host-root=/host: flags of the agent mean something only with --node" in ran.err


class Asked:
    """Stands in for the transport: notes what is asked, and allows what it is told to."""

    def __init__(self, *allowed: str) -> None:
        self.allowed = allowed
        self.spec: list[dict[str, str]] = []

    def send(self, call: Call) -> bytes:
        assert call.path == "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        assert call.body is not None
        spec: Any = call.body["spec"]
        attributes = spec["resourceAttributes"]
        self.spec.append(attributes)
        return msgspec.json.encode({"status": {"allowed": attributes["resource"] in self.allowed}})


def test_each_right_is_asked_for_as_the_agent_would_use_it() -> None:
    transport = Asked("pods")
    client = KubeClient(transport, KubeTimings())  # type: ignore[arg-type]  # as much of a transport as is used
    asked = ask_rights(
        client,
        [
            Right(verb="create", resource="pods/eviction"),
            Right(verb="list", resource="configmaps", namespace="gpu", name="policies"),
        ],
    )
    assert [one.allowed for one in asked] == [True, False]
    assert transport.spec == [
        {"verb": "create", "group": "", "resource": "pods", "subresource": "eviction"},
        {"verb": "list", "group": "", "resource": "configmaps", "namespace": "gpu", "name": "policies"},
    ]


def test_only_rights_that_these_settings_need_are_asked_for() -> None:
    def named(**settings: Any) -> set[tuple[str, str]]:
        made = Settings(node_name="n", policy=None, **settings)
        return {(one.verb, one.resource) for one in rights_of(made)}

    least = named(publish=False)
    assert least == {
        ("list", "pods"), ("watch", "pods"), ("list", "nodes"), ("watch", "nodes"), ("create", "events"),
        ("patch", "events"), ("create", "pods/eviction"),
    }  # fmt: skip
    assert named(publish=False, node_labels=True) - least == {("patch", "nodes")}
    assert named(publish=False, policy_configmap=("a", "b")) - least == {
        ("list", "configmaps"),
        ("watch", "configmaps"),
    }
    assert named(namespace="gpu") - least >= {("patch", "gpunodes/status"), ("patch", "leases")}
