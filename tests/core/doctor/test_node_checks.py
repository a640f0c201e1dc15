"""What is wrong with a node is said with its cure; what could not be seen is not called right."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sharer.core.change.rollout import PolicyInForce
from sharer.core.doctor.checkup import Check, Level, exit_status
from sharer.core.doctor.node_checks import check_node
from sharer.core.doctor.survey import NodeSurvey, Right, Toolkit
from sharer.core.holders.findings import Finding, FindingKind
from sharer.core.known import Known
from sharer.core.report.node import NodeReport, SourceReport
from tests.core.builders import gpu, gpu_uuid, node, policy, time_slicing
from tests.core.evidence import SHARED
from tests.core.nodes import known, report

FOUR = policy(time_slicing(4))
TOOLKIT = Toolkit(path="/etc/nvidia-container-runtime/config.toml", unprivileged_envvar=False)


def good_report(what: Known | None = None) -> NodeReport:
    what = what or known(node(gpu(0)), FOUR, policy=PolicyInForce(policy=FOUR))
    sources = (SourceReport(name="list", read_at="then", age_s=2.0, problem=None),)
    return replace(report(what), sources=sources)


GOOD = NodeSurvey(
    inventory=node(gpu(0)),
    module_version="580.95.05",
    toolkit=TOOLKIT,
    cdi_problems={gpu_uuid(0): None},
    cdi_dirs=("/etc/cdi",),
    unlinked_nodes=(),
    cgroup="v2",
    kernel="6.14.0",
    controllers=frozenset({"dmem", "memory"}),
    pod_controllers=frozenset({"dmem", "memory"}),
    kubelet_version="v1.34.2",
    mps_processes=(),
    rights=(Right(verb="list", resource="pods", purpose="which pods have ended", allowed=True),),
    report=good_report(),
)


def check(name: str, **changes: object) -> Check:
    """The one check of this name on a node that is good but for these changes."""
    survey = replace(GOOD, **changes)  # type: ignore[arg-type]  # of `NodeSurvey`
    [found] = [one for one in check_node(survey) if one.name == name]
    return found


def test_a_good_node_is_ok_in_every_line() -> None:
    checks = tuple(check_node(GOOD))
    assert [one for one in checks if one.level is not Level.OK] == []
    assert exit_status(checks) == 0


@pytest.mark.parametrize(
    ("injection", "accepts", "level"),
    [
        ("volume-mounts,device-nodes", False, Level.WARN),
        ("volume-mounts,device-nodes", True, Level.OK),
        ("cdi,volume-mounts", False, Level.OK),
        ("envvar", False, Level.OK),
        (None, False, Level.OK),
    ],
)
def test_mounts_that_name_gpus_need_a_toolkit_that_takes_them(
    injection: str | None, accepts: bool, level: Level
) -> None:
    """By itself the toolkit does not, and its containers would start without libraries, or without their GPU."""
    at = good_report()
    at = replace(at, status=replace(at.status, node=replace(at.status.node, injection=injection)))
    one = check("NVIDIA container toolkit", report=at, toolkit=replace(TOOLKIT, volume_mounts=accepts))
    assert one.level is level
    assert ("accept-nvidia-visible-devices-as-volume-mounts = true" in (one.cure or "")) is (level is Level.WARN)


def test_a_node_of_which_nothing_was_seen_has_no_line_that_is_wrongly_fine() -> None:
    fine = {one.name for one in check_node(NodeSurvey()) if one.level is Level.OK}
    # Those three are told by problems, and none was met.
    assert fine - {"kubelet's plugin socket", "kubelet's pod resources", "kubelet's checkpoint"} == {
        "other plugins for these GPUs",
        "MPS",
    }


@pytest.mark.parametrize(
    ("name", "changes", "level", "found", "cure"),
    [
        ("NVIDIA driver", {"module_version": None}, "fail", "not loaded", "modprobe"),
        ("NVIDIA driver", {"module_version": "570.1"}, "fail", "570.1 and the library 580.95.05", "reboot"),
        ("NVML", {"inventory": None, "driver_problem": "it hangs. Reset it"}, "fail", "it hangs", "Reset it"),
        ("NVML", {"inventory": node(gpu(0, lost="gone"))}, "fail", gpu_uuid(0), "dmesg"),
        ("NVML", {"inventory": node()}, "warn", "no GPU", "run no agent"),
        ("NVIDIA container toolkit", {"toolkit": None}, "warn", "no configuration", "device-nodes"),
        ("NVIDIA container toolkit", {"toolkit_problem": "line 3"}, "unknown", "line 3", None),
        (
            "NVIDIA container toolkit",
            {"toolkit": None, "sees_host_etc": False},
            "unknown",
            "not mounted here",
            "kubectl debug node/",
        ),
        ("CDI specs", {"cdi_problems": {gpu_uuid(0): "no spec"}}, "warn", "no spec", "nvidia-ctk"),
        ("CDI specs", {"cdi_problems": {"GPU-a": "no spec", "GPU-b": None}}, "fail", "1 of 2: no spec", "nvidia-ctk"),
        (
            "device nodes by number",
            {"unlinked_nodes": ("nvidia0", "nvidiactl")},
            "warn",
            "to nvidia0, nvidiactl: a systemctl daemon-reload may take them",
            "create-dev-char-symlinks",
        ),
        ("cgroups", {"cgroup": "hybrid"}, "warn", "hybrid", "unified_cgroup_hierarchy"),
        ("cgroups", {"cgroup": None}, "unknown", "cannot be read", "--cgroup-root"),
        ("device memory controller", {"controllers": frozenset({"memory"})}, "warn", "no dmem", "6.14"),
        ("device memory controller", {"pod_controllers": frozenset({"memory"})}, "warn", "not enabled", "+dmem"),
        ("kubelet's plugin socket", {"kubelet_problem": "nobody listens"}, "fail", "nobody", "same path"),
        ("kubelet's plugin socket", {"plugin_dir_problem": "cannot be written"}, "fail", "written", "uid 0"),
        ("kubelet's pod resources", {"list_problem": "no socket"}, "fail", "no socket", "--pod-resources-socket"),
        ("kubelet's checkpoint", {"checkpoint_problem": "damaged"}, "fail", "damaged", "--checkpoint"),
        ("kubelet's version", {"kubelet_version": "v1.26.1"}, "fail", "v1.26.1", "1.27"),
        ("kubelet's version", {"kubelet_version": "v1.30.4-gke.1"}, "warn", "v1.30.4", "1.33"),
        ("kubelet's version", {"kubelet_version": None}, "unknown", "API server", None),
        (
            "other plugins for these GPUs",
            {"rival_sockets": ("nvidia-gpu.sock",)},
            "warn",
            "nvidia-gpu.sock",
            "withheld",
        ),
        ("other plugins for these GPUs", {"dra_drivers": ("gpu.nvidia.com",)}, "warn", "DRA driver", "take the other"),
        ("MPS", {"mps_processes": (71,)}, "warn", "71", "stop them"),
        ("agent", {"report": None, "report_problem": "no socket"}, "fail", "no socket", "as root"),
        ("slices", {"report": None}, "unknown", "no agent", None),
    ],
)
def test_what_is_wrong_is_said_with_its_cure(
    name: str, changes: dict[str, object], level: str, found: str, cure: str | None
) -> None:
    one = check(name, **changes)
    assert one.level == level
    assert found in one.found
    assert (one.cure is None) == (cure is None)
    assert cure is None or cure in str(one.cure)


def test_a_resource_of_another_plugin_on_our_gpus_is_a_rival_and_our_own_is_not() -> None:
    """P11: the kubelet tells nobody that a second plugin offers the same GPU."""
    registered = {SHARED: (f"{gpu_uuid(0)}::ts-0-20480",), "nvidia.com/gpu": (gpu_uuid(0),), "x.y/nic": ("eth0",)}
    one = check("other plugins for these GPUs", registered=registered)
    assert (one.level, one.found) == (Level.WARN, "offers nvidia.com/gpu")


def test_containers_that_need_not_ask_are_warned_of_with_the_line_to_write() -> None:
    one = check("NVIDIA_VISIBLE_DEVICES of pods that ask for nothing", toolkit=Toolkit(path="/etc/x.toml"))
    assert one.level is Level.WARN
    assert "accept-nvidia-visible-devices-envvar-when-unprivileged = false in /etc/x.toml" in str(one.cure)


def test_an_agent_without_a_policy_or_with_a_refused_one_says_why() -> None:
    none = known(node(gpu(0)), FOUR, policy=PolicyInForce(refused="p.yaml:1: no"))
    refused = known(node(gpu(0)), FOUR, policy=PolicyInForce(policy=FOUR, refused="p.yaml:1: no"))
    assert check("agent", report=good_report(none)).level is Level.FAIL
    assert check("agent", report=good_report(refused)).level is Level.WARN
    assert "p.yaml:1: no" in check("agent", report=good_report(refused)).found


def test_slices_of_faulty_gpus_and_findings_are_said() -> None:
    sick = check("slices", report=good_report(known(node(gpu(0)), FOUR, faults={gpu_uuid(0): "XID 79"})))
    assert sick.level is Level.FAIL
    assert "XID 79" in sick.found
    leaked = Finding(kind=FindingKind.LEAKED, message="process 7 is left", cure="end it")
    found = check("slices", report=replace(good_report(), findings=(leaked, leaked)))
    assert (found.level, found.cure) == (Level.WARN, "end it")
    assert found.found == "process 7 is left (and 1 more in sharer report)"


@pytest.mark.parametrize(
    ("source", "level"),
    [
        (SourceReport(name="pods", read_at="t", age_s=3.0, problem=None), Level.OK),
        (SourceReport(name="pods", read_at="t", age_s=300.0, problem=None), Level.WARN),
        (SourceReport(name="pods", read_at="t", age_s=3.0, problem="403"), Level.WARN),
        (SourceReport(name="pods", read_at=None, age_s=None, problem=None), Level.UNKNOWN),
    ],
)
def test_the_age_of_each_source_is_a_line(source: SourceReport, level: Level) -> None:
    assert check("source pods", report=replace(good_report(), sources=(source,))).level is level


def test_each_missing_right_is_a_line_with_the_rule_that_grants_it() -> None:
    """P36"""
    right = Right(verb="patch", resource="gpunodes/status", group="sharer.dev", purpose="GpuNode", allowed=False)
    one = check("RBAC: GpuNode", rights=(right,))
    assert one.level is Level.WARN
    assert one.found == "patch gpunodes/status.sharer.dev is not allowed"
    assert one.cure == 'grant {apiGroups: ["sharer.dev"], resources: [gpunodes/status], verbs: [patch]}'


def test_a_node_that_uses_no_api_server_is_not_asked_what_only_that_knows() -> None:
    names = [one.name for one in check_node(replace(GOOD, rights=(), kubelet_version=None))]
    assert not any(name.startswith(("RBAC", "kubelet's version")) for name in names)


def test_only_failures_and_gaps_make_an_exit_status() -> None:
    def status(*levels: Level) -> int:
        return exit_status(tuple(Check(name="x", level=level, found="y") for level in levels))

    assert status() == status(Level.OK, Level.WARN) == 0
    assert status(Level.OK, Level.UNKNOWN) == 3
    assert status(Level.UNKNOWN, Level.FAIL) == 1
