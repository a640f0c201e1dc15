"""Used memory in a report about a cluster: of the node on which it is made, for only its agent can tell."""

from __future__ import annotations

from sharer.core.cluster.facts import ClusterFacts, GpuNodeFacts, Source
from sharer.core.report.node import NodeReport, NodeStatus
from sharer.core.values import replace


def with_live(facts: ClusterFacts, live: NodeReport) -> ClusterFacts:
    """The facts with what a node's agent says itself in the place of what it published."""
    name, status = live.metadata.name, live.status
    before = {one.name: one for one in facts.gpu_nodes.items or ()}
    said = published(name, before[name].lease if name in before else None, status)
    source = Source(items=tuple({**before, name: said}.values()), problem=facts.gpu_nodes.problem)
    return replace(facts, gpu_nodes=source)


def published(name: str, lease: str | None, status: NodeStatus) -> GpuNodeFacts:
    """A node's status as its GpuNode would tell it."""
    return GpuNodeFacts(
        name=name,
        lease=lease,
        observed_at=status.observed_at,
        agent=status.agent,
        node=status.node,
        policy=status.policy,
        resources=status.resources,
        gpus=status.gpus,
        holders=status.holders,
        gpus_omitted=status.gpus_omitted,
        holders_omitted=status.holders_omitted,
        warnings=status.warnings,
    )
