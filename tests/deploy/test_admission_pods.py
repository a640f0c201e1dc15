"""What the admission policies say of pods. The real server's part in it is measured in api-server-facts §1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.deploy.cel import Refused, judge
from tests.deploy.chart import Object, named, objects

SHARED = "nvidia.com/gpu.shared"
USER = {"username": "somebody", "groups": ["system:authenticated"]}
KUBELET = {"username": "system:node:n1", "groups": ["system:nodes", "system:authenticated"]}


def policy(name: str) -> Object:
    return named("ValidatingAdmissionPolicy", f"{name}.sharer.sharer.dev", objects(of="full"))


def container(name: str = "main", limits: Mapping[str, object] | None = None, **fields: object) -> dict[str, object]:
    return {"name": name, **({"resources": {"limits": limits}} if limits is not None else {}), **fields}


def pod(*containers: dict[str, object], **spec: object) -> dict[str, Any]:
    return {"kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": list(containers), **spec}}


def env(*names: str) -> list[dict[str, str]]:
    return [{"name": name, "value": "x"} for name in names]


def created(new: Object, *, by: str = "requests", user: Object = USER) -> list[Refused] | None:
    group, resource = {"Pod": ("", "pods"), "CronJob": ("batch", "cronjobs")}.get(new["kind"], ("apps", "deployments"))
    request = {
        "operation": "CREATE",
        "resource": {"group": group, "version": "v1", "resource": resource},
        "userInfo": user,
    }
    return judge(policy(by), request=request, new=new)


def refused(new: Object, by: str = "requests") -> str:
    """The message of the one rule that it breaks."""
    found = created(new, by=by)
    assert found is not None
    (one,) = found
    assert one.reason == "Forbidden", "so that the API server answers 403"
    assert one.message.startswith("sharer: ")
    return one.message


# ---- pods that ask for slices


@pytest.mark.parametrize(
    "limits",
    [
        {},
        {SHARED: 1},
        {SHARED: "1"},
        {SHARED: "0", "nvidia.com/gpu.mps": 1},
        {"cpu": "2", "memory": "1Gi", SHARED: "1"},
    ],
    ids=str,
)
def test_an_ordinary_request_passes(limits: dict[str, object]) -> None:
    assert created(pod(container(limits=limits, env=env("MODEL", "CUDA_VISIBLE_DEVICES")))) == []


@pytest.mark.parametrize("amount", [2, "2", "1k", "1000"])
def test_more_slices_than_request_max_are_refused_however_they_are_written(amount: object) -> None:
    """Threat 5."""
    assert "at most 1 of nvidia.com/gpu.shared" in refused(pod(container(limits={SHARED: amount})))


def test_init_containers_are_held_to_the_same() -> None:
    new = pod(container(), initContainers=[container("init", limits={SHARED: "2"})])
    assert "more slices" in refused(new)


def test_two_shared_resources_in_one_container_are_refused_and_in_two_containers_they_are_not() -> None:
    """The kubelet keeps one of two values for a variable, at random."""
    both = {SHARED: "1", "nvidia.com/gpu.mps": "1"}
    assert "two shared resources" in refused(pod(container(limits=both)))
    assert created(pod(container("a", limits={SHARED: "1"}), container("b", limits={"nvidia.com/gpu.mps": "1"}))) == []


def test_two_shared_resources_are_allowed_where_every_gpu_comes_by_cdi() -> None:
    made = objects({"injection": {"ways": "cdi"}}, of="full")
    rules = named("ValidatingAdmissionPolicy", "requests.sharer.sharer.dev", made)["spec"]["validations"]
    assert not any("two shared" in rule.get("message", "") for rule in rules)


def test_env_from_is_refused_only_beside_a_slice() -> None:
    """Threat 3. CEL does not see what is in a ConfigMap or Secret."""
    source = [{"configMapRef": {"name": "settings"}}]
    assert "envFrom" in refused(pod(container(limits={SHARED: "1"}, envFrom=source)))
    assert created(pod(container("a", limits={SHARED: "1"}, envFrom=[]), container("b", envFrom=source))) == []


@pytest.mark.parametrize(
    "variable",
    [
        "NVIDIA_VISIBLE_DEVICES", "NVIDIA_GPU_MEMORY_LIMIT", "NVIDIA_GPU_MEMORY_REQUEST", "CUDA_MPS_PIPE_DIRECTORY",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_DISABLE_CONTROL",
        "SHARER_MEMORY_LIMIT_BYTES",
    ],
)  # fmt: skip
def test_a_container_with_a_slice_sets_none_of_the_plugin_s_variables(variable: str) -> None:
    """Threat 3."""
    new = pod(container("a", limits={SHARED: "1"}, env=env("OTHER", variable)), container("b", limits={SHARED: "1"}))
    assert "container a asks for a GPU slice and sets a variable" in refused(new)


def test_pods_without_slices_are_no_business_of_that_policy() -> None:
    new = pod(container(env=env("NVIDIA_VISIBLE_DEVICES"), envFrom=[{"secretRef": {"name": "s"}}]))
    assert created(new) == []


def test_the_kubelet_s_mirror_pods_pass_since_the_static_pod_runs_anyway() -> None:
    assert created(pod(container(limits={SHARED: "9"})), user=KUBELET) is None
    assert created(pod(container(env=env("NVIDIA_VISIBLE_DEVICES"))), by="bypass", user=KUBELET) is None


# ---- pods that take a GPU without asking


@pytest.mark.parametrize("where", ["containers", "initContainers"])
def test_no_container_may_take_gpus_by_variable(where: str) -> None:
    """Threat 2."""
    taker = container("taker", env=env("NVIDIA_VISIBLE_DEVICES"))
    new = pod(taker) if where == "containers" else pod(container(), initContainers=[taker])
    assert "container taker sets a variable" in refused(new, "bypass")


def test_the_nvidia_runtime_class_goes_with_a_gpu() -> None:
    """Threat 2."""
    assert "runtimeClassName nvidia without" in refused(pod(container(), runtimeClassName="nvidia"), "bypass")
    for limits in ({SHARED: "1"}, {"nvidia.com/gpu": "1"}, {"nvidia.com/mig-1g.10gb": "1"}):
        assert created(pod(container(limits=limits), runtimeClassName="nvidia"), by="bypass") == []
    assert created(pod(container(), runtimeClassName="nvidia", resourceClaims=[{"name": "gpu"}]), by="bypass") == []
    assert created(pod(container(), runtimeClassName="kata"), by="bypass") == []


@pytest.mark.parametrize("name", ["nvidia", "nvidia-cdi", "nvidia-legacy"])
def test_every_runtime_class_of_the_toolkit_counts_and_the_one_that_agents_use(name: str) -> None:
    assert f"runtimeClassName {name} without" in refused(pod(container(), runtimeClassName=name), "bypass")
    made = objects({"driver": {"runtimeClassName": "gpu.v2"}}, of="full")
    rules = named("ValidatingAdmissionPolicy", "bypass.sharer.sharer.dev", made)
    request = {"operation": "CREATE", "resource": {"group": "", "version": "v1", "resource": "pods"}, "userInfo": USER}

    def said(runtime_class: str) -> list[Refused] | None:
        return judge(rules, request=request, new=pod(container(), runtimeClassName=runtime_class))

    assert said("gpu.v2")
    assert said(name)
    assert said("gpuxv2") == []


def annotated(new: dict[str, Any], **annotations: str) -> dict[str, Any]:
    named_as = {"nri": "nvidia.cdi.k8s.io/container.main", "cdi": "cdi.k8s.io/any", "bare": "nvidia.cdi.k8s.io"}
    found = {named_as.get(key, key): value for key, value in annotations.items()}
    return {**new, "metadata": {**new["metadata"], "annotations": found}}


@pytest.mark.parametrize("key", ["nri", "cdi", "bare"])
@pytest.mark.parametrize("limits", [None, {SHARED: "1"}])
def test_no_pod_names_devices_by_annotation(key: str, limits: dict[str, object] | None) -> None:
    """GPU Operator's NRI plugin gives them to pods of every namespace (container toolkit, "Support for NRI")."""
    new = annotated(pod(container(limits=limits)), other="x", **{key: "nvidia.com/gpu=all"})
    assert "names devices by CDI" in refused(new, "bypass")


