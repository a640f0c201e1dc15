"""Keep the Node's labels of its GPUs as they should be: a step of the thread that writes to the API server.

The labels are ours by server-side apply, under a name of their own: those of other owners are not touched, and those
that are not true any more are taken away. What is written is compared with the Node as it is watched, so nothing is
written while nothing has changed, also after a restart. Somebody else who keeps writing them is not answered at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Protocol

from sharer.core.holders.observations import NodeSeen
from sharer.core.tell.node_labels import KEYS, node_labels
from sharer.flows.state import NodeView

AGAIN_S = 60.0  # between two writes of the same

log = logging.getLogger(__name__)


class NodeLabeller(Protocol):
    """Writes labels of Nodes."""

    def label_node(self, name: str, uid: str, labels: Mapping[str, str]) -> None:
        """Have the Node of this name and UID carry just these labels of ours. Raises NodeError."""
        ...


class Labelling:
    """Remembers what it wrote when. For the announcing thread."""

    def __init__(self, client: Callable[[], NodeLabeller | None], node: Callable[[], NodeSeen | None]) -> None:
        """Both are None as long as there is no connection, or the Node is not known."""
        self._client, self._node = client, node
        self._written: dict[str, str] | None = None
        self._next_s = 0.0

    def step(self, view: NodeView, now_s: float) -> float | None:
        """See `flows.tell.announce.Step`. Raises NodeError."""
        client, node = self._client(), self._node()
        if client is None or node is None or view.inventory is None:
            return None
        wanted = node_labels(view.inventory, view.plan)
        if wanted == {key: value for key, value in node.labels.items() if key in KEYS}:
            return None
        if wanted == self._written and now_s < self._next_s:
            return self._next_s
        client.label_node(node.name, node.uid, wanted)
        self._written, self._next_s = wanted, now_s + AGAIN_S
        said = ", ".join(f"{key}={value}" for key, value in wanted.items())
        log.info("labelled the Node: %s", said or "there are no GPUs, so no labels")
        return self._next_s
