"""What is wrong with a cluster is said with its cure."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sharer.core.doctor.checkup import Check, Level
from sharer.core.doctor.cluster_checks import ClusterSurvey, SeenDaemonSet, SeenNode, check_cluster, has_gpus

AGENT = SeenDaemonSet(
    namespace="gpu", name="sharer-agent", images=("ghcr.io/x/sharer:0.1@sha256:1",), wanted=2, ready=2
)
GOOD = ClusterSurvey(
    server="https://k",
    nodes=(
        SeenNode(name="gpu-1", has_gpus=True, kubelet_version="v1.34.1", has_agent=True),
        SeenNode(name="cpu-1", has_gpus=False, kubelet_version="v1.20.0", has_agent=False),
    ),
    daemon_sets=(AGENT,),
    runtime_classes=("nvidia",),
    has_crd=True,
    version="v1.36.2",
    admission={"requests": ("Deny", "Audit"), "workloads": ("Warn",), "bypass": ("Deny",), "agents": ("Deny",)},
)


def check(name: str, **changes: object) -> Check:
    survey = replace(GOOD, **changes)  # type: ignore[arg-type]  # of `ClusterSurvey`
    [found] = [one for one in check_cluster(survey) if one.name == name]
    return found


def test_a_good_cluster_is_ok_in_every_line() -> None:
    assert [one for one in check_cluster(GOOD) if one.level is not Level.OK] == []


@pytest.mark.parametrize(
    ("admission", "level", "found", "cure"),
    [
        (None, Level.UNKNOWN, "it was not asked for", ""),
        ({}, Level.WARN, "none of sharer's", "install them"),
        ({"requests": ("Deny",), "bypass": ("Warn", "Audit")}, Level.WARN, "bypass: Warn", "admission.bypass=Deny"),
        ({"bypass": ("Deny",)}, Level.WARN, "bypass: Deny", "admission.requests=Deny"),
        ({"bypass": ("Deny",), "requests": ("Deny", "Audit")}, Level.OK, "requests: Deny, bypass: Deny", ""),
    ],
)
def test_what_admission_policies_let_pass_is_said(
    admission: dict[str, tuple[str, ...]] | None, level: Level, found: str, cure: str
) -> None:
    one = check("admission policies", admission=admission)
    assert one.level is level
    assert found in one.found
    assert cure in (one.cure or "")


def test_a_server_older_than_the_chart_is_told() -> None:
    assert check("API server").found == "https://k answers, version v1.36.2"
    assert check("API server", version="v1.32.9+k3s1").level is Level.WARN
    assert check("API server", version=None).found == "https://k answers"


def test_gpu_nodes_without_an_agent_are_named_with_their_taints() -> None:
    """P37: 3 GPU nodes, 1 without the DaemonSet's pod."""
    nodes = (
        SeenNode(name="gpu-1", has_gpus=True, has_agent=True),
        SeenNode(name="gpu-2", has_gpus=True, has_agent=True),
        SeenNode(name="gpu-3", has_gpus=True, has_agent=False, taints=(("nvidia.com/gpu", "NoExecute"),)),
    )
    one = check("GPU nodes without an agent", nodes=nodes)
    assert (one.level, one.found) == (Level.WARN, "1: gpu-3; their taints: nvidia.com/gpu:NoExecute")
    assert "without a value" in str(one.cure)


@pytest.mark.parametrize(
    ("image", "whose"),
    [
        ("nvcr.io/nvidia/k8s-device-plugin:v0.17.1", "NVIDIA's device plugin"),
        ("nvcr.io/nvidia/k8s-dra-driver-gpu:v25.8.0", "NVIDIA's DRA driver"),
        ("projecthami/hami:v2.7.0", "HAMi"),
    ],
)
def test_other_plugins_are_known_by_their_images(image: str, whose: str) -> None:
    rival = SeenDaemonSet(namespace="x", name="y", images=(image,), wanted=3, ready=3)
    one = check("other plugins for GPUs", daemon_sets=(AGENT, rival))
    assert (one.level, one.found) == (Level.WARN, f"{whose}: x/y on 3 nodes")
    idle = replace(rival, wanted=0)
    assert check("other plugins for GPUs", daemon_sets=(AGENT, idle)).level is Level.OK


@pytest.mark.parametrize(
    ("name", "changes", "level", "found"),
    [
        ("GpuNode CRD", {"has_crd": False}, Level.WARN, "not installed"),
        ("RuntimeClass", {"runtime_classes": ("kata",)}, Level.WARN, "none called nvidia"),
        ("agent DaemonSet", {"daemon_sets": ()}, Level.FAIL, "there is none"),
        ("agent DaemonSet", {"daemon_sets": (replace(AGENT, ready=1),)}, Level.FAIL, "1 of 2 pods are ready"),
        (
            "kubelets of GPU nodes",
            {"nodes": (SeenNode(name="a", has_gpus=True, kubelet_version="v1.26.9"),)},
            Level.FAIL,
            "v1.26.9",
        ),
    ],
)
def test_what_is_wrong_is_said(name: str, changes: dict[str, object], level: Level, found: str) -> None:
    one = check(name, **changes)
    assert one.level is level
    assert found in one.found
    assert one.cure


def test_what_may_not_be_read_is_unknown_with_the_reason() -> None:
    survey = ClusterSurvey(has_crd=True, problems=(("nodes", "403 nodes"), ("daemon_sets", "403 daemonsets")))
    found = {one.name: one for one in check_cluster(survey)}
    assert (found["API server"].level, found["GpuNode CRD"].level) == (Level.OK, Level.OK)
    assert (found["agent DaemonSet"].level, found["agent DaemonSet"].found) == (Level.UNKNOWN, "403 daemonsets")
    assert found["GPU nodes without an agent"].found == "403 nodes"


def test_a_server_that_answers_nothing_is_a_failure() -> None:
    one = next(check_cluster(ClusterSurvey(problems=(("nodes", "connection refused"),))))
    assert (one.level, one.found) == (Level.FAIL, "connection refused")


def test_a_node_has_gpus_if_a_label_or_a_resource_says_so() -> None:
    assert has_gpus({"nvidia.com/gpu.present": "true"}, ())
    assert has_gpus({"feature.node.kubernetes.io/pci-10de.present": "true"}, ())
    assert has_gpus({}, ("cpu", "nvidia.com/gpu"))
    assert not has_gpus({"nvidia.com/gpu.present": "false", "sharer.dev/policy": "a"}, ("cpu",))


def test_a_node_that_is_to_be_left_alone_is_not_missed() -> None:
    """The chart's DaemonSets do not go there, by this label."""
    assert not has_gpus({"nvidia.com/gpu.present": "true", "sharer.dev/gpu": "false"}, ("nvidia.com/gpu",))
