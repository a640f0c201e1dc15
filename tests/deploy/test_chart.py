"""What the chart makes, and what it refuses to make."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from sharer.adapters.nvml.driver import OPEN_DEADLINE_S
from sharer.cli.mps import mps as mps_command
from sharer.core.tell.ready import ALIVE_S
from tests.deploy.chart import (
    CHART,
    PROFILES,
    RELEASE,
    agent,
    main_container,
    named,
    objects,
    of_kind,
    pod_spec,
    profile,
    run,
    settings_of,
)
from tests.deploy.manifests import COPIES, differences
from tests.deploy.taints import tolerates
from tests.tasks import ROOT

# ---- helm's own opinion


def test_the_chart_installs_the_version_of_this_tree() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert chart["version"] == chart["appVersion"] == project["version"]


@pytest.mark.parametrize("name", PROFILES)
def test_helm_finds_nothing_wrong(name: str) -> None:
    done = run("lint", "--strict", CHART, "-f", profile(name))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stdout


@pytest.mark.parametrize("name", PROFILES)
def test_the_manifests_are_what_the_chart_renders(name: str) -> None:
    assert [line for line in differences() if name in line] == []


def test_the_chart_s_copies_are_the_originals() -> None:
    assert [line for line in differences() if any(copy.name in line for copy in COPIES)] == []


def test_no_two_workloads_select_the_same_pods() -> None:
    """P06: two DaemonSets of one chart fought over pods, and the MPS one never started."""
    found = of_kind("DaemonSet", objects(of="full"))
    assert len(found) == 2
    for one, other in combinations(found, 2):
        selected = other["spec"]["template"]["metadata"]["labels"]
        assert not one["spec"]["selector"]["matchLabels"].items() <= selected.items()
    for one in found:
        assert one["spec"]["selector"]["matchLabels"].items() <= one["spec"]["template"]["metadata"]["labels"].items()


def test_a_selector_is_the_same_in_every_version_since_it_cannot_be_changed() -> None:
    """Neighbour of P06: an upgrade that renders fine and that the API server refuses."""
    for one in of_kind("DaemonSet", objects(of="full")):
        keys = set(one["spec"]["selector"]["matchLabels"])
        assert keys == {f"app.kubernetes.io/{word}" for word in ("name", "instance", "component")}


# ---- the agent


@pytest.mark.parametrize("name", PROFILES)
def test_the_agent_understands_the_settings_that_it_is_given(name: str) -> None:
    """Exit status 2 in a CrashLoopBackOff is what a setting costs that another version of the agent had."""
    settings = settings_of(agent(of=name))
    assert settings.state_dir == Path("/var/lib/sharer")
    assert (settings.policy_configmap is None) == (name == "minimal")
    assert settings.kubernetes == ("off" if name == "minimal" else "auto")
    assert settings.publish is (name != "minimal")
    assert settings.node_labels is (name == "full")
    assert settings.http == ("", 9465)


def test_settings_are_variables_so_that_commands_in_the_container_know_them_too() -> None:
    """`kubectl exec … -- sharer doctor --node` would otherwise look at other folders than the agent."""
    values = {"extraArgs": ["--gds"], "host": {"runDir": "/data/r"}, "distribution": "talos"}
    container = main_container(agent(values))
    assert container["args"] == ["agent", "--gds"]
    names = {one["name"] for one in container["env"]}
    assert {f"SHARER_AGENT_{name}" for name in ("HOST_ROOT", "RUN_DIR", "CDI_DIR", "INJECTION", "KUBERNETES")} <= names
    assert settings_of(agent(values)).gds


def test_every_path_that_a_setting_names_is_a_mount() -> None:
    for values in ({}, {"distribution": "talos"}, {"host": {"stateDir": "/data/s", "runDir": "/data/r"}}):
        mounts = {Path(one["mountPath"]) for one in main_container(agent(values))["volumeMounts"]}
        found = settings_of(agent(values))
        assert found.cdi_dir
        assert found.policy
        assert {found.run_dir, found.state_dir, found.dev_root, found.policy, found.device_plugin_dir} <= mounts
        assert {found.cgroup_root, found.pod_resources_socket.parent, *found.cdi_dir} <= mounts
        assert all(path.is_relative_to(found.host_root) for path in found.cdi_dir)


@pytest.mark.parametrize(("folders", "seen"), [([], ["/etc/cdi", "/var/run/cdi"]), (["/a"], ["/a"])])
def test_the_last_folder_of_cdi_specs_is_the_one_that_is_written(folders: list[str], seen: list[str]) -> None:
    mounts = main_container(agent({"host": {"cdiDirs": folders}}))["volumeMounts"]
    cdi = [one for one in mounts if one["name"].startswith("cdi-")]
    assert [one["mountPath"] for one in cdi] == [f"/host{folder}" for folder in seen]
    assert [one.get("readOnly", False) for one in cdi] == [True] * (len(seen) - 1) + [False]


def test_at_most_one_agent_is_on_a_node_also_during_an_update() -> None:
    """P11: whichever of two goes first takes the resource with it."""
    strategy = agent()["spec"]["updateStrategy"]
    assert strategy == {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0}}


def test_the_agent_is_among_the_last_that_a_node_gives_up() -> None:
    """Pitfall 40: after five minutes without it no container of a GPU pod can be restarted."""
    assert all(pod_spec(agent(of=of))["priorityClassName"] == "system-node-critical" for of in PROFILES)


def test_the_mps_daemon_is_never_restarted_by_an_upgrade() -> None:
    mps = named("DaemonSet", f"{RELEASE}-mps", objects(of="full"))
    assert mps["spec"]["updateStrategy"] == {"type": "OnDelete"}
    assert pod_spec(mps)["hostPID"] is True
    assert main_container(mps)["args"][0] == "mps"


def test_the_mps_supervisor_understands_the_flags_that_it_is_given() -> None:
    command, *flags = main_container(named("DaemonSet", f"{RELEASE}-mps", objects(of="full")))["args"]
    context = mps_command.make_context(command, flags)
    assert context.params["mps_dir"] == Path("/var/lib/sharer/mps")


def test_agent_and_mps_daemon_speak_of_the_same_directories() -> None:
    found = objects({"host": {"stateDir": "/data/s", "runDir": "/data/r"}}, of="full")
    mps = named("DaemonSet", f"{RELEASE}-mps", found)
    assert {"--run-dir=/data/r", "--mps-dir=/data/s/mps"} <= set(main_container(mps)["args"])
    settings = settings_of(named("DaemonSet", f"{RELEASE}-agent", found))
    assert (settings.run_dir, settings.mps_dir) == (Path("/data/r"), Path("/data/s/mps"))


def test_probes_ask_whether_it_is_registered_and_whether_it_is_alive() -> None:
    container = main_container(agent())
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "http"}
    assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "http"}
    without = main_container(agent({"http": {"port": 0}}))
    assert not {"startupProbe", "readinessProbe", "livenessProbe", "ports"} & without.keys()
    assert settings_of(agent({"http": {"port": 0}})).http is None


def test_an_agent_that_is_slow_is_not_killed_while_nvml_opens() -> None:
    """The port opens after the first look at the driver, and NVML may take 90 s to open on a large node."""
    probe = main_container(agent())["startupProbe"]
    assert probe["httpGet"]["path"] == "/healthz"
    assert probe["periodSeconds"] * probe["failureThreshold"] >= ALIVE_S > OPEN_DEADLINE_S


def test_an_agent_that_does_not_go_round_is_replaced_before_the_kubelet_forgets_its_devices() -> None:
    """The kubelet keeps a resource without its plugin for five minutes (pitfall 40)."""
    probe = main_container(agent())["livenessProbe"]
    assert ALIVE_S + probe["periodSeconds"] * (probe["failureThreshold"] + 1) < 300


@pytest.mark.parametrize(
    "taint",
    [
        {"key": "nvidia.com/gpu", "value": "true", "effect": "NoSchedule"},
        {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"},
        {"key": "nvidia.com/gpu", "value": "", "effect": "NoSchedule"},
        {"key": "nvidia.com/gpu", "value": "true", "effect": "NoExecute"},
    ],
    ids=str,
)
def test_the_usual_taint_of_gpu_pools_is_tolerated_whatever_its_value(taint: Mapping[str, str]) -> None:
    """P37: a toleration by value left pools without a plugin, and nobody was told."""
    for workload in of_kind("DaemonSet", objects(of="full")):
        assert any(tolerates(one, taint) for one in pod_spec(workload)["tolerations"])


def test_tolerations_that_are_added_do_not_take_the_usual_one_away() -> None:
    """Neighbour of P37: Helm replaces lists. Whoever adds the taint of one pool would lose the agents of all others."""
    added = {"key": "sku", "operator": "Equal", "value": "gpu", "effect": "NoSchedule"}
    for workload in of_kind("DaemonSet", objects({"tolerations": [added]}, of="full")):
        tolerations = pod_spec(workload)["tolerations"]
        for taint in (
            {"key": "nvidia.com/gpu", "value": "present", "effect": "NoExecute"},
            {"key": "sku", "value": "gpu", "effect": "NoSchedule"},
        ):
            assert any(tolerates(one, taint) for one in tolerations)


def test_a_null_is_no_further_toleration() -> None:
    """Helm's own way to take a default back; a chart that falls over it shows a line of its templates."""
    for workload in of_kind("DaemonSet", objects({"tolerations": None}, of="full")):
        assert pod_spec(workload)["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists"}]


