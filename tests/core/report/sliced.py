"""Nodes whose GPUs are cut into many slices, of which some are held."""

from __future__ import annotations

from dataclasses import replace

from sharer.core.known import Known
from tests.core.builders import gpu, node, policy, rule, time_slicing
from tests.core.evidence import held, holder, key
from tests.core.nodes import UNLIMITED, known


def sliced(count: int = 4, *, gpus: int = 1, holders: int = 0) -> Known:
    """GPUs in so many slices each without limits, the first of which are held."""
    keys = [key(replica, index=index) for index in range(gpus) for replica in range(count)][:holders]
    wanted = policy(rule(time_slicing(count), memory=UNLIMITED))
    return known(node(*(gpu(index) for index in range(gpus))), wanted, entries=held(*keys))


def crowded(holders: int, pod: str, *, gpus: int = 16) -> Known:
    """A node with 16 GPUs in 12 slices each."""
    what = sliced(12, gpus=gpus, holders=holders)
    named = {
        one: replace(entry, owner=replace(holder(number), pod=f"{pod}-{number}", namespace="ns", uid=f"{number:036d}"))
        for number, (one, entry) in enumerate(what.ledger.entries.items())
    }
    return replace(what, ledger=replace(what.ledger, entries=named))
