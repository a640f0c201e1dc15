"""Which of the free slices a container should get: advice for the kubelet, worked out the same way every time.

The measures, each compared from left to right, smaller is better:

* packed  (GPUs touched, idle GPUs broken into, slices left free on the touched GPUs). A GPU is idle when all its
  slices are available. So whole GPUs stay whole as long as possible, and the fullest GPU that fits is filled up.
* spread  (GPUs touched, highest share in use that a touched GPU ends up with). So load is level over the GPUs.

One container is on one GPU when it fits, and never on more GPUs than needed, under both: several slices then add up
to one larger share. What the kubelet says must be included is, and its GPUs count as touched. Ties go to the GPU that
comes first in NVML's order, and to the lowest replica on it. Nothing is reserved: the kubelet may choose otherwise.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from sharer.core.policy.model import Placement
from sharer.core.slices.linked import Links, best_linked
from sharer.core.values import dataclass

Layout = Sequence[Mapping[str, int]]
"""Where the slices of a resource lie: IDs and replicas on each GPU or MIG device, in NVML's order."""

_NEARLY = 1e-6  # a product of floats may be a little less than the whole number that it should be


def prefer_linked(
    layout: Layout, links: Links, available: Sequence[str], must_include: Iterable[str], size: int
) -> list[str]:
    """The same for a resource of whole GPUs, one slice each: those that belong together (core/slices/linked)."""
    ranks = {device_id: rank for rank, replicas in enumerate(layout) for device_id in replicas}
    must = list(dict.fromkeys(must_include))[: max(size, 0)]
    ids = {ranks[device_id]: device_id for device_id in sorted({*available, *must}) if device_id in ranks}
    forced = [ranks[device_id] for device_id in must if device_id in ranks]
    best = best_linked(links, ids, forced, size - (len(must) - len(forced)))
    return _filled([*must, *(ids[rank] for rank in best)], available, size)


def _filled(chosen: Iterable[str], rest: Iterable[str], size: int) -> list[str]:
    """The chosen IDs, once each, and as many others as are missing, in their own order."""
    ids = dict.fromkeys(chosen)
    if len(ids) < size:
        ids |= dict.fromkeys(sorted(set(rest) - ids.keys())[: size - len(ids)])
    return list(ids)


@dataclass(slots=True)
class _Gpu:
    """One GPU during one choice."""

    rank: int
    replicas: Mapping[str, int]  # of all its slices
    free: AbstractSet[str]
    taken: int  # of the free ones, for this container: must-includes

    @property
    def room(self) -> int:
        return len(self.free) - self.taken

    @property
    def idle(self) -> bool:
        return len(self.free) == len(self.replicas) and self.taken == 0

    @property
    def used(self) -> int:
        return len(self.replicas) - self.room

    def share_with(self, extra: int) -> float:
        """The share of this GPU in use if the container took `extra` more slices of it.

        Good for comparing: equal shares are equal floats, since a division is rounded once.
        """
        return (self.used + extra) / len(self.replicas)

    def lowest(self, count: int, without: AbstractSet[str]) -> list[str]:
        """So many of the free slices, the lowest replicas first."""
        return sorted(self.free - without, key=lambda device_id: (self.replicas[device_id], device_id))[:count]


def prefer(
    layout: Layout, placement: Placement, available: Sequence[str], must_include: Iterable[str], size: int
) -> list[str]:
    """Choose `size` of the available IDs, the must-includes among them; fewer only if there are fewer.

    IDs that are not in the layout are used last, in their own order. Never raises for any input: an error here would
    reject the pod (kubelet-contract §6). Counts by sets, because the kubelet names every free ID in each request.
    """
    chosen = dict.fromkeys(list(dict.fromkeys(must_include))[: max(size, 0)])
    named = set(available)
    gpus = []
    for rank, replicas in enumerate(layout):
        if free := replicas.keys() & named:
            gpus.append(_Gpu(rank, replicas, free, taken=len(free & chosen.keys())))
    strangers = named.difference(*layout) if sum(len(gpu.free) for gpu in gpus) < len(named) else ()
    wanted = min(size - len(chosen), sum(gpu.room for gpu in gpus))
    if wanted > 0:
        choose = _pack if placement is Placement.PACKED else _spread
        for gpu, count in choose(gpus, wanted):
            chosen |= dict.fromkeys(gpu.lowest(count, without=chosen.keys()))
    return _filled(chosen, strangers, size)