@pytest.mark.parametrize(
    "labels",
    [
        {"sharer.dev/gpu": "true"},
        {"nvidia.com/gpu.present": "true"},
        {"feature.node.kubernetes.io/pci-10de.present": "true"},
        {"cloud.google.com/gke-accelerator": "nvidia-l4"},
    ],
    ids=str,
)
def test_no_labeller_in_particular_is_needed(labels: Mapping[str, str]) -> None:
    """P37: dependence on one labeller that had the same fault."""
    terms = pod_spec(agent())["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert any(all(matches(one, labels) for one in term["matchExpressions"]) for term in terms["nodeSelectorTerms"])


@pytest.mark.parametrize("values", [{}, {"nodes": "all"}, {"affinity": {"podAffinity": {}}}], ids=str)
def test_a_node_that_is_to_be_left_alone_is_left_alone_whatever_else_its_labels_say(
    values: Mapping[str, object],
) -> None:
    """P11: where NVIDIA's own plugin stays, no other may come. Neighbour of P37: labels of a labeller come back."""
    for workload in of_kind("DaemonSet", objects(values, of="full")):
        terms = pod_spec(workload)["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]

        def goes_to(labels: Mapping[str, str], chosen: Any = terms) -> bool:
            return any(
                all(matches(one, labels) for one in term["matchExpressions"]) for term in chosen["nodeSelectorTerms"]
            )

        assert goes_to({"nvidia.com/gpu.present": "true"})
        assert goes_to({}) is bool(values)
        assert not goes_to({"nvidia.com/gpu.present": "true", "sharer.dev/gpu": "false"})


def matches(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """As the scheduler decides it."""
    value = labels.get(expression["key"])
    if expression["operator"] == "NotIn":
        return value not in expression["values"]
    return value is not None and (expression["operator"] == "Exists" or value in expression["values"])


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"nodes": "all"},
        {"affinity": {"podAffinity": {}}},
        {
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [
                            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]},
                            {"matchExpressions": [{"key": "pool", "operator": "Exists"}]},
                        ]
                    }
                }
            }
        },
    ],
    ids=str,
)
def test_the_mps_daemon_leaves_a_node_whose_driver_is_worked_on(values: Mapping[str, object]) -> None:
    """Its daemons use the driver; a pod of a DaemonSet that is only deleted comes back at once."""

    def terms(component: str) -> list[dict[str, Any]]:
        spec = pod_spec(named("DaemonSet", f"{RELEASE}-{component}", objects(values, of="full")))
        required = (
            spec.get("affinity", {}).get("nodeAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution", {})
        )
        found: list[dict[str, Any]] = required.get("nodeSelectorTerms", [])
        return found

    added = [
        {
            "key": f"nvidia.com/gpu.deploy.{what}",
            "operator": "NotIn",
            "values": ["paused-for-driver-upgrade", "paused-for-mig-change", "paused-for-vgpu-change"],
        }
        for what in ("client", "device-plugin", "gpu-feature-discovery")
    ]
    assert terms("mps") == [
        {**term, "matchExpressions": [*term["matchExpressions"], *added]} for term in terms("agent")
    ]