def updated(old: Object, new: Object) -> list[Refused] | None:
    request = {"operation": "UPDATE", "resource": {"group": "", "version": "v1", "resource": "pods"}, "userInfo": USER}
    return judge(policy("bypass"), request=request, new=new, old=old)


def test_a_pod_that_waits_is_not_given_such_an_annotation_later() -> None:
    """Its sandbox is made after it was scheduled; a scheduling gate gives all the time in the world."""
    waiting = annotated(pod(container()), other="x")
    assert updated(waiting, annotated(waiting, nri="nvidia.com/gpu=all"))
    assert updated(annotated(waiting, nri="nvidia.com/gpu=0"), annotated(waiting, nri="nvidia.com/gpu=all"))
    assert updated(waiting, annotated(waiting, other="y")) == []
    assert updated(annotated(waiting, nri="nvidia.com/gpu=0"), waiting) == []


def test_a_pod_that_breaks_every_rule_already_can_still_be_changed_and_end() -> None:
    """Refused updates keep a pod from losing its finalizers, and so its namespace from ending (api-server-facts §1)."""
    bad = annotated(
        pod(container(limits={SHARED: "9"}, env=env("NVIDIA_VISIBLE_DEVICES")), runtimeClassName="nvidia-cdi"),
        nri="nvidia.com/gpu=all",
    )
    bad["spec"]["ephemeralContainers"] = [container("debug", env=env("NVIDIA_VISIBLE_DEVICES"))]
    assert updated({**bad, "metadata": {**bad["metadata"], "finalizers": ["a"]}}, bad) == []


