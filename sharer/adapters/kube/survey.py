"""What `sharer doctor` asks of the API server: what else is in the cluster, and what we may do there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import msgspec

from sharer.adapters.kube.calls import GPU_NODES, JSON, NODES, Call, Resource
from sharer.adapters.kube.client import KubeClient, pages_of
from sharer.adapters.kube.errors import ApiError
from sharer.adapters.kube.wire import Bare, ObjectMeta, Page, Read
from sharer.core.doctor.cluster_checks import ClusterSurvey, SeenDaemonSet, SeenNode, has_gpus, policy_of
from sharer.core.doctor.survey import Right
from sharer.core.holders.observations import ApiTroubleKind
from sharer.core.values import replace

DAEMON_SETS = Resource(group="apps", version="v1", plural="daemonsets", kind="DaemonSet", namespaced=True)
RUNTIME_CLASSES = Resource(
    group="node.k8s.io", version="v1", plural="runtimeclasses", kind="RuntimeClass", namespaced=False
)
REVIEWS = Resource(
    group="authorization.k8s.io",
    version="v1",
    plural="selfsubjectaccessreviews",
    kind="SelfSubjectAccessReview",
    namespaced=False,
)
BINDINGS = Resource(
    group="admissionregistration.k8s.io",
    version="v1",
    plural="validatingadmissionpolicybindings",
    kind="ValidatingAdmissionPolicyBinding",
    namespaced=False,
)
VERSION = Resource(group="", version="", plural="version", kind="Info", namespaced=False)
PAGE = 500  # objects

W = TypeVar("W")
T = TypeVar("T")


class Taint(Read, frozen=True):
    """Of a Node."""

    key: str
    effect: str = ""


class NodeSpec(Read, frozen=True):
    """Of a Node."""

    taints: list[Taint] | None = None


class NodeInfo(Read, frozen=True):
    """Of a Node."""

    kubelet_version: str = ""


class NodeStatus(Read, frozen=True):
    """Of a Node."""

    node_info: NodeInfo = NodeInfo()
    capacity: dict[str, str] | None = None


class Node(Read, frozen=True):
    """A Node, as far as it tells of GPUs and of who may run there."""

    metadata: ObjectMeta
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class Container(Read, frozen=True):
    """Of a pod's template."""

    image: str = ""


class TemplateSpec(Read, frozen=True):
    """Of a pod's template."""

    containers: list[Container] | None = None


class Template(Read, frozen=True):
    """Of a DaemonSet's pods."""

    spec: TemplateSpec = TemplateSpec()


class DaemonSetSpec(Read, frozen=True):
    """Of a DaemonSet."""

    template: Template = Template()


class DaemonSetStatus(Read, frozen=True):
    """Of a DaemonSet."""

    desired_number_scheduled: int = 0
    number_ready: int = 0


class DaemonSet(Read, frozen=True):
    """A DaemonSet, as far as it tells whose it is and how it is."""

    metadata: ObjectMeta
    spec: DaemonSetSpec = DaemonSetSpec()
    status: DaemonSetStatus = DaemonSetStatus()


class BindingSpec(Read, frozen=True):
    """Of a ValidatingAdmissionPolicyBinding."""

    policy_name: str = ""
    validation_actions: list[str] | None = None


class Binding(Read, frozen=True):
    """A ValidatingAdmissionPolicyBinding, as far as it tells what a policy does."""

    metadata: ObjectMeta
    spec: BindingSpec = BindingSpec()


class Info(Read, frozen=True):
    """The API server's version."""

    git_version: str = ""


class ReviewStatus(Read, frozen=True):
    """The answer to "may I?"."""

    allowed: bool = False


class Review(Read, frozen=True):
    """A SelfSubjectAccessReview."""

    status: ReviewStatus = ReviewStatus()


def survey_cluster(client: KubeClient) -> ClusterSurvey:
    """Everything that can be read: what cannot be is None, with the reason.

    A server that gives no answer to the first question is asked no other; "server" is then why. Raises ApiError if its
    address cannot be read.
    """
    problems: list[tuple[str, str]] = []
    away = False

    def read(what: str, question: Callable[[], T]) -> T | None:
        nonlocal away
        if not away:
            try:
                return question()
            except ApiError as error:
                away = what == "nodes" and error.kind is ApiTroubleKind.UNREACHABLE
                problems.append(("server" if away else what, str(error)))
        if away:
            problems.append((what, "not known, because the API server cannot be reached"))
        return None

    seen = read("nodes", lambda: tuple(_nodes(client)))
    agents = read("gpu_nodes", lambda: _gpu_nodes(client))
    has_crd = read("has_crd", lambda: _has_crd(client))
    return ClusterSurvey(
        server=client.server(),
        version=read("version", lambda: _version(client)),
        nodes=None
        if seen is None
        else tuple(replace(node, has_agent=None if agents is None else node.name in agents) for node in seen),
        daemon_sets=read("daemon_sets", lambda: tuple(_daemon_sets(client))),
        runtime_classes=read("runtime_classes", lambda: tuple(_runtime_classes(client))),
        has_crd=has_crd,
        admission=read("admission", lambda: dict(_admission(client))),
        problems=tuple(problems),
    )


