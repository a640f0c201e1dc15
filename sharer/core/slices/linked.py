"""Which whole GPUs belong together: for a container that asks for several `exclusive` GPUs.

The measure, compared from left to right: (links within the chosen set, more is better; links cut between the set and
the GPUs that stay free, fewer is better; NVML's order). So NVLink islands are given out whole and stay whole, and a
container that asks for one GPU gets the one that others miss least.

Exact for up to 20,000 possible sets (16 GPUs, whatever the size). Above that, a set grows from each GPU by the best
next one, and the best of these sets is taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import comb

from sharer.core.inventory import Inventory, PcieDistance, Topology

MAX_SETS = 20_000

Links = Sequence[Sequence[int]]
"""How well each GPU is linked to each other one, by rank; larger is closer."""

_PER_NVLINK = 100
_BY_DISTANCE = {
    PcieDistance.SAME_BOARD: 60,
    PcieDistance.ONE_SWITCH: 50,
    PcieDistance.SEVERAL_SWITCHES: 40,
    PcieDistance.HOST_BRIDGE: 30,
    PcieDistance.NUMA_NODE: 20,
    PcieDistance.SYSTEM: 10,
}
_UNKNOWN_SAME_NODE, _UNKNOWN = 20, 10  # what cannot be read counts as the least that it can be


def make_links(uuids: Sequence[str], topology: Topology, inventory: Inventory) -> Links:
    """The closeness of every pair of these GPUs: NVLinks, else the distance on PCIe, else the NUMA node."""
    nodes: Mapping[str, int | None] = {gpu.uuid: gpu.numa_node for gpu in inventory.gpus}
    known = {frozenset(link.uuids): link for link in topology.links}
    links = [[0] * len(uuids) for _ in uuids]
    for one, first in enumerate(uuids):
        for other, second in enumerate(uuids[:one]):
            link = known.get(frozenset((first, second)))
            if link is not None and link.nvlinks:
                closeness = _PER_NVLINK * link.nvlinks
            elif link is not None and link.pcie is not None:
                closeness = _BY_DISTANCE[link.pcie]
            else:
                near = nodes.get(first) is not None and nodes.get(first) == nodes.get(second)
                closeness = _UNKNOWN_SAME_NODE if near else _UNKNOWN
            links[one][other] = links[other][one] = closeness
    return links


def best_linked(links: Links, free: Iterable[int], forced: Iterable[int], size: int) -> list[int]:
    """The ranks of the `size` GPUs that belong together best, among the free ones and with the forced ones.

    Fewer only if there are fewer. The forced ones come first, the others in NVML's order.
    """
    start = list(dict.fromkeys(forced))[:size]
    candidates = sorted(set(free) - set(start))
    missing = min(size - len(start), len(candidates))
    if missing <= 0:
        return start
    everything = candidates + start
    reach = {rank: sum(links[rank][other] for other in everything) for rank in candidates}
    gain = {rank: sum(links[rank][other] for other in start) for rank in candidates}
    if comb(len(candidates), missing) <= MAX_SETS:
        return start + _search(links, candidates, gain, reach, missing)
    return start + _grow(links, candidates, gain, reach, missing)


def _search(
    links: Links, candidates: Sequence[int], gain: Mapping[int, int], reach: Mapping[int, int], size: int
) -> list[int]:
    """The best set, by trying every one. `gain` is what a candidate's links to the chosen ones add."""
    best: tuple[int, int] | None = None
    found: list[int] = []

    def extend(start: int, chosen: list[int], inside: int, outside: int, gains: list[int]) -> None:
        nonlocal best, found
        last = len(chosen) == size - 1
        for position in range(start, len(candidates) - (size - len(chosen)) + 1):
            rank = candidates[position]
            now_inside, now_outside = inside + gains[position], outside + reach[rank]
            if not last:
                row = links[rank]
                grown = [gained + row[other] for gained, other in zip(gains, candidates, strict=True)]
                extend(position + 1, [*chosen, rank], now_inside, now_outside, grown)
            elif best is None or (-now_inside, now_outside) < best:
                best, found = (-now_inside, now_outside), [*chosen, rank]

    extend(0, [], 0, 0, [gain[rank] for rank in candidates])
    return found


def _grow(
    links: Links, candidates: Sequence[int], gain: Mapping[int, int], reach: Mapping[int, int], size: int
) -> list[int]:
    """A good set: the best of those that grow from each candidate."""

    def value(chosen: Sequence[int]) -> tuple[int, int, Sequence[int]]:
        inside = sum(gain[one] + sum(links[one][other] for other in chosen[:at]) for at, one in enumerate(chosen))
        return -inside, sum(reach[one] for one in chosen), chosen

    def grown(seed: int) -> list[int]:
        chosen = [seed]
        gains = {rank: gain[rank] + links[rank][seed] for rank in candidates if rank != seed}
        while len(chosen) < size:
            best = min(gains, key=lambda rank: (-gains[rank], reach[rank], rank))
            chosen.append(best)
            del gains[best]
            for rank in gains:
                gains[rank] += links[rank][best]
        return sorted(chosen)

    return min((grown(seed) for seed in candidates), key=value)
