"""What the agent weighs after each hour, and what of it must be flat."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

WARM_UP = 0.2  # of the hours, at the beginning, in which what is kept for ever is filled
MOST_GROWTH_MIB = 2.0  # after that
MOST_REFUSED = 0.02  # of all pods
MOST_SLOWER = 2.0  # a busy machine is not a leak: one that matters grows with every pod
MOST_MORE = 3  # threads or files: some of gRPC's come and go; one for each pod or restart that stays makes many more


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """At the end of an hour, with no pod on the node."""

    hour: int
    pods: int  # of this hour, that ran
    refused: int  # pods that the kubelet turned away: it knew of more slices than there were a moment later
    resident_mib: float
    threads: int
    files: int
    allocate_us: float  # mean of this hour's Allocate calls, by the agent's own metrics
    start_ms: float  # median of this hour's pods, from their binding to their start, as the kubelet sees it
    busy_ms: float  # the agent's processor time for each pod of this hour, with everything else that happened


def grown(
    samples: Sequence[Sample],
    *,
    most_growth_mib: float = MOST_GROWTH_MIB,
    most_slower: float = MOST_SLOWER,
    times: Sequence[str] = ("allocate_us", "busy_ms"),
) -> Iterator[str]:
    """What is not flat after the warm-up. Of memory and times the ends are compared, each the median of some hours.

    `times`: those that are looked at. `allocate_us` is no processor time: beside others it says nothing.
    """
    warm = samples[max(1, round(len(samples) * WARM_UP)) :]
    some = max(1, len(warm) // 4)
    first, last = warm[:some], warm[-some:]
    growth_mib = statistics.median(one.resident_mib for one in last) - statistics.median(
        one.resident_mib for one in first
    )
    if growth_mib > most_growth_mib:
        yield f"resident memory has grown by {growth_mib:.1f} MiB, and may by {most_growth_mib:g}"
    refused, pods = sum(one.refused for one in samples), sum(one.pods for one in samples)
    if refused > MOST_REFUSED * pods:
        yield f"{refused} pods were turned away, beside {pods} that ran"
    for what in ("threads", "files"):
        before = max(getattr(one, what) for one in warm[: len(warm) // 2 or 1])
        after = min(getattr(one, what) for one in last)  # a connection that lasts a moment is no leak
        if after > before + MOST_MORE:
            yield f"there were {before} {what}, and there are {after}"
    for what in times:
        before_time, after_time = (statistics.median(getattr(one, what) for one in part) for part in (first, last))
        if after_time > most_slower * before_time:
            yield f"{what} has grown from {before_time:.2f} to {after_time:.2f}"
