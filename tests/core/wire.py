"""What the kubelet would really be sent."""

from __future__ import annotations

from collections.abc import Iterable

from sharer.kubeletapi.deviceplugin_pb2 import Device, ListAndWatchResponse, NUMANode, TopologyInfo


def worst_case_wire_bytes(ids: Iterable[str]) -> int:
    """The real message, all Unhealthy, on the farthest NUMA node that still counts as one byte."""
    topology = TopologyInfo(nodes=[NUMANode(ID=127)])
    return ListAndWatchResponse(
        devices=[Device(ID=one, health="Unhealthy", topology=topology) for one in ids]
    ).ByteSize()