def _fewest(gpus: Sequence[_Gpu], wanted: int) -> tuple[list[_Gpu], list[_Gpu], int]:
    """The GPUs that the must-includes touch, the others with room, and how many of those are needed at least."""
    forced = [gpu for gpu in gpus if gpu.taken]
    others = [gpu for gpu in gpus if not gpu.taken and gpu.room]
    missing = wanted - sum(gpu.room for gpu in forced)
    needed = 0
    for room in sorted((gpu.room for gpu in others), reverse=True):
        if missing <= 0:
            break
        missing -= room
        needed += 1
    return forced, others, needed


def _pack(gpus: Sequence[_Gpu], wanted: int) -> list[tuple[_Gpu, int]]:
    forced, others, needed = _fewest(gpus, wanted)
    missing = wanted - sum(gpu.room for gpu in forced)
    if needed == 1:
        extra = [min((gpu for gpu in others if gpu.room >= missing), key=lambda gpu: (gpu.idle, gpu.room, gpu.rank))]
    else:
        extra = _best_subset(others, needed, missing)
    # Fill up the GPU with the least room first: what is left over then lies on one GPU, in one block.
    counts = []
    for gpu in sorted(forced + extra, key=lambda gpu: (gpu.room, gpu.rank)):
        counts.append((gpu, min(gpu.room, wanted)))
        wanted -= counts[-1][1]
    return counts


def _best_subset(gpus: Sequence[_Gpu], count: int, missing: int) -> list[_Gpu]:
    """The `count` GPUs with room for `missing` that break fewest idle GPUs and leave fewest slices free.

    Exact: `reach[i][k][b]` holds, as the bits of a number, every sum of room that k of the GPUs from i on can have
    with b idle ones among them.
    """
    if count == 0:
        return []
    reach = [[[0] * (count + 1) for _ in range(count + 1)] for _ in range(len(gpus) + 1)]
    reach[-1][0][0] = 1
    for i in range(len(gpus) - 1, -1, -1):
        room, idle = gpus[i].room, int(gpus[i].idle)
        for k in range(count + 1):
            for broken in range(k + 1):
                sums = reach[i + 1][k][broken]
                if k and broken >= idle:
                    sums |= reach[i + 1][k - 1][broken - idle] << room
                reach[i][k][broken] = sums
    broken = next(b for b in range(count + 1) if reach[0][count][b] >> missing)
    enough = reach[0][count][broken] >> missing
    total = missing + (enough & -enough).bit_length() - 1
    chosen: list[_Gpu] = []
    for i, gpu in enumerate(gpus):
        left, idle = count - len(chosen), int(gpu.idle)
        if (
            left
            and broken >= idle
            and total >= gpu.room
            and reach[i + 1][left - 1][broken - idle] >> (total - gpu.room) & 1
        ):
            chosen.append(gpu)
            broken -= idle
            total -= gpu.room
    return chosen


def _spread(gpus: Sequence[_Gpu], wanted: int) -> list[tuple[_Gpu, int]]:
    forced, others, needed = _fewest(gpus, wanted)
    if needed == 1 and not forced:
        fitting = (gpu for gpu in others if gpu.room >= wanted)
        return [(min(fitting, key=lambda gpu: (gpu.share_with(wanted), gpu.rank)), wanted)]
    chosen = forced + _lowest_level(forced, others, needed, wanted)
    counts = {gpu.rank: 0 for gpu in chosen}
    open_gpus = [(gpu.share_with(1), gpu.rank, gpu) for gpu in chosen if gpu.room]
    heapq.heapify(open_gpus)
    for _ in range(wanted):
        _, rank, gpu = heapq.heappop(open_gpus)
        counts[rank] += 1
        if counts[rank] < gpu.room:
            heapq.heappush(open_gpus, (gpu.share_with(counts[rank] + 1), rank, gpu))
    return [(gpu, counts[gpu.rank]) for gpu in chosen]


def _lowest_level(forced: list[_Gpu], others: list[_Gpu], needed: int, wanted: int) -> list[_Gpu]:
    """The `needed` GPUs which, beside the forced ones, hold `wanted` slices at the lowest highest share.

    Found by bisection over every share that some GPU can reach: at a given level, the best GPUs are those that can
    give most without going above it.
    """

    def room_below(gpu: _Gpu, level: float) -> int:
        return max(0, min(gpu.room, int(level * len(gpu.replicas) + _NEARLY) - gpu.used))

    def best(level: float) -> list[_Gpu]:
        return sorted(others, key=lambda gpu: (-room_below(gpu, level), gpu.share_with(0), gpu.rank))[:needed]

    levels = sorted({gpu.share_with(extra) for gpu in forced + others for extra in range(gpu.room + 1)})
    low, high = 0, len(levels) - 1
    while low < high:
        middle = (low + high) // 2
        level = levels[middle]
        if sum(room_below(gpu, level) for gpu in forced + best(level)) >= wanted:
            high = middle
        else:
            low = middle + 1
    return best(levels[low])
