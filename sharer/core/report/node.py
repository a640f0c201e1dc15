"""The NodeReport: everything that one node's agent knows, for people, scripts and the GpuNode object (DESIGN §8).

`status` is what a GpuNode carries, and used bytes besides; the rest is only told on the node itself. Units are in the
names, times are RFC 3339 in UTC, and null is "not known" (or, where it says so, "none"), never 0.

Counting. *Held* is a slice with an owner, or one that was allocated and not claimed yet. *Free* is counted, slice by
slice, never worked out as a difference, so it cannot be negative; where more is held than there is, `over_by` says by
how much (bug case P38). *Draining* are held slices of an earlier cut; a resource that only they belong to has no slices
of its own, so that a renamed resource is not counted twice (P08).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import ClassVar, Protocol

from sharer.core.holders.findings import Finding
from sharer.core.report.inventory import InventoryReport
from sharer.core.values import dataclass

LEASE_ANNOTATION = "sharer.dev/lease"  # of a GpuNode: namespace and name of its agent's Lease, "gpu/node-1"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostReport:
    """What the node runs on."""

    driver: str | None
    kernel: str | None
    cgroup: str | None  # "v1", "v2", "hybrid"
    injection: str | None  # "cdi", "volume-mounts,device-nodes"; null: not known before the driver answers
    injection_reason: str | None  # why this way, and what of it was not verified


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedReport:
    """A good policy that is not in force yet."""

    source: str
    hash: str
    seen_at: str
    applies_at: str  # this node's turn within the policy's rollout.window
    waits_for: str | None  # what else it waits for; null: only for its turn


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyReport:
    """Which policy this node follows, and what stands between it and the one that is wanted."""

    wanted: str | None  # the key that the node's label asks for; null: one policy for all, or the label is not known
    wanted_hash: str | None  # SHA-256 of the text; null: there is no text
    in_force: str | None  # where it was read: "configmap gpu/policies key a100"; null: nothing new is offered
    hash: str | None
    refused: str | None  # every problem of the text that is wanted, or why there is none; null: it can be taken
    unread: str | None  # why it cannot be told what is wanted now
    staged: StagedReport | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceReport:
    """What the kubelet is offered under one name. The counting is above."""

    name: str
    strategy: str | None  # null: not in the policy any more, only draining
    slices: int  # of the policy in force
    held: int
    free: int
    over_by: int  # more are held than there are healthy slices; 0 for a name that only drains
    quarantined: int  # without an owner, and something of a former one may still live
    draining: int  # held, of an earlier cut
    unhealthy: int  # slices of the policy on a GPU at fault, held or not; and free ones that no MPS daemon serves
    waiting: int  # slices of the policy that wait for draining ones


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuStatus:
    """One physical GPU without MIG devices, or one MIG device."""

    uuid: str  # of the MIG device, or else of the GPU
    gpu_uuid: str
    index: int | None  # of the GPU; null: not among the GPUs that the driver reports
    product: str | None
    mig_index: int | None  # of the MIG device on its GPU; null: not a MIG device
    mig_profile: str | None
    memory_bytes: int | None
    compute_capability: str | None = None  # of the GPU: "8.0"
    mig_enabled: bool | None = None  # of the GPU; null: it has no MIG mode, or that is not known
    health: str  # "healthy", "unhealthy", "unmonitored" (no XIDs reach us), "unknown" (the driver does not answer)
    reason: str | None  # for that health
    strategy: str | None  # null: it offers nothing
    resource: str | None
    slices: int
    held: int
    free: int
    quarantined: int
    draining: int
    promised_bytes: int | None  # listed healthy, held or with remnants; null: slices without a limit are among them
    largest_free_bytes: int | None  # the most memory that one container can still get; null: no memory is promised
    used_bytes: int | None = None  # by all processes on it; never in a GpuNode
    verified: int | None  # containers whose limit was seen to be in force; null: not looked at
    not_verified: int | None
    offers_nothing: str | None  # why the policy gives no slice of it; null: it does
    waiting: str | None  # why slices of the policy are not listed yet; null: they are


@dataclass(frozen=True, slots=True, kw_only=True)
class HolderReport:
    """One slice that somebody holds, may hold, or has left something on."""

    resource: str
    id: str
    state: str  # "allocated", "held", "releasing", "quarantined"; "remnant": another container owns the slice now
    namespace: str | None
    pod: str | None
    uid: str | None  # as in cgroup names; a static pod's is the hash of its manifest
    container: str | None  # null: not known yet
    promise_bytes: int | None  # null: no memory is promised, or another plugin's ID
    used_bytes: int | None = None  # by the container there, all its slices together; null: cannot be told apart
    held_by: str | None  # the enforcer whose limit was verified; null: none was
    verified_at: str | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WarningReport:
    """Something the operator should know that has no other place."""

    reason: str  # one word: a finding's kind, or where the warning comes from
    message: str
    since: str | None  # null: not known


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatus:
    """What a GpuNode carries of a node, and used bytes."""

    observed_at: str
    agent: str  # its version
    facts_hash: str | None  # equal wherever the same device IDs get the same answer; null: nothing is answered yet
    node: HostReport
    policy: PolicyReport
    resources: tuple[ResourceReport, ...]
    gpus: tuple[GpuStatus, ...]
    gpus_omitted: int = 0  # devices that a GpuNode has no room for, as the next
    holders: tuple[HolderReport, ...]
    holders_omitted: int = 0
    warnings: tuple[WarningReport, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceReport:
    """One ID that the kubelet is shown, or that somebody has something on."""

    resource: str
    id: str
    gpu_uuid: str  # of the physical GPU
    state: str  # "offered", "allocated", "held", "releasing", "quarantined"
    reason: str  # for that state
    listed: bool  # the kubelet is shown it
    healthy: bool  # as it is shown
    planned: bool  # of the policy in force; false: of an earlier cut
    promise_bytes: int | None
    draining_s: float | None  # for how long; null: it does not drain
    overdue: bool  # drains for longer than the policy's patience: its next release is final
    withdrawn_s: float | None  # free, unhealthy and about to be dropped, for how long; null: it stays


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessReport:
    """One process on a GPU."""

    gpu_uuid: str  # of the MIG device, or else of the GPU
    pid: int | None
    command: str | None
    used_bytes: int | None
    namespace: str | None
    pod: str | None
    uid: str | None  # null: the host's own, or it cannot be told
    attributed: bool  # whether it could be told whose it is


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceReport:
    """How current one source of all this is."""

    name: str
    read_at: str | None
    age_s: float | None
    problem: str | None  # why it is missing, or not complete; null: nothing is


@dataclass(frozen=True, slots=True, kw_only=True)
class MpsGpuReport:
    """One GPU of an MPS control daemon."""

    problem: str | None  # why its free slices are not given out; null: they are
    clients: int | None  # processes that are connected; null: not known


@dataclass(frozen=True, slots=True, kw_only=True)
class MpsReport:
    """What an MPS control daemon is to serve, which `sharer mps` follows, and what was seen of it."""

    resource: str
    slices: Mapping[str, tuple[str, ...]]  # UUID of a GPU -> the device IDs that are listed or held
    limits_memory: bool  # false: the driver holds memory, and the daemon only shares SMs
    user_id: int | None  # the only user whose processes will come; null: those of any user
    interface: str | None = None  # "v2", "v3": the last that it was seen to have; null: it has never answered
    interface_reason: str | None = None  # why not the better one
    limits_are: str | None = None  # what each of its limits is counted for; null: not known
    gpus: Mapping[str, MpsGpuReport] = field(default_factory=dict)  # by UUID
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectName:
    """Which node."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReport:
    """Everything. `sharer report` prints it, the local socket answers with it."""

    kind: ClassVar[str] = "NodeReport"
    metadata: ObjectName
    status: NodeStatus
    slices: tuple[SliceReport, ...]
    processes: tuple[ProcessReport, ...] | None  # null: they were never read
    findings: tuple[Finding, ...]
    sources: tuple[SourceReport, ...]
    inventory: InventoryReport | None  # null: the driver has not answered yet
    mps: tuple[MpsReport, ...] | None = None  # null: not known yet; nothing may be ended for that

    def missing(self) -> tuple[str, ...]:
        """What is missing of it, one sentence a source."""
        return tuple(f"{source.name}: {source.problem}" for source in self.sources if source.problem is not None)


class Numbered(Protocol):
    """A GPU or MIG device in a report."""

    @property
    def index(self) -> int | None:
        """The GPU's number on its node; None: the node does not have it, or does not say."""
        ...

    @property
    def mig_index(self) -> int | None:
        """The MIG device's number on its GPU; None: it is none."""
        ...


def gpu_name(gpu: Numbered) -> str:
    """A device's name on its node, for people: "3", "3:1" for a MIG device, "?" if its node does not have it."""
    index = "?" if gpu.index is None else str(gpu.index)
    return index if gpu.mig_index is None else f"{index}:{gpu.mig_index}"
