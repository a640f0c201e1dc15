"""From what the API server says of a fleet to its ClusterReport. What is not known stays None."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field
from fnmatch import fnmatchcase

from sharer.core.change.choice import HOLD_LABEL, POLICY_LABEL
from sharer.core.cluster.facts import ClusterFacts, GpuNodeFacts, LeaseFacts, NodeCapacity, Source
from sharer.core.cluster.notes import find_notes
from sharer.core.cluster.pod_asks import PodAsk, is_gpu_resource
from sharer.core.cluster.report import (
    OWNING,
    ClusterGpu,
    ClusterNode,
    ClusterReport,
    Fleet,
    MissingSource,
    NodeResource,
)
from sharer.core.cluster.totals import total
from sharer.core.device_id import uuid_part
from sharer.core.quantities import duration
from sharer.core.report.node import GpuStatus, HolderReport, ResourceReport
from sharer.core.values import dataclass

_DIGITS = re.compile(r"(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What a report is to be about. Everything else is left out of its counts too."""

    resources: tuple[str, ...] = ()  # globs; empty: what agents offer, and what is of GPUs by its name
    nodes: tuple[str, ...] = ()  # globs; empty: every node
    only_listed: bool = False  # the list of Nodes was selected by labels: what is on other nodes is not meant


@dataclass(frozen=True, slots=True)
class _OnNode:
    """Everything that was read of one node."""

    name: str
    node: NodeCapacity | None
    published: GpuNodeFacts | None
    pods: list[PodAsk] = field(default_factory=list)


def report_cluster(facts: ClusterFacts, selection: Selection, *, cluster: str, observed_at: str) -> ClusterReport:
    """The report. The same facts give the same one; nodes in the order of their names, numbers as numbers."""
    offered = {one.name for published in facts.gpu_nodes.items or () for one in published.resources}
    is_meant = _meant(selection, offered)
    leases = None if facts.leases.items is None else {one.key: one for one in facts.leases.items}
    found = [_node(one, facts, leases, is_meant) for one in _by_node(facts, selection)]
    nodes = tuple(one for one in found if one.resources or one.gpus or _is_gpu_node(one, selection))
    sources = (("nodes", facts.nodes), ("pods", facts.pods), ("gpunodes", facts.gpu_nodes), ("leases", facts.leases))
    return ClusterReport(
        cluster=cluster,
        observed_at=observed_at,
        fleet=Fleet(
            nodes=len(nodes),
            not_ready=None if facts.nodes.items is None else sum(one.state == "not-ready" for one in nodes),
            cordoned=None if facts.nodes.items is None else sum(one.state == "cordoned" for one in nodes),
            with_agent=sum(one.agent is not None for one in nodes),
            agents_silent=_agents_silent(nodes, leases),
            gpus=sum(len(one.gpus) for one in nodes),
            pods=None if facts.pods.items is None else sum(len(one.pods) for one in nodes),
        ),
        totals=total(nodes),
        nodes=nodes,
        notes=find_notes(nodes, {one.name: one for one in facts.nodes.items or ()}),
        unknown=tuple(_unknown(facts, nodes)),
        missing=tuple(
            MissingSource(source=name, problem=source.problem) for name, source in sources if source.problem is not None
        ),
    )


def _agents_silent(nodes: Iterable[ClusterNode], leases: Mapping[str, LeaseFacts] | None) -> int | None:
    told = [one for one in nodes if one.agent is not None]
    return None if told and leases is None else sum(one.agent_silent is not None for one in told)


def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """A key that sorts numbers in names as numbers.

    >>> sorted(["gpu-10", "gpu-9", "cpu"], key=natural)
    ['cpu', 'gpu-9', 'gpu-10']
    """
    return tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in _DIGITS.split(name) if part)


def matches(name: str, globs: Iterable[str]) -> bool:
    """Whether one of these globs matches."""
    return any(fnmatchcase(name, glob) for glob in globs)


def _meant(selection: Selection, offered: set[str]) -> Callable[[str], bool]:
    if selection.resources:
        return lambda name: matches(name, selection.resources)
    return lambda name: name in offered or is_gpu_resource(name)


def _by_node(facts: ClusterFacts, selection: Selection) -> list[_OnNode]:
    nodes = {one.name: one for one in facts.nodes.items or ()}
    published = {one.name: one for one in facts.gpu_nodes.items or ()}
    pods: dict[str, list[PodAsk]] = {}
    for pod in facts.pods.items or ():
        pods.setdefault(pod.node, []).append(pod)
    names: Iterable[str] = nodes if selection.only_listed else {*nodes, *published, *pods}
    if selection.nodes:
        names = [name for name in names if matches(name, selection.nodes)]
    return [
        _OnNode(name, nodes.get(name), published.get(name), pods.get(name, [])) for name in sorted(names, key=natural)
    ]


def _is_gpu_node(node: ClusterNode, selection: Selection) -> bool:
    """Whether a node without anything to count belongs into the report: it should have something to count."""
    return not selection.resources and (node.agent is not None or node.product is not None)


