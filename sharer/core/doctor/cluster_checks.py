"""What may be wrong with a cluster, each from what the API server tells. Nothing is asked here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sharer.core.cluster.facts import is_telling
from sharer.core.doctor.checkup import OLDEST_KUBELET, Check, fail, ok, unknown, version_of, warn
from sharer.core.values import dataclass

OLDEST_SERVER = (1, 33)  # of which the chart's objects are known to be taken
POLICIES = ("requests", "workloads", "bypass", "agents")  # the chart's admission policies
RUNTIME_CLASS = "nvidia"
LEFT_ALONE = "sharer.dev/gpu", "false"  # the label of a Node that the chart's DaemonSets keep off
_MANY = 5  # nodes that are named in a line
_RIVALS = {
    "k8s-device-plugin": "NVIDIA's device plugin",
    "k8s-dra-driver": "NVIDIA's DRA driver",
    "dra-driver": "NVIDIA's DRA driver",
    "volcano-vgpu-device-plugin": "Volcano's vGPU plugin",
    "hami": "HAMi",
    "nvidia-gpu-device-plugin": "GKE's plugin",
}
"""Part of an image's name -> whose plugin offers the GPUs too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenNode:
    """A Node, as far as it matters whether an agent can and does run there."""

    name: str
    has_gpus: bool  # a label says so, or it has an extended resource of GPUs
    taints: tuple[tuple[str, str], ...] = ()  # key and effect
    kubelet_version: str = ""
    has_agent: bool | None = None  # a GpuNode of this name; None: they could not be listed


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenDaemonSet:
    """A DaemonSet."""

    namespace: str
    name: str
    images: tuple[str, ...]
    wanted: int  # pods
    ready: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSurvey:
    """What the API server tells. None: it could not be read, with the reason in `problems` by the same name.

    "server" in `problems` is why the server could not be reached at all.
    """

    server: str = "the API server"  # its address
    nodes: tuple[SeenNode, ...] | None = None
    daemon_sets: tuple[SeenDaemonSet, ...] | None = None
    runtime_classes: tuple[str, ...] | None = None
    has_crd: bool | None = None
    version: str | None = None  # of the server: "v1.36.2"
    admission: Mapping[str, tuple[str, ...]] | None = None  # one of POLICIES -> its actions: Deny, Warn, Audit
    problems: tuple[tuple[str, str], ...] = ()

    def problem(self, what: str) -> str:
        """Why it could not be read."""
        return dict(self.problems).get(what, "it was not asked for")


def has_gpus(labels: dict[str, str], resources: tuple[str, ...]) -> bool:
    """Whether a Node says that it has NVIDIA GPUs, and not that they are none of our business."""
    if labels.get(LEFT_ALONE[0]) == LEFT_ALONE[1]:
        return False
    told = any(
        is_telling(key) and not key.startswith("sharer.dev/") and value != "false" for key, value in labels.items()
    )
    return told or any(resource.startswith("nvidia.com/") for resource in resources)


def policy_of(name: str) -> str | None:
    """Which of ours an admission policy is; None: none of ours.

    >>> policy_of("bypass.sharer.sharer.dev"), policy_of("bypass.example.com")
    ('bypass', None)
    """
    which, _, rest = name.partition(".")
    return which if which in POLICIES and rest.endswith(".sharer.dev") else None


def check_cluster(survey: ClusterSurvey) -> Iterator[Check]:
    """Every check of the cluster."""
    yield _server(survey)
    yield _crd(survey)
    yield _admission(survey)
    yield _runtime_class(survey)
    yield _agents(survey)
    yield _uncovered(survey)
    yield _rivals(survey)
    yield _kubelets(survey)


def _server(survey: ClusterSurvey) -> Check:
    name = "API server"
    if all(seen is None for seen in (survey.nodes, survey.daemon_sets, survey.runtime_classes, survey.has_crd)):
        why = dict(survey.problems).get("server", survey.problem("nodes"))
        return fail(name, why, "check the kubeconfig, its rights, and the network to the server")
    version = version_of(survey.version)
    if version is not None and version < OLDEST_SERVER:
        return warn(
            name, f"{survey.server} answers, version {survey.version}", "the chart is made for 1.33 and newer: upgrade"
            " the cluster",
        )  # fmt: skip
    return ok(name, f"{survey.server} answers" + (f", version {survey.version}" if survey.version else ""))


def _crd(survey: ClusterSurvey) -> Check:
    name = "GpuNode CRD"
    if survey.has_crd is None:
        return unknown(name, survey.problem("has_crd"))
    if not survey.has_crd:
        return warn(name, "is not installed", "install it (the chart brings it): without, nothing is told of the nodes")
    return ok(name, "is installed")


