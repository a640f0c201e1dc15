"""What is known of a small cluster: nodes, their agents, pods that ask; and its account."""

from __future__ import annotations

from dataclasses import replace

from sharer.core.cluster.account import Selection, report_cluster
from sharer.core.cluster.facts import ClusterFacts, GpuNodeFacts, LeaseFacts, NodeCapacity, Source
from sharer.core.cluster.live import published
from sharer.core.cluster.pod_asks import PodAsk
from sharer.core.cluster.report import ClusterReport
from sharer.core.known import Known
from tests.core.builders import gpu, node, policy, time_slicing
from tests.core.evidence import SHARED, held, key
from tests.core.nodes import known, report

ONE_NODE = node(gpu(0), gpu(1))


def machine(name: str = "n", **more: object) -> NodeCapacity:
    """A node as the API server has it, with 8 slices."""
    amounts = {SHARED: 8}
    return replace(NodeCapacity(name=name, ready=True, capacity=amounts, allocatable=amounts), **more)  # type: ignore[arg-type]


def agent(what: Known | None = None, name: str = "n", **more: object) -> GpuNodeFacts:
    """What a node's agent publishes, by default of two GPUs in 4 slices each, of which one is held."""
    status = report(what or known(ONE_NODE, policy(time_slicing(4)), entries=held(key(0, 20480)))).status
    found = replace(published(name, None, status), warnings=())
    return replace(found, **more)  # type: ignore[arg-type]


def account(
    *,
    nodes: tuple[NodeCapacity, ...] = (),
    agents: tuple[GpuNodeFacts, ...] = (),
    pods: tuple[PodAsk, ...] = (),
    leases: tuple[LeaseFacts, ...] | None = None,
    selection: Selection | None = None,
) -> ClusterReport:
    """The account of a cluster of which nothing but this is known."""
    facts = ClusterFacts(
        nodes=Source(items=nodes),
        pods=Source(items=pods),
        gpu_nodes=Source(items=agents),
        leases=Source(items=leases),
    )
    return report_cluster(facts, selection or Selection(), cluster="c", observed_at="now")