def test_an_agent_without_the_api_has_no_token() -> None:
    assert pod_spec(agent(of="minimal"))["automountServiceAccountToken"] is False
    assert pod_spec(agent())["automountServiceAccountToken"] is True


def test_a_policy_that_is_followed_in_the_api_may_be_missing_at_the_start_of_the_pod() -> None:
    def is_optional(values: Mapping[str, object], of: str) -> object:
        (volume,) = [one for one in pod_spec(agent(values, of=of))["volumes"] if one["name"] == "policies"]
        return volume["configMap"]["optional"]

    assert is_optional({}, "standard") is True
    assert is_optional({}, "minimal") is False


@pytest.mark.parametrize("distribution", ["generic", "k3s", "rke2", "k0s", "microk8s", "talos", "bottlerocket"])
def test_the_registration_socket_is_where_every_kubelet_has_it(distribution: str) -> None:
    """Pitfalls 45 and 46: a directory, at the same path; it follows no --root-dir (kubelet-contract §1)."""
    values = {"distribution": distribution, "driver": {"access": "volume-mounts"}}
    volumes = pod_spec(agent(values))["volumes"]
    (plugins,) = [one["hostPath"] for one in volumes if one["name"] == "device-plugins"]
    assert plugins == {"path": "/var/lib/kubelet/device-plugins", "type": "Directory"}
