"""The topology manager, as far as devices are concerned, container scope (kubelet-contract §3, §6, §14).

It exists here for what a plugin can do wrong: a vanished ID crashes the kubelet while hints are computed, and NUMA
node -1 makes a pod unplaceable.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from sharer.simulation.kubelet.devices import DeviceManager
from sharer.simulation.kubelet.records import KubeletPanic, KubeletSettings, TopologyPolicy


class Hint(NamedTuple):
    """Where a request can be satisfied. `nodes` None: anywhere."""

    nodes: frozenset[int] | None
    preferred: bool


ANYWHERE = Hint(None, True)


def resource_hints(
    manager: DeviceManager,
    machine_nodes: Sequence[int],
    resource: str,
    requested: int,
    held: AbstractSet[str] | None,
    reusable: AbstractSet[str],
) -> list[Hint] | None:
    """The hints of one resource for one container; None: no preference; []: unsatisfiable. Raises KubeletPanic."""
    if not manager.has_topology(resource):
        return None
    if held:
        if len(held) != requested:
            return []
        return _hints(manager, machine_nodes, resource, held, frozenset(), requested)
    free = manager.healthy.get(resource, set()) - manager.allocated.get(resource, set())
    if len(free | reusable) < requested:
        return []
    return _hints(manager, machine_nodes, resource, free, reusable, requested)


def _hints(
    manager: DeviceManager,
    machine_nodes: Sequence[int],
    resource: str,
    free: AbstractSet[str],
    reusable: AbstractSet[str],
    requested: int,
) -> list[Hint]:
    listed = manager.listed[resource]
    for device_id in sorted(free | reusable):
        if device_id not in listed:
            raise KubeletPanic(
                f"topology hints for {resource}: device {device_id} is held and not in the list any more"
                " (runtime error: invalid memory address or nil pointer dereference)"
            )
    smallest = len(machine_nodes)
    masks: list[frozenset[int]] = []
    for size in range(1, len(machine_nodes) + 1):
        for mask in map(frozenset, itertools.combinations(sorted(machine_nodes), size)):
            if sum(not mask.isdisjoint(device.numa_nodes) for device in listed.values()) >= requested:
                smallest = min(smallest, size)
            outside = any(listed[i].numa_nodes and mask.isdisjoint(listed[i].numa_nodes) for i in reusable)
            inside = sum(not mask.isdisjoint(listed[i].numa_nodes) for i in free)
            if not outside and inside + len(reusable) >= requested:
                masks.append(mask)
    return [Hint(mask, len(mask) == smallest) for mask in masks]


def best_hint(settings: KubeletSettings, hints: Mapping[str, list[Hint] | None]) -> tuple[Hint, bool]:
    """The hint for the whole container, and whether the policy admits it."""
    policy = settings.topology_policy
    single = policy is TopologyPolicy.SINGLE_NUMA_NODE
    choices: list[list[Hint]] = []
    for of_resource in hints.values():
        if of_resource is None:
            choices.append([ANYWHERE])
        elif not of_resource:
            choices.append([Hint(None, False)])
        else:
            choices.append(
                [hint for hint in of_resource if not single or (hint.nodes is not None and len(hint.nodes) == 1)]
            )
    best = Hint(frozenset(settings.numa_nodes), False)
    for combination in itertools.product(*choices):
        nodes = frozenset(settings.numa_nodes).intersection(*(h.nodes for h in combination if h.nodes is not None))
        agreed = len({hint.nodes for hint in combination if hint.nodes is not None}) <= 1
        merged = Hint(nodes, agreed and all(hint.preferred for hint in combination))
        if nodes and (not merged.preferred, len(nodes), sorted(nodes)) < (not best.preferred, *_rank(best)):
            best = merged
    if single and best.nodes == frozenset(settings.numa_nodes):
        best = Hint(None, best.preferred)
    return best, best.preferred or policy in (TopologyPolicy.NONE, TopologyPolicy.BEST_EFFORT)


def _rank(hint: Hint) -> tuple[int, list[int]]:
    nodes = hint.nodes or frozenset()
    return len(nodes), sorted(nodes)


def split_by_affinity(
    manager: DeviceManager, resource: str, available: AbstractSet[str], nodes: frozenset[int] | None
) -> tuple[set[str], set[str], set[str]]:
    """The available IDs as (on the hinted nodes, elsewhere, without topology); without a hint all are of the last."""
    if nodes is None or not manager.has_topology(resource):
        return set(), set(), set(available)
    aligned, unaligned, unplaced = set[str](), set[str](), set[str]()
    for device_id in available:
        on = manager.listed[resource][device_id].numa_nodes
        (aligned if not nodes.isdisjoint(on) else unaligned if on else unplaced).add(device_id)
    return aligned, unaligned, unplaced
