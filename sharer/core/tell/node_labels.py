"""What a Node's labels say about its GPUs, for node selectors and people (opt-in).

Only what seldom changes: a label is a write to an object that every scheduler and controller watches. What is not known
has no label, and no GPUs have none at all. Values are what the API server takes: 63 characters of letters, digits,
`-`, `_` and `.`, with a letter or digit at both ends, whatever a GPU is called.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from sharer.core.inventory import Inventory
from sharer.core.quantities import MIB
from sharer.core.slices.plan import Plan

PRODUCT = "sharer.dev/gpu.product"
MEMORY = "sharer.dev/gpu.memory-mib"  # of the smallest GPU
COUNT = "sharer.dev/gpu.count"
DRIVER = "sharer.dev/gpu.driver"
STRATEGY = "sharer.dev/gpu.strategy"
SLICES = "sharer.dev/gpu.slices"
KEYS = (PRODUCT, MEMORY, COUNT, DRIVER, STRATEGY, SLICES)
MIXED = "mixed"  # the node has several

_MOST = 63
_OTHER = re.compile(r"[^A-Za-z0-9._-]+")
_EDGES = "._-"


def node_labels(inventory: Inventory, plan: Plan) -> dict[str, str]:
    """The labels of a node. GPUs that are lost do not count."""
    gpus = [gpu for gpu in inventory.gpus if gpu.lost is None]
    if not gpus:
        return {}
    memories = [gpu.memory_bytes for gpu in gpus if gpu.memory_bytes is not None]
    wanted = {
        PRODUCT: _only(label_value(gpu.product) for gpu in gpus if gpu.product is not None),
        MEMORY: str(min(memories) // MIB) if len(memories) == len(gpus) else None,
        COUNT: str(len(gpus)),
        DRIVER: None if inventory.driver_version is None else label_value(inventory.driver_version),
        STRATEGY: _only(resource.strategy.policy_name for resource in plan.resources if resource.slices),
        SLICES: str(sum(len(resource.slices) for resource in plan.resources)),
    }
    return {key: value for key, value in wanted.items() if value}


def label_value(text: str) -> str:
    """The text as a label's value; empty if nothing of it can be in one.

    >>> label_value("NVIDIA H100 80GB HBM3"), label_value("(Quadro RTX™ 6000)"), label_value("™")
    ('NVIDIA-H100-80GB-HBM3', 'Quadro-RTX-6000', '')
    """
    return _OTHER.sub("-", text).strip(_EDGES)[:_MOST].rstrip(_EDGES)


def _only(values: Iterable[str]) -> str | None:
    """The one value that all have; None: there is none."""
    distinct = set(values)
    return next(iter(distinct)) if len(distinct) == 1 else MIXED if distinct else None
