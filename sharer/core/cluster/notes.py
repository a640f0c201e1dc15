"""What must not disappear in a fleet's counts, each named with its node.

* *not-ready*, *cordoned*, *gone*, *agent-silent*: what is free there is not free for anybody.
* *no-resource*: its labels say that a node has GPUs, and it offers none (bug case P37); or its agent has slices, and
  the Node lists none of them, so the scheduler sends no pod.
* *draining*, *quarantined*, *waiting*, *unhealthy*, *offers-nothing*: of a GPU, as its agent published it.
* *leaked*, *unauthorised*, *foreign*, *contested*, *unserved*, *over-promise*: findings of an agent.
  *unserved* is also a pod that asks its node for a resource which the node does not have.
* *unattributed*: slices that somebody holds, and nobody can tell who.
* *init-only*: pods for which more is reserved, for init containers that have run, than they can use now.
* *differs*: the scheduler counts otherwise than the kubelet has given.
* *over*: more is asked for, or held, than there is.
* *policy-refused*, *omitted*, *warning*: the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from sharer.core.cluster.facts import NodeCapacity
from sharer.core.cluster.report import OWNING, ClusterGpu, ClusterNode, NodeResource, Note
from sharer.core.holders.findings import FindingKind
from sharer.core.report.node import gpu_name

_FINDINGS = frozenset(kind.value for kind in FindingKind)


def find_notes(nodes: Iterable[ClusterNode], facts: Mapping[str, NodeCapacity]) -> tuple[Note, ...]:
    """Every note, by node. `facts`: the Nodes that were read."""
    return tuple(note for node in nodes for note in _notes(node, facts.get(node.name)))


def _notes(node: ClusterNode, facts: NodeCapacity | None) -> Iterator[Note]:
    if node.state in ("not-ready", "cordoned", "gone"):
        idle = sum(one.out_of_reach or 0 for one in node.resources)
        reason = node.state_reason or "it does not say why"
        yield Note(kind=node.state, node=node.name, message=reason + (f"; idle slices: {idle}" if idle else ""))
    if node.agent_silent is not None and node.state != "not-ready":
        yield Note(kind="agent-silent", node=node.name, message=node.agent_silent)
    if not node.gpus and not any(one.capacity for one in node.resources) and facts and facts.gpu_label is not None:
        what = f"the label {facts.gpu_label} says that it has GPUs, and it offers none"
        yield Note(kind="no-resource", node=node.name, message=f"{what}; does a device plugin run there (taints)?")
    for one in node.resources:
        if one.slices and one.out_of_reach and not one.allocatable and facts is not None and facts.ready:
            what = f"its agent offers {one.slices} {one.name}, and the Node lists none"
            yield Note(kind="no-resource", node=node.name, message=f"{what}: has the kubelet taken its registration?")
    for gpu in node.gpus:
        yield from _of_gpu(node.name, gpu)
    for resource in node.resources:
        yield from _of_resource(node, resource)
    yield from _of_pods(node)
    yield from _of_agent(node)


def _of_gpu(node: str, gpu: ClusterGpu) -> Iterator[Note]:
    name = f"GPU {gpu_name(gpu)}"
    said: list[tuple[str, str | None]] = []
    if gpu.draining:
        said.append(("draining", f"{name}: held slices of an earlier cut: {gpu.draining}"))
    if gpu.quarantined:
        said.append(("quarantined", f"{name}: slices on which something of a former owner may live: {gpu.quarantined}"))
    if gpu.health == "unhealthy" or (gpu.health == "unknown" and gpu.health_reason is not None):
        said.append(("unhealthy", f"{name}: {gpu.health_reason}"))
    if gpu.waiting is not None:
        said.append(("waiting", f"{name}: {gpu.waiting}"))
    if gpu.offers_nothing is not None:
        said.append(("offers-nothing", f"{name}: {gpu.offers_nothing}"))
    nameless = sum(one.pod is None and one.state in OWNING for one in gpu.holders)
    if nameless:
        said.append(("unattributed", f"{name}: slices that are held, nobody can tell by which pod: {nameless}"))
    for kind, message in said:
        yield Note(kind=kind, node=node, message=message or "", gpu_uuid=gpu.uuid)


def _of_resource(node: ClusterNode, one: NodeResource) -> Iterator[Note]:
    if one.over_by:
        there_is = one.slices if one.allocatable is None else one.allocatable
        what = f"{one.name}: {one.over_by} more are asked for or held than the {there_is or 0} there are"
        yield Note(kind="over", node=node.name, message=what)
    silent = node.agent_silent is not None
    if one.held is not None and one.requested is not None and one.requested != one.held and not silent:
        counted = f"{one.name}: pods ask for {one.requested}, as the scheduler counts, and the kubelet has given"
        yield Note(kind="differs", node=node.name, message=f"{counted} {one.held}")


def _of_pods(node: ClusterNode) -> Iterator[Note]:
    shown = {one.name: one.capacity is not None or bool(one.slices) for one in node.resources}
    for pod in node.pods:
        who = f"{pod.namespace}/{pod.name}"
        for ask in pod.asks:
            if ask.resource not in shown:
                continue  # a report about other resources
            said = []
            if node.state in ("ready", "cordoned") and not shown[ask.resource]:
                message = f"{who} asks for {ask.requested} {ask.resource}, which its node does not have"
                said.append(("unserved", message))
            if idle := ask.requested - ask.running:
                message = f"{who}: {idle} of {ask.requested} {ask.resource} are only for init containers"
                said.append(("init-only", f"{message}, and stay reserved"))
            for kind, message in said:
                yield Note(kind=kind, node=node.name, message=message, namespace=pod.namespace, pod=pod.name)


def _of_agent(node: ClusterNode) -> Iterator[Note]:
    if node.policy is not None and node.policy.refused is not None:
        yield Note(kind="policy-refused", node=node.name, message=node.policy.refused)
    if node.gpus_omitted:
        left = f"devices left out of its GpuNode, and not among the GPUs here: {node.gpus_omitted}"
        yield Note(kind="omitted", node=node.name, message=left)
    if node.holders_omitted:
        left = f"holders left out of its GpuNode, and counted all the same: {node.holders_omitted}"
        yield Note(kind="omitted", node=node.name, message=left)
    for warning in node.warnings:
        kind = warning.reason if warning.reason in _FINDINGS else "warning"
        if warning.reason == "UnattributedFault":
            kind = "unattributed"
        yield Note(kind=kind, node=node.name, message=warning.message)