def _node(
    one: _OnNode, facts: ClusterFacts, leases: Mapping[str, LeaseFacts] | None, is_meant: Callable[[str], bool]
) -> ClusterNode:
    node, published = one.node, one.published
    state, reason = _state(node, facts.nodes)
    takes_pods = {"ready": True, "unknown": None}.get(state, False)
    silent = None if published is None else _silent(state, published, leases)
    reachable = takes_pods is not False and silent is None
    said = tuple(
        word
        for word, holds in ((state.replace("-", " "), state != "ready"), ("agent silent", silent is not None))
        if holds
    )
    unlisted = _unlisted(node, published)
    gpus = () if published is None else tuple(_gpus(published, reachable, unlisted, said, is_meant))
    return ClusterNode(
        name=one.name,
        state=state,
        state_reason=reason,
        takes_pods=takes_pods,
        product=_product(node, gpus),
        agent=None if published is None else published.agent or "unknown",
        agent_silent=silent,
        observed_at=None if published is None else published.observed_at,
        driver=None if published is None else published.node.driver,
        injection=None if published is None else published.node.injection,
        policy=None if published is None else published.policy,
        policy_label=None if node is None else node.labels.get(POLICY_LABEL),
        held_back=node is not None and node.labels.get(HOLD_LABEL, "false") != "false",
        resources=tuple(_resources(one, facts, reachable, unlisted, is_meant)),
        gpus=gpus,
        pods=tuple(_pods(one.pods, is_meant)),
        gpus_omitted=0 if published is None else published.gpus_omitted,
        holders_omitted=0 if published is None else published.holders_omitted,
        warnings=() if published is None else published.warnings,
    )


def _state(node: NodeCapacity | None, source: Source[NodeCapacity]) -> tuple[str, str | None]:
    if node is None:
        if source.items is None or source.problem is not None:
            return "unknown", "the list of Nodes is missing"
        return "gone", "there is no Node of this name"
    if node.ready is None:
        return "unknown", "its conditions do not say whether it is ready"
    if not node.ready:
        return "not-ready", node.not_ready_reason
    return ("cordoned", "it is marked unschedulable") if node.cordoned else ("ready", None)


def _silent(state: str, published: GpuNodeFacts, leases: Mapping[str, LeaseFacts] | None) -> str | None:
    """Why what an agent published may be old; None: it is alive, or that cannot be told."""
    if state == "not-ready":
        return "its node is not ready"
    if leases is None or published.lease is None:
        return None
    lease = leases.get(published.lease)
    if lease is None:
        return f"there is no Lease {published.lease}, by which its agent would say that it is alive"
    if lease.overdue_s > 0:
        late = duration(lease.overdue_s)
        return f"its agent renewed its Lease last at {lease.renewed_at}, and should have {late} ago"
    return None


def _unlisted(node: NodeCapacity | None, published: GpuNodeFacts | None) -> frozenset[str]:
    """Resources of which an agent has free slices, and the Node lists none: the scheduler sends no pod there."""
    if node is None or published is None:
        return frozenset()
    return frozenset(one.name for one in published.resources if one.free and node.allocatable.get(one.name, 0) == 0)


def _product(node: NodeCapacity | None, gpus: tuple[ClusterGpu, ...]) -> str | None:
    told = {gpu.product for gpu in gpus}
    if len(told) == 1:
        return told.pop()
    return None if told or node is None else node.product or node.gpu_label


def _gpus(
    published: GpuNodeFacts,
    is_node_reachable: bool,
    unlisted: frozenset[str],
    said: tuple[str, ...],
    is_meant: Callable[[str], bool],
) -> Iterator[ClusterGpu]:
    holders: dict[str, list[HolderReport]] = {}
    for holder in published.holders:
        holders.setdefault(uuid_part(holder.id), []).append(holder)
    for gpu in published.gpus:
        mine = holders.get(gpu.uuid, [])
        if not any(map(is_meant, _names(gpu, mine, published))):
            continue
        owned = sum(one.state in OWNING for one in mine)
        reachable = is_node_reachable and gpu.resource not in unlisted
        yield ClusterGpu(
            uuid=gpu.uuid,
            gpu_uuid=gpu.gpu_uuid,
            index=gpu.index,
            product=gpu.product,
            mig_index=gpu.mig_index,
            mig_profile=gpu.mig_profile,
            memory_bytes=gpu.memory_bytes,
            compute_capability=gpu.compute_capability,
            mig_enabled=gpu.mig_enabled,
            health=gpu.health,
            health_reason=gpu.reason,
            strategy=gpu.strategy,
            resource=gpu.resource,
            slices=gpu.slices,
            held=gpu.held,
            free=gpu.free if reachable else 0,
            out_of_reach=0 if reachable else gpu.free,
            quarantined=gpu.quarantined,
            draining=gpu.draining,
            promised_bytes=gpu.promised_bytes,
            largest_free_bytes=gpu.largest_free_bytes if reachable or gpu.largest_free_bytes is None else 0,
            used_bytes=gpu.used_bytes,
            verified=gpu.verified,
            not_verified=gpu.not_verified,
            offers_nothing=gpu.offers_nothing,
            waiting=gpu.waiting,
            state=(*said, *(("not listed",) if gpu.resource in unlisted else ()), *_words(gpu)),
            holders=tuple(mine),
            holders_omitted=max(0, gpu.held - owned) if published.holders_omitted else 0,
        )


