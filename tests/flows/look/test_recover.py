"""An operator's word that a GPU was repaired: what it ends, what it does not, and what is said about it."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from sharer.core.errors import NodeError
from sharer.core.health import Health, after_xid
from sharer.core.policy.model import HealthPolicy
from sharer.core.ports.driver import XidEvent
from sharer.flows.look.recover import RECOVER_ANNOTATION, recover
from sharer.flows.state import NodeState
from tests.core.builders import gpu, gpu_uuid, mig, node

NODE = node(gpu(0), gpu(1, mig_enabled=True, mig_devices=(mig(0, "1g.10gb"),)))
A, MIG = gpu_uuid(0), mig(0, "1g.10gb").uuid
NOON_S = datetime(2026, 1, 31, 12, tzinfo=UTC).timestamp()
STRUCK_S = 500.0  # on the monotonic clock; at noon


class Operator:
    """A node with a fatal fault of each kind at noon; the monotonic clock began at 11:51:40."""

    def __init__(self) -> None:
        self.state = NodeState()
        self.state.change(inventory=NODE)
        self.strike(STRUCK_S)

    def strike(self, now_s: float) -> None:
        health: Health = self.state.view.health
        for instance, uuid in ((None, A), (1, gpu_uuid(1))):
            event = XidEvent(gpu_uuid=uuid, gpu_instance_id=instance, compute_instance_id=0, xid=79)
            health = after_xid(health, event, NODE, HealthPolicy(), now_s)
        self.state.change(health=health)

    def annotates(self, text: str | None, now_s: float = 600.0) -> str | None:
        annotations = {} if text is None else {RECOVER_ANNOTATION: text}
        return recover(self.state, annotations, now_s, NOON_S + now_s - STRUCK_S)

    @property
    def at_fault(self) -> set[str]:
        return set(self.state.view.health.faults())


@pytest.fixture
def operator() -> Operator:
    operator = Operator()
    assert operator.at_fault == {A, MIG}
    return operator


@pytest.mark.parametrize("time", ["2026-01-31T12:00:01Z", "2026-01-31T12:00:00.25Z", "2026-01-31T14:00:01+02:00"])
def test_an_older_fault_ends_and_no_other_device_s(operator: Operator, time: str) -> None:
    said = operator.annotates(f"{A}@{time}")
    assert said is not None
    assert "ends a fault: XID 79" in said
    assert operator.at_fault == {MIG}


def test_a_mig_device_is_named_by_its_own_uuid(operator: Operator) -> None:
    operator.annotates(f"{MIG}@2026-01-31T12:00:01Z")
    assert operator.at_fault == {A}


def test_a_fault_that_is_newer_stays_and_its_time_is_said_once(operator: Operator) -> None:
    text = f"{A}@2026-01-31T12:00:00Z"
    with pytest.raises(NodeError, match=r"was last seen at 2026-01-31T12:00:00.000Z; .* write a later time"):
        operator.annotates(text)
    assert operator.annotates(text) is None
    assert operator.at_fault == {A, MIG}
    operator.annotates(f"{A}@2026-01-31T12:00:01Z")
    assert operator.at_fault == {MIG}


def test_an_annotation_counts_once(operator: Operator) -> None:
    """It stays on the Node; even one with a time in the future ends nothing that comes after it was read."""
    text = f"{A}@2026-01-31T13:00:00Z"
    assert operator.annotates(text) is not None
    operator.strike(700.0)
    assert operator.annotates(text, 701.0) is None
    assert operator.annotates(None, 702.0) is None
    assert operator.annotates(text, 703.0) is None
    assert operator.at_fault == {A, MIG}


def test_after_a_restart_an_old_annotation_ends_nothing_that_came_since(operator: Operator) -> None:
    """What it counted for is forgotten then; its time is not."""
    text = f"{A}@2026-01-31T12:00:01Z"
    operator.strike(700.0)
    with pytest.raises(NodeError, match="last seen at 2026-01-31T12:03:20"):
        operator.annotates(text, 701.0)
    assert operator.at_fault == {A, MIG}


def test_without_a_fault_nothing_changes_and_that_is_said(operator: Operator) -> None:
    before = operator.state.view.health
    said = operator.annotates(f"{gpu_uuid(1)}@2026-01-31T12:00:01Z")
    assert said is not None
    assert "no fault of" in said
    assert operator.state.view.health == before


@pytest.mark.parametrize(
    "text",
    ["", A, f"{A}@", f"{A}@now", f"{A}@2026-01-31", f"{A}@2026-01-31T12:00:01", "@2026-01-31T12:00:01Z", f"{A}@1e9"],
)
def test_what_cannot_be_read_is_refused_with_an_example(operator: Operator, text: str) -> None:
    """A time without its zone could be any of 27 hours."""
    for _ in range(2):
        with pytest.raises(NodeError, match="write <uuid>@<time> with a time such as 2026-01-31T12:00:00Z"):
            operator.annotates(text)
    assert operator.at_fault == {A, MIG}


def test_a_device_that_does_not_exist_is_named_and_counts_once_it_does(operator: Operator) -> None:
    text = f"{gpu_uuid(7)}@2026-01-31T12:00:01Z"
    with pytest.raises(NodeError, match="no GPU or MIG device of that UUID"):
        operator.annotates(text)
    operator.state.change(inventory=node(*NODE.gpus, gpu(7)))
    assert operator.annotates(text) is not None


@pytest.mark.parametrize("key", ["sharer.dev/recovr", "sharer.dev/Recover", "sharer.dev/recovery"])
def test_an_annotation_with_a_slip_in_its_key_is_told_with_the_one_that_was_meant(operator: Operator, key: str) -> None:
    """Neighbour of P14 and P01: the GPU was repaired, and stays at fault without a word."""
    asked = {key: f"{A}@2026-01-31T12:00:01Z", "sharer.dev/lease": "a/b", "example.com/recover": "x"}
    with pytest.raises(NodeError, match=f"the annotation {key} means nothing; did you mean sharer.dev/recover"):
        recover(operator.state, asked, 600.0, NOON_S + 100.0)
    assert operator.at_fault == {A, MIG}
    both = asked | {RECOVER_ANNOTATION: asked[key]}
    assert "ends a fault" in str(recover(operator.state, both, 600.0, NOON_S + 100.0))


def test_an_annotation_waits_for_the_driver(operator: Operator) -> None:
    text = f"{A}@2026-01-31T12:00:01Z"
    operator.state.change(inventory=None)
    assert operator.annotates(text) is None
    operator.state.change(inventory=NODE)
    assert operator.annotates(text) is not None
    assert operator.at_fault == {MIG}
