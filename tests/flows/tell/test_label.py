"""The Node's labels are written when they are not as they should be, and at no other time."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from sharer.core.errors import NodeError
from sharer.core.holders.observations import NodeSeen
from sharer.core.inventory import Inventory
from sharer.core.slices.plan import Plan
from sharer.core.tell.node_labels import COUNT, KEYS, PRODUCT
from sharer.flows.state import NodeState, NodeView
from sharer.flows.tell.label import AGAIN_S, Labelling
from tests.core.builders import gpu, node


class Cluster:
    """A Node, and who labels it."""

    def __init__(self, **labels: str) -> None:
        self.node: NodeSeen | None = NodeSeen(uid="uid-1", name="node-7", labels=labels)
        self.written: list[dict[str, str]] = []
        self.refusal: NodeError | None = None
        self.is_connected = True
        self.labelling = Labelling(lambda: self if self.is_connected else None, lambda: self.node)

    def label_node(self, name: str, uid: str, labels: Mapping[str, str]) -> None:
        assert (name, uid) == ("node-7", "uid-1")
        if self.refusal is not None:
            raise self.refusal
        self.written.append(dict(labels))

    def see(self, labels: Mapping[str, str]) -> None:
        """The watch tells of these labels."""
        self.node = NodeSeen(uid="uid-1", name="node-7", labels=labels)


def view(inventory: Inventory | None) -> NodeView:
    state = NodeState()
    return state.change(inventory=inventory, plan=Plan())


ONE, NONE = view(node(gpu(0))), view(node())


def test_labels_are_written_once_and_not_again_when_the_node_has_them() -> None:
    cluster = Cluster(zone="a")
    assert cluster.labelling.step(ONE, 0.0) is not None
    [written] = cluster.written
    assert written[COUNT] == "1"
    cluster.see({"zone": "a", **written})
    assert cluster.labelling.step(ONE, 1.0) is None
    assert len(cluster.written) == 1


def test_a_restarted_agent_writes_nothing_if_nothing_has_changed() -> None:
    first = Cluster()
    first.labelling.step(ONE, 0.0)
    second = Cluster(**first.written[0])
    assert second.labelling.step(ONE, 0.0) is None
    assert second.written == []


def test_labels_go_when_the_gpus_go_and_those_of_others_stay_theirs() -> None:
    cluster = Cluster(zone="a", **{PRODUCT: "old", COUNT: "1"})
    cluster.labelling.step(NONE, 0.0)
    assert cluster.written == [{}]
    assert "zone" not in KEYS


def test_nothing_is_written_before_gpus_node_and_connection_are_known() -> None:
    cluster = Cluster(**{COUNT: "4"})
    assert cluster.labelling.step(view(None), 0.0) is None
    cluster.is_connected = False
    assert cluster.labelling.step(ONE, 0.0) is None
    cluster.is_connected, cluster.node = True, None
    assert cluster.labelling.step(ONE, 0.0) is None
    assert cluster.written == []


def test_somebody_who_keeps_writing_them_is_not_answered_at_once() -> None:
    cluster = Cluster()
    cluster.labelling.step(ONE, 0.0)
    cluster.see({COUNT: "9"})
    assert cluster.labelling.step(ONE, 1.0) == AGAIN_S
    assert len(cluster.written) == 1
    cluster.labelling.step(ONE, AGAIN_S)
    assert len(cluster.written) == 2


def test_a_refusal_is_for_whoever_calls_and_is_tried_again() -> None:
    cluster = Cluster()
    cluster.refusal = NodeError("403")
    with pytest.raises(NodeError):
        cluster.labelling.step(ONE, 0.0)
    cluster.refusal = None
    cluster.labelling.step(ONE, 1.0)
    assert len(cluster.written) == 1