def _names(gpu: GpuStatus, holders: Iterable[HolderReport], published: GpuNodeFacts) -> set[str]:
    """The resources that a device is about. One that offers nothing, and holds nothing, is about all of its node's."""
    names = {one.resource for one in holders} | ({gpu.resource} if gpu.resource is not None else set())
    return names or {one.name for one in published.resources} or {"gpu"}


def _words(gpu: GpuStatus) -> Iterator[str]:
    if gpu.draining:
        yield f"{gpu.draining} draining"
    if gpu.quarantined:
        yield f"{gpu.quarantined} quarantined"
    if gpu.waiting is not None:
        yield "waiting"
    if gpu.offers_nothing is not None:
        yield "offers nothing"


def _resources(
    one: _OnNode,
    facts: ClusterFacts,
    is_node_reachable: bool,
    unlisted: frozenset[str],
    is_meant: Callable[[str], bool],
) -> Iterator[NodeResource]:
    published = {} if one.published is None else {resource.name: resource for resource in one.published.resources}
    capacity: Mapping[str, int | None] = {} if one.node is None else one.node.capacity
    allocatable: Mapping[str, int | None] = {} if one.node is None else one.node.allocatable
    requested: dict[str, int] = {}
    running: dict[str, int] = {}
    for pod in one.pods:
        for ask in pod.asks:
            requested[ask.resource] = requested.get(ask.resource, 0) + ask.requested
            running[ask.resource] = running.get(ask.resource, 0) + ask.running
    pods_known = facts.pods.items is not None
    for name in sorted({*published, *capacity, *allocatable, *requested}):
        if is_meant(name):
            ours = published.get(name)
            reachable = is_node_reachable and name not in unlisted
            there_is = None if one.node is None else allocatable.get(name) if name in allocatable else 0
            asked = requested.get(name, 0) if pods_known else None
            free, over_by = _free(ours, there_is, asked)
            yield NodeResource(
                name=name,
                strategy=None if ours is None else ours.strategy,
                capacity=capacity.get(name),
                allocatable=allocatable.get(name),
                requested=asked,
                running=running.get(name, 0) if pods_known else None,
                over_by=over_by,
                slices=None if ours is None else ours.slices,
                held=None if ours is None else ours.held,
                free=free if reachable or free is None else 0,
                out_of_reach=0 if reachable else free,
                quarantined=None if ours is None else ours.quarantined,
                draining=None if ours is None else ours.draining,
                unhealthy=None if ours is None else ours.unhealthy,
                waiting=None if ours is None else ours.waiting,
            )


def _free(ours: ResourceReport | None, there_is: int | None, asked: int | None) -> tuple[int | None, int]:
    """How much a new pod could get, were the node reachable, and by how much too much is asked for.

    `there_is`: allocatable; 0 for what the Node does not list; None: it lists no number, or was not read.
    """
    over_by = 0 if there_is is None or asked is None else max(0, asked - there_is)
    if ours is not None:
        return ours.free, max(ours.over_by, over_by)
    return (None if there_is is None or asked is None else max(0, there_is - asked)), over_by


def _pods(pods: Iterable[PodAsk], is_meant: Callable[[str], bool]) -> Iterator[PodAsk]:
    for pod in sorted(pods, key=lambda pod: (pod.namespace, pod.name)):
        if any(is_meant(ask.resource) for ask in pod.asks):
            yield pod


def _unknown(facts: ClusterFacts, nodes: tuple[ClusterNode, ...]) -> Iterator[str]:
    """What nobody could know from what was read."""
    untold = sum(node.agent is None for node in nodes)
    if untold and facts.gpu_nodes.problem is None:
        where = "these nodes" if untold == len(nodes) else f"{untold} of {len(nodes)} nodes"
        why = "the cluster has no GpuNodes" if facts.gpu_nodes.absent else "no sharer agent publishes a GpuNode there"
        yield (
            f"which GPU a pod is on, its memory, its health, and what holds it to its share, on {where}: {why};"
            " what is shown there is what pods ask for"
        )
    quiet = sum(any(gpu.used_bytes is None for gpu in node.gpus) for node in nodes)
    if quiet:
        where = "" if quiet == len(nodes) else f" on {quiet} of {len(nodes)} nodes"
        yield f"used memory{where}: agents do not publish it; on a node, `sharer report` shows it"
    if any(node.agent is not None for node in nodes) and facts.leases.items is None and facts.leases.problem is None:
        yield "whether the agents are alive: they name no Lease"
