"""An agent writes what is its own node's. The real server's part in it is measured in api-server-facts §2."""

from __future__ import annotations

from typing import Any

import pytest

from tests.deploy.agent_writes import judged
from tests.deploy.cel import Refused
from tests.deploy.chart import Object, objects


def node(labels: dict[str, str] | None = None, *, spec: Any = None, **metadata: object) -> dict[str, object]:
    """`spec`: of a Node."""
    return {
        "metadata": {"name": "n1", **({"labels": labels} if labels is not None else {}), **metadata},
        "spec": spec or {},
    }


def messages(found: list[Refused] | None) -> str:
    assert found
    return " ".join(one.message for one in found)


@pytest.mark.parametrize(("resource", "sub"), [("gpunodes", ""), ("gpunodes", "status"), ("leases", "")])
@pytest.mark.parametrize("operation", ["CREATE", "UPDATE"])
def test_an_agent_writes_the_objects_of_its_own_node(resource: str, sub: str, operation: str) -> None:
    assert judged(resource, "n1", node(), operation=operation, sub=sub) == []


@pytest.mark.parametrize(("resource", "sub"), [("gpunodes", ""), ("gpunodes", "status"), ("leases", ""), ("nodes", "")])
def test_an_agent_writes_nothing_of_another_node(resource: str, sub: str) -> None:
    """Threat 8."""
    found = messages(judged(resource, "n2", node(), node(), sub=sub))
    assert f"the agent of node n1 may not write {resource} n2" in found


@pytest.mark.parametrize("claim", [[], ["n1", "n2"]])
def test_a_token_that_is_bound_to_no_node_writes_nothing(claim: list[str]) -> None:
    assert "not bound to a pod on a node" in messages(judged("gpunodes", "n1", node(), node=claim))


def test_other_users_are_no_business_of_that_policy() -> None:
    assert judged("nodes", "n2", node(), node(), user="system:serviceaccount:other:sharer-agent") is None


def test_labels_of_ours_may_come_change_and_go() -> None:
    old = node({"zone": "a", "sharer.dev/count": "4", "sharer.dev/driver": "615"})
    assert judged("nodes", "n1", node({"zone": "a", "sharer.dev/count": "8", "sharer.dev/product": "x"}), old) == []
    assert judged("nodes", "n1", node({"sharer.dev/count": "8"}), node()) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (node({"zone": "a"}), node({"zone": "b"})),
        (node({"zone": "a"}), node({})),
        (node({"zone": "a"}), node()),
        (node({}), node({"zone": "a"})),
        (node(), node({"notsharer.dev/x": "a"})),
        (node(), node(annotations={"sharer.dev/recover": "GPU-1@now"})),
        (node(annotations={"a": "b"}), node()),
        (node(), node(finalizers=["a"])),
        (node(finalizers=["a"]), node()),
        (node(), node(ownerReferences=[{"uid": "u"}])),
        (node(spec={"unschedulable": True}), node(spec={"podCIDR": "x"})),
        (node(), node(spec={"taints": [{"key": "a"}]})),
    ],
)
def test_nothing_else_of_its_own_node_may_be_changed(old: Object, new: Object) -> None:
    """Threat 8."""
    assert "only labels sharer.dev/* may be changed" in messages(judged("nodes", "n1", new, old))


@pytest.mark.parametrize(("operation", "sub"), [("CREATE", ""), ("DELETE", ""), ("UPDATE", "status")])
def test_a_node_is_neither_made_nor_deleted_nor_given_a_status(operation: str, sub: str) -> None:
    new = None if operation == "DELETE" else node()
    assert "sharer: of a Node" in messages(judged("nodes", "n1", new, node(), operation=operation, sub=sub))


def test_the_policy_is_there_exactly_where_an_agent_writes() -> None:
    def is_there(features: dict[str, bool]) -> bool:
        found = objects({"features": features})
        return any(one["metadata"]["name"].startswith("agents.") for one in found)

    assert is_there({"publish": True, "nodeLabels": False})
    assert is_there({"publish": False, "nodeLabels": True})
    assert not is_there({"publish": False, "nodeLabels": False})
