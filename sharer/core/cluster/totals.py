"""Sums over a fleet, by resource and product."""

from __future__ import annotations

from collections.abc import Iterable

from sharer.core.cluster.report import ClusterGpu, ClusterNode, NodeResource, Total


class _Sum:
    """A sum that is unknown as soon as one of its parts is."""

    __slots__ = ("known", "value")

    def __init__(self) -> None:
        self.value = 0
        self.known = True

    def add(self, part: int | None) -> None:
        if part is None:
            self.known = False
        else:
            self.value += part

    @property
    def result(self) -> int | None:
        return self.value if self.known else None


_SUMMED = ("held", "free", "out_of_reach", "draining", "quarantined", "memory_bytes", "promised_bytes", "used_bytes")


class _Group:
    """One resource on one product."""

    def __init__(self) -> None:
        self.nodes: set[str] = set()
        self.gpus = 0
        self.slices = 0
        self.largest_free_bytes: int | None = None
        self.sums = {name: _Sum() for name in _SUMMED}

    def add_gpu(self, node: str, gpu: ClusterGpu) -> None:
        self.nodes.add(node)
        self.gpus += 1
        self.slices += gpu.slices
        for name, its_sum in self.sums.items():
            its_sum.add(getattr(gpu, name))
        if gpu.largest_free_bytes is not None:
            self.largest_free_bytes = max(self.largest_free_bytes or 0, gpu.largest_free_bytes)

    def add_resource(self, node: str, resource: NodeResource) -> None:
        """Of a node without an agent: only what pods ask for is known."""
        self.nodes.add(node)
        self.slices += resource.allocatable or 0
        parts = {"held": resource.requested, "free": resource.free, "out_of_reach": resource.out_of_reach}
        for name, its_sum in self.sums.items():
            its_sum.add(parts.get(name))


def total(nodes: Iterable[ClusterNode]) -> tuple[Total, ...]:
    """A line for each resource on each product, in the order of their names; devices that offer nothing come last."""
    groups: dict[tuple[str | None, str | None], _Group] = {}
    for node in nodes:
        for gpu in node.gpus:
            groups.setdefault((gpu.resource, gpu.product), _Group()).add_gpu(node.name, gpu)
        for resource in node.resources:
            if resource.slices is None:
                groups.setdefault((resource.name, node.product), _Group()).add_resource(node.name, resource)
    ordered = sorted(groups.items(), key=lambda item: (item[0][0] is None, item[0][0] or "", item[0][1] or ""))
    return tuple(
        Total(
            resource=resource,
            product=product,
            nodes=len(group.nodes),
            gpus=group.gpus or None,
            slices=group.slices,
            largest_free_bytes=group.largest_free_bytes,
            **{name: its_sum.result for name, its_sum in group.sums.items()},
        )
        for (resource, product), group in ordered
    )
