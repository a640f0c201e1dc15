"""What the kubelet was shown, message by message: rules that must hold at every moment, not only when all is quiet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sharer.core.device_id import recognise
from sharer.simulation.kubelet import ListMessage, Stream
from tests.faults.policies import MEMORY_MIB

_Moment = tuple[float, int, str, ListMessage | None]  # None: the stream has ended


def wrong_moments(streams: Sequence[Stream]) -> Iterator[str]:
    """Every moment at which what was listed Healthy was more than a GPU has, or one ID under two names."""
    moments: list[_Moment] = []
    for stream in streams:
        moments += [(one.at_s, stream.number, stream.resource, one) for one in stream.messages]
        if stream.ended_at_s is not None:
            moments.append((stream.ended_at_s, stream.number, stream.resource, None))
    shown: dict[str, tuple[int, ListMessage]] = {}
    for at_s, number, resource, message in sorted(moments, key=lambda moment: moment[:2]):
        if message is not None:
            shown[resource] = (number, message)
        elif resource in shown and shown[resource][0] == number:
            del shown[resource]
        healthy = [one for _, last in shown.values() for one in sorted(last.healthy_ids)]
        twice = {one for one in healthy if healthy.count(one) > 1}
        if twice:
            yield f"at {at_s:.2f}: {', '.join(sorted(twice))} Healthy under two resources"
        for uuid, promised_mib in promised(set(healthy)).items():
            if promised_mib > MEMORY_MIB:
                yield f"at {at_s:.2f}: {promised_mib} MiB of {uuid} listed Healthy, and it has {MEMORY_MIB}"


def promised(ids: set[str]) -> dict[str, int]:
    """The MiB that these IDs promise, by UUID."""
    sums: dict[str, int] = {}
    for one in ids:
        parsed = recognise(one)
        if parsed is not None and parsed.limit_mib is not None:
            sums[parsed.uuid] = sums.get(parsed.uuid, 0) + parsed.limit_mib
    return sums