def _admission(survey: ClusterSurvey) -> Check:
    name = "admission policies"
    if survey.admission is None:
        return unknown(name, survey.problem("admission"))
    if not survey.admission:
        return warn(
            name, "there are none of sharer's", "install them (admission in the chart's values): without, a pod can"
            " take GPUs that it did not ask for, and more slices than request.max",
        )  # fmt: skip
    shown = {which: "Deny" if "Deny" in actions else "Warn" for which, actions in survey.admission.items()}
    told = ", ".join(f"{which}: {shown[which]}" for which in POLICIES if which in shown)
    if "requests" not in shown:
        return warn(name, told, "set admission.requests=Deny: without, a pod can ask for more slices than request.max")
    if shown.get("bypass") != "Deny":
        return warn(
            name, f"{told}; a pod that takes a GPU without asking for one is not refused", "when nobody is warned any"
            " more, set admission.bypass=Deny",
        )  # fmt: skip
    return ok(name, told)


def _runtime_class(survey: ClusterSurvey) -> Check:
    name = "RuntimeClass"
    if survey.runtime_classes is None:
        return unknown(name, survey.problem("runtime_classes"))
    if RUNTIME_CLASS in survey.runtime_classes:
        return ok(name, RUNTIME_CLASS)
    return warn(
        name, "there is none called nvidia", "the agent's pods need it with the chart's default driver.access; the GPU"
        " Operator makes one (not with its NRI plugin: driver.access=nri), k3s too. Where nvidia is the default"
        ' runtime, set driver.runtimeClassName=""',
    )  # fmt: skip


def _agents(survey: ClusterSurvey) -> Check:
    name = "agent DaemonSet"
    if survey.daemon_sets is None:
        return unknown(name, survey.problem("daemon_sets"))
    ours = [one for one in survey.daemon_sets if any(_image(image).startswith("sharer") for image in one.images)]
    if not ours:
        return fail(name, "there is none", "install sharer, or look into the namespace where it was to be")
    short = [one for one in ours if one.ready < one.wanted]
    if short:
        told = ", ".join(f"{one.namespace}/{one.name}: {one.ready} of {one.wanted} pods are ready" for one in short)
        return fail(name, told, "kubectl describe and logs of the pods that are not; /readyz says why")
    return ok(name, ", ".join(f"{one.namespace}/{one.name}, {one.ready} pods" for one in ours))


def _uncovered(survey: ClusterSurvey) -> Check:
    """GPU nodes without an agent (bug case P37): a DaemonSet that wants no pod there says nothing."""
    name = "GPU nodes without an agent"
    if survey.nodes is None:
        return unknown(name, survey.problem("nodes"))
    bare = [node for node in survey.nodes if node.has_gpus and node.has_agent is False]
    if any(node.has_agent is None for node in survey.nodes if node.has_gpus):
        return unknown(name, survey.problem("gpu_nodes"))
    if not bare:
        return ok(name, f"none of {sum(node.has_gpus for node in survey.nodes)}")
    taints = sorted({f"{key}:{effect}" for node in bare for key, effect in node.taints})
    tainted = f"; their taints: {', '.join(taints)}" if taints else ""
    shown = ", ".join(node.name for node in bare[:_MANY]) + (", …" if len(bare) > _MANY else "")
    return warn(
        name, f"{len(bare)}: {shown}{tainted}", "check the DaemonSet's nodeSelector, affinity and tolerations (tolerate"
        " by key, without a value); where that is as it should be, label the node sharer.dev/gpu=false",
    )  # fmt: skip


def _rivals(survey: ClusterSurvey) -> Check:
    name = "other plugins for GPUs"
    if survey.daemon_sets is None:
        return unknown(name, survey.problem("daemon_sets"))
    found = []
    for one in survey.daemon_sets:
        whose = next(
            (whose for part, whose in _RIVALS.items() if any(part in _image(image) for image in one.images)), None
        )
        if whose is not None and one.wanted > 0:
            found.append(f"{whose}: {one.namespace}/{one.name} on {one.wanted} nodes")
    if not found:
        return ok(name, "none was seen")
    return warn(
        name, "; ".join(found), "keep them off sharer's nodes (GPU Operator: devicePlugin.enabled=false, or the label"
        " nvidia.com/gpu.deploy.device-plugin=false): a GPU that two plugins offer is counted twice",
    )  # fmt: skip


def _kubelets(survey: ClusterSurvey) -> Check:
    name = "kubelets of GPU nodes"
    if survey.nodes is None:
        return unknown(name, survey.problem("nodes"))
    versions = sorted({node.kubelet_version for node in survey.nodes if node.has_gpus and node.kubelet_version})
    old = [one for one in versions if (version_of(one) or OLDEST_KUBELET) < OLDEST_KUBELET]
    if old:
        return fail(name, ", ".join(old), "pod resources are served from 1.27 on; upgrade these nodes")
    return ok(name, ", ".join(versions)) if versions else unknown(name, "no node says that it has GPUs")


def _image(image: str) -> str:
    """An image's own name: without registry, path, tag and digest."""
    return image.rsplit("/", 1)[-1].partition("@")[0].partition(":")[0]
