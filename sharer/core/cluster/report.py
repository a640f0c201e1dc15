"""The ClusterReport: what a fleet's GPUs are used for, by fleet, node, GPU and holder (DESIGN §8).

Units are in the names, times are RFC 3339 in UTC, and null is "not known" (or, where it says so, "none"), never 0.

Counting. There are two views of who holds what, and both are shown. *Requested* is the scheduler's: every pod that is
bound and neither Succeeded nor Failed counts, by Kubernetes' formula for init containers and sidecars. *Held* is the
kubelet's, as the node's agent saw it. *Free* is what a new pod could get now: counted slice by slice where an agent
counts, else allocatable less requested; on a node that takes no pods it is 0, and what lies idle there is
`out_of_reach`. Nothing is ever negative: `over_by` says by how much more is asked for than there is (bug case P38).
"""

from __future__ import annotations

from typing import ClassVar

from sharer.core.cluster.pod_asks import PodAsk
from sharer.core.report.node import HolderReport, PolicyReport, WarningReport
from sharer.core.values import dataclass

OWNING = frozenset(("allocated", "held", "releasing"))
"""States of a holder that has the slice; every other one only has something on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterGpu:
    """One physical GPU without MIG devices, or one MIG device, as its node's agent published it."""

    uuid: str  # of the MIG device, or else of the GPU
    gpu_uuid: str
    index: int | None  # of the GPU on its node
    product: str | None
    mig_index: int | None  # null: not a MIG device
    mig_profile: str | None
    memory_bytes: int | None
    compute_capability: str | None  # of the GPU: "8.0"
    mig_enabled: bool | None  # of the GPU; null: it has no MIG mode, or that is not known
    health: str  # "healthy", "unhealthy", "unmonitored", "unknown"
    health_reason: str | None
    strategy: str | None  # null: it offers nothing
    resource: str | None
    slices: int
    held: int
    free: int
    out_of_reach: int  # nobody holds them and no pod can get them: the node takes none, or its Node does not list them
    quarantined: int | None
    draining: int | None
    promised_bytes: int | None  # null: slices without a limit are among them
    largest_free_bytes: int | None  # the most memory that one container can still get; null: no memory is promised
    used_bytes: int | None  # by all processes on it; null: only the node itself knows
    verified: int | None  # containers whose limit was seen to be in force; null: not looked at
    not_verified: int | None
    offers_nothing: str | None  # why the policy gives no slice of it; null: it does
    waiting: str | None  # why slices of the policy are not listed yet; null: they are
    state: tuple[str, ...]  # what is to be said of it beside its health, in words; empty: nothing
    holders: tuple[HolderReport, ...]
    holders_omitted: int  # that hold slices, and were left out of its GpuNode


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeResource:
    """One resource of one node: what the scheduler counts, and what the agent counts."""

    name: str
    strategy: str | None  # null: no agent offers it
    capacity: int | None  # null: the Node does not have it, or says no number
    allocatable: int | None
    requested: int | None  # by the pods that count; null: pods could not be read
    running: int | None  # of these, by app containers and sidecars: all that the kubelet's podresources list
    over_by: int  # more is requested, or held, than is allocatable, or healthy
    slices: int | None  # as the agent counts; null: no agent publishes
    held: int | None
    free: int | None  # what a new pod could get now
    out_of_reach: int | None
    quarantined: int | None
    draining: int | None
    unhealthy: int | None
    waiting: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterNode:
    """One node that has, or should have, GPUs."""

    name: str
    state: str  # "ready", "not-ready", "cordoned", "gone" (a GpuNode without a Node), "unknown"
    state_reason: str | None
    takes_pods: bool | None  # null: not known
    product: str | None  # as its labels or its agent name its GPUs; null: neither does, or they differ
    agent: str | None  # version of the agent that published; null: none did
    agent_silent: str | None  # why what it published may be old; null: it is alive, or that cannot be told
    observed_at: str | None  # of the last change that it published
    driver: str | None
    injection: str | None
    policy: PolicyReport | None
    policy_label: str | None  # of the Node: which policy it asks for
    held_back: bool  # the label sharer.dev/hold keeps the policy in force
    resources: tuple[NodeResource, ...]
    gpus: tuple[ClusterGpu, ...]
    pods: tuple[PodAsk, ...]  # that count, and ask for a resource shown
    gpus_omitted: int  # devices left out of its GpuNode, which are in no count of devices; as the next
    holders_omitted: int
    warnings: tuple[WarningReport, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Total:
    """One resource on one product, over all nodes that are shown."""

    resource: str | None  # null: devices that offer nothing
    product: str | None
    nodes: int
    gpus: int | None  # devices; null: no agent tells of any
    slices: int
    held: int | None  # as agents count, or as pods ask where there is no agent; null: not known
    free: int | None
    out_of_reach: int | None
    draining: int | None
    quarantined: int | None
    memory_bytes: int | None
    promised_bytes: int | None
    used_bytes: int | None
    largest_free_bytes: int | None  # on any one device


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """How many there are, of the nodes that are shown."""

    nodes: int
    not_ready: int | None  # null, as the next: Nodes could not be read
    cordoned: int | None
    with_agent: int
    agents_silent: int | None  # null: no Lease could be read that would tell
    gpus: int  # devices that agents tell of
    pods: int | None  # that count and ask for a resource shown; null: pods could not be read


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Something that must not disappear in the counts."""

    kind: str  # one word; see core/cluster/notes
    node: str
    message: str
    gpu_uuid: str | None = None
    namespace: str | None = None
    pod: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingSource:
    """A list that could not be read, or not completely."""

    source: str
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterReport:
    """The whole. `sharer report` prints it where no local agent answers."""

    kind: ClassVar[str] = "ClusterReport"
    cluster: str  # which one: the API server's address
    observed_at: str
    fleet: Fleet
    totals: tuple[Total, ...]
    nodes: tuple[ClusterNode, ...]
    notes: tuple[Note, ...]
    unknown: tuple[str, ...]  # what nobody could know from what was read, one sentence each
    missing: tuple[MissingSource, ...]
