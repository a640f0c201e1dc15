"""A ClusterReport as lines: which there are, in which order, and the words that stand in them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from sharer.core.cluster.report import OWNING, ClusterGpu, ClusterNode, ClusterReport, NodeResource, Note
from sharer.core.values import replace

GpuRow = tuple[ClusterNode, ClusterGpu]
ResourceRow = tuple[ClusterNode, NodeResource]


def _number(amount: int | None) -> tuple[object, ...]:
    """Largest first, unknown last."""
    return (amount is None, -(amount or 0))


SORTS: Mapping[str, Callable[[ClusterGpu], tuple[object, ...]]] = MappingProxyType(
    {
        "node": lambda _gpu: (),
        "free": lambda gpu: _number(gpu.free),
        "held": lambda gpu: _number(gpu.held),
        "largest-free": lambda gpu: _number(gpu.largest_free_bytes),
        "promised": lambda gpu: _number(gpu.promised_bytes),
        "used": lambda gpu: _number(gpu.used_bytes),
        "memory": lambda gpu: _number(gpu.memory_bytes),
        "product": lambda gpu: (gpu.product is None, gpu.product or ""),
        "health": lambda gpu: (gpu.health == "healthy", gpu.health),
    }
)
"""What lines can be sorted by; what is equal stays in the order of nodes and GPUs."""


def gpu_rows(report: ClusterReport, sort_by: str = "node") -> list[GpuRow]:
    """A line for each device that an agent tells of."""
    rows = [(node, gpu) for node in report.nodes for gpu in node.gpus]
    if sort_by != "node":
        key = SORTS[sort_by]
        rows.sort(key=lambda row: key(row[1]))
    return rows


def resource_rows(report: ClusterReport) -> list[ResourceRow]:
    """A line for each resource of a node that no agent offers."""
    return [(node, one) for node in report.nodes for one in node.resources if one.slices is None]


def holder_names(gpu: ClusterGpu) -> tuple[str, ...]:
    """Who holds slices of a device, each pod once, in the order of the slices: "team-a/train-1"."""
    return tuple(dict.fromkeys(_owners(gpu)))


def _owners(gpu: ClusterGpu) -> Iterator[str]:
    for one in gpu.holders:
        if one.state in OWNING:
            yield "somebody unknown" if one.pod is None else f"{one.namespace}/{one.pod}"


def asking_names(node: ClusterNode, resource: str) -> tuple[str, ...]:
    """Which pods of a node ask for a resource."""
    return tuple(
        f"{pod.namespace}/{pod.name}" for pod in node.pods if any(ask.resource == resource for ask in pod.asks)
    )


def held_by(gpu: ClusterGpu) -> str | None:
    """What was seen to hold the slices of a device to their promise, in words; None: nobody holds any.

    "driver": all of them; "driver 2 of 3"; "nothing": it was looked at; "unknown": it was not.
    """
    owned = [one for one in gpu.holders if one.state in OWNING]
    everybody = len(owned) + gpu.holders_omitted
    if not owned:
        return "unknown" if everybody else None
    by = Counter(one.held_by for one in owned if one.held_by is not None)
    if not by:
        return "unknown" if gpu.verified is None else "nothing"
    if len(by) == 1 and by.total() == everybody:
        return next(iter(by))
    return ", ".join(f"{name} {number}" for name, number in sorted(by.items())) + f" of {everybody}"


def in_namespace(report: ClusterReport, namespace: str) -> ClusterReport:
    """What a namespace holds: its devices, its holders, its pods, and what is to be said of its nodes.

    The counts and totals stay those of everybody.
    """
    narrowed = (_of_namespace(node, namespace) for node in report.nodes)
    nodes = tuple(node for node in narrowed if node.gpus or node.pods)
    shown = {node.name for node in nodes}
    return replace(
        report,
        nodes=nodes,
        notes=tuple(note for note in report.notes if note.node in shown and note.namespace in (None, namespace)),
    )


def _of_namespace(node: ClusterNode, namespace: str) -> ClusterNode:
    pods = tuple(pod for pod in node.pods if pod.namespace == namespace)
    asked = {ask.resource for pod in pods for ask in pod.asks}
    narrowed = [
        replace(gpu, holders=tuple(one for one in gpu.holders if one.namespace == namespace), holders_omitted=0)
        for gpu in node.gpus
    ]
    return replace(
        node,
        pods=pods,
        gpus=tuple(gpu for gpu in narrowed if gpu.holders),
        resources=tuple(one for one in node.resources if one.name in asked or one.slices is not None),
    )


def notes_by_kind(report: ClusterReport) -> dict[str, list[Note]]:
    """The notes, kinds in the order in which they first appear by name, those about nodes first."""
    by_kind: dict[str, list[Note]] = {}
    for note in report.notes:
        by_kind.setdefault(note.kind, []).append(note)
    return {kind: by_kind[kind] for kind in sorted(by_kind, key=lambda kind: (_RANK.get(kind, len(_RANK)), kind))}


_ORDER = (
    "not-ready", "cordoned", "gone", "agent-silent", "no-resource", "unhealthy", "offers-nothing", "over",
    "leaked", "unauthorised", "foreign", "contested", "unserved", "over-promise", "unattributed", "quarantined",
    "draining", "waiting", "init-only", "differs", "policy-refused", "omitted", "warning",
)  # fmt: skip
_RANK = {kind: rank for rank, kind in enumerate(_ORDER)}