def kubelet_version(client: KubeClient, node_name: str) -> str | None:
    """What this Node's kubelet says of itself; None: there is no such Node. Raises ApiError."""
    call = Call(verb="list", resource=NODES, query={"fieldSelector": f"metadata.name={node_name}"})
    return next((node.status.node_info.kubelet_version or None for node in _list(client, call, Page[Node])), None)


def ask_rights(client: KubeClient, rights: Iterable[Right]) -> tuple[Right, ...]:
    """The rights, each with whether this client has it. Raises ApiError if that cannot be asked at all."""
    return tuple(replace(right, allowed=_may(client, right)) for right in rights)


def _may(client: KubeClient, right: Right) -> bool:
    resource, _, subresource = right.resource.partition("/")
    attributes = {"verb": right.verb, "group": right.group, "resource": resource}
    if subresource:
        attributes["subresource"] = subresource
    if right.namespace is not None:
        attributes["namespace"] = right.namespace
    if right.name is not None:
        attributes["name"] = right.name
    body = {"apiVersion": REVIEWS.api_version, "kind": REVIEWS.kind, "spec": {"resourceAttributes": attributes}}
    call = Call(verb="create", resource=REVIEWS, content_type=JSON, body=body)
    return client.ask(call, msgspec.json.Decoder(Review)).status.allowed


def _gpu_nodes(client: KubeClient) -> set[str]:
    """The names of all GpuNodes; none where that kind does not exist."""
    try:
        return {one.metadata.name for one in _list(client, Call(verb="list", resource=GPU_NODES), Page[Bare])}
    except ApiError as error:
        if error.code == 404:
            return set()
        raise


def _has_crd(client: KubeClient) -> bool:
    try:
        client.page(Call(verb="list", resource=GPU_NODES), msgspec.json.Decoder(Page[Bare]), limit=1)
    except ApiError as error:
        if error.code == 404:
            return False
        raise
    return True


def _version(client: KubeClient) -> str:
    return client.ask(Call(verb="get", resource=VERSION, document="/version"), msgspec.json.Decoder(Info)).git_version


def _admission(client: KubeClient) -> Iterator[tuple[str, tuple[str, ...]]]:
    """What is done about what breaks one of our policies, by the policy."""
    for one in _list(client, Call(verb="list", resource=BINDINGS), Page[Binding]):
        policy = policy_of(one.spec.policy_name)
        if policy is not None:
            yield policy, tuple(one.spec.validation_actions or ())


def _nodes(client: KubeClient) -> Iterator[SeenNode]:
    for node in _list(client, Call(verb="list", resource=NODES), Page[Node]):
        labels = node.metadata.labels or {}
        yield SeenNode(
            name=node.metadata.name,
            has_gpus=has_gpus(labels, tuple(node.status.capacity or ())),
            taints=tuple((taint.key, taint.effect) for taint in node.spec.taints or ()),
            kubelet_version=node.status.node_info.kubelet_version,
        )


def _daemon_sets(client: KubeClient) -> Iterator[SeenDaemonSet]:
    for one in _list(client, Call(verb="list", resource=DAEMON_SETS), Page[DaemonSet]):
        yield SeenDaemonSet(
            namespace=one.metadata.namespace,
            name=one.metadata.name,
            images=tuple(container.image for container in one.spec.template.spec.containers or ()),
            wanted=one.status.desired_number_scheduled,
            ready=one.status.number_ready,
        )


def _runtime_classes(client: KubeClient) -> Iterator[str]:
    return (one.metadata.name for one in _list(client, Call(verb="list", resource=RUNTIME_CLASSES), Page[Bare]))


def _list(client: KubeClient, call: Call, page: type[Page[W]]) -> Iterator[W]:
    decoder = msgspec.json.Decoder(page)
    for found in pages_of(lambda token: client.page(call, decoder, limit=PAGE, token=token)):
        yield from found.items or ()
