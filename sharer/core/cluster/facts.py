"""What the API server says of the whole fleet, as light frozen values: the input of a ClusterReport.

Each of the four lists may be missing, and says why; what depends on it is then unknown, never 0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from typing import Generic, TypeVar

from sharer.core.cluster.pod_asks import PodAsk
from sharer.core.report.node import GpuStatus, HolderReport, HostReport, PolicyReport, ResourceReport, WarningReport
from sharer.core.values import dataclass

T = TypeVar("T")

PRODUCT_LABELS = ("nvidia.com/gpu.product", "cloud.google.com/gke-accelerator", "k8s.amazonaws.com/accelerator")
_PRESENT = re.compile(
    r"nvidia\.com/gpu\.(present|product)|feature\.node\.kubernetes\.io/pci-(03\d\d_)?10de(_.*)?\.present"
    r"|cloud\.google\.com/gke-accelerator|k8s\.amazonaws\.com/accelerator"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCapacity:
    """A Node, as far as its capacity goes."""

    name: str
    ready: bool | None  # None: its conditions do not say
    not_ready_reason: str | None = None
    cordoned: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)  # only those for which `is_telling` holds
    capacity: Mapping[str, int | None] = field(default_factory=dict)  # extended resources; None: not a whole number
    allocatable: Mapping[str, int | None] = field(default_factory=dict)

    @property
    def product(self) -> str | None:
        """Which GPUs its labels name; None: no label does."""
        return next((self.labels[label] for label in PRODUCT_LABELS if self.labels.get(label)), None)

    @property
    def gpu_label(self) -> str | None:
        """The label that says there are NVIDIA GPUs, as `key=value`; None: no label does."""
        for key, value in self.labels.items():
            if _PRESENT.fullmatch(key) and value != "false":
                return f"{key}={value}"
        return None


def is_telling(label: str) -> bool:
    """Whether a Node's label of this name says something about its GPUs or its policy."""
    return label in PRODUCT_LABELS or label.startswith("sharer.dev/") or _PRESENT.fullmatch(label) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuNodeFacts:
    """What the agent of a node published last. It writes on changes only, so old news may be true."""

    name: str
    lease: str | None  # "namespace/name" of the Lease by which its agent says that it is alive; None: it names none
    observed_at: str | None
    agent: str | None  # its version
    node: HostReport
    policy: PolicyReport
    resources: tuple[ResourceReport, ...]
    gpus: tuple[GpuStatus, ...]
    gpus_omitted: int = 0
    holders: tuple[HolderReport, ...]
    holders_omitted: int
    warnings: tuple[WarningReport, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseFacts:
    """Until when an agent has promised to say that it is alive."""

    key: str  # "namespace/name"
    renewed_at: str
    overdue_s: float  # since it should have been renewed; negative: it is not due yet


@dataclass(frozen=True, slots=True, kw_only=True)
class Source(Generic[T]):
    """One list of the API server, or why it is missing."""

    items: tuple[T, ...] | None  # None: it is missing
    problem: str | None = None  # why it is missing, or not complete
    absent: bool = False  # the server does not serve this kind at all, which is no problem in itself


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """Everything that was read, within a few seconds: four lists of one moment each, not one moment together."""

    nodes: Source[NodeCapacity]
    pods: Source[PodAsk]  # those that count, and ask for an extended resource
    gpu_nodes: Source[GpuNodeFacts]
    leases: Source[LeaseFacts]