def debugged(old: Object, new: Object) -> list[Refused] | None:
    request = {
        "operation": "UPDATE",
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "subResource": "ephemeralcontainers",
        "userInfo": USER,
    }
    return judge(policy("bypass"), request=request, new=new, old=old)


def test_an_ephemeral_container_may_take_no_gpu_either() -> None:
    """Threat 2."""
    old = pod(container())
    found = debugged(old, pod(container(), ephemeralContainers=[container("debug", env=env("NVIDIA_VISIBLE_DEVICES"))]))
    assert found is not None
    assert ["container debug sets" in one.message for one in found] == [True]


def test_a_pod_that_broke_the_rule_before_can_still_be_debugged() -> None:
    """Only what this request adds is judged, or the pods in the way could not even be looked at."""
    before = pod(container(env=env("NVIDIA_VISIBLE_DEVICES")), runtimeClassName="nvidia")
    first = container("first", env=env("CUDA_MPS_PIPE_DIRECTORY"))
    old = {**before, "spec": {**before["spec"], "ephemeralContainers": [first]}}
    new = {**before, "spec": {**before["spec"], "ephemeralContainers": [first, container("second")]}}
    assert debugged(before, {**before, "spec": {**before["spec"], "ephemeralContainers": [container("plain")]}}) == []
    assert debugged(old, new) == []


def test_what_a_pod_asks_for_is_not_judged_again_when_it_is_updated() -> None:
    """A running pod that breaks a rule could not lose its finalizer (api-server-facts §1)."""
    request = {"operation": "UPDATE", "resource": {"group": "", "version": "v1", "resource": "pods"}, "userInfo": USER}
    bad = pod(container(limits={SHARED: "9"}, env=env("NVIDIA_VISIBLE_DEVICES")))
    assert judge(policy("requests"), request=request, new=bad, old=bad) is None


# ---- what makes pods


def test_a_deployment_is_warned_of_what_its_pods_would_be_refused_for() -> None:
    template = {"spec": pod(container(limits={SHARED: "2"}))["spec"]}
    assert "more slices" in refused({"kind": "Deployment", "spec": {"template": template}}, "workloads")


def test_a_cron_job_s_pods_are_found_where_it_keeps_them() -> None:
    template = {"spec": pod(container(limits={SHARED: "2"}))["spec"]}
    cron = {"kind": "CronJob", "spec": {"jobTemplate": {"spec": {"template": template}}}}
    assert "more slices" in refused(cron, "workloads")


def test_warnings_about_workloads_never_refuse_them() -> None:
    made = objects(of="full")
    binding = named("ValidatingAdmissionPolicyBinding", "workloads.sharer.sharer.dev", made)
    assert binding["spec"]["validationActions"] == ["Warn"]
    assert policy("workloads")["spec"]["failurePolicy"] == "Ignore"


# ---- whom the policies leave alone


@pytest.mark.parametrize("name", ["requests", "workloads", "bypass"])
def test_namespaces_are_left_alone_by_label_by_list_and_if_they_are_ours(name: str) -> None:
    made = objects({"admission": {"exemptNamespaces": ["gpu-operator"]}}, of="full")
    binding = named("ValidatingAdmissionPolicyBinding", f"{name}.sharer.sharer.dev", made)
    assert binding["spec"]["matchResources"]["namespaceSelector"]["matchExpressions"] == [
        {"key": "sharer.dev/admission", "operator": "NotIn", "values": ["exempt"]},
        {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["gpu-operator", "sharer"]},
    ]


def test_no_policy_hangs_on_an_object_that_could_be_deleted() -> None:
    """Threat 12. Without a ConfigMap of parameters every pod would be refused, or the policy be switched off."""
    for name in ("requests", "workloads", "bypass", "agents"):
        assert "paramKind" not in policy(name)["spec"]
