from __future__ import annotations

from sharer.core.change.rollout import PolicyInForce
from sharer.core.holders.findings import Finding, FindingKind, Findings
from sharer.core.known import About
from sharer.flows.state import NodeState
from sharer.flows.tell.report import report, stamper
from tests.core.builders import gpu, gpu_uuid, node, policy, time_slicing
from tests.core.evidence import held, key
from tests.core.nodes import known


def test_times_are_told_in_utc_and_stay_the_same_whenever_they_are_told_again() -> None:
    stamp = stamper(monotonic_s=100.0, wall_s=1_700_000_000.75)
    assert stamp(100.0) == "2023-11-14T22:13:20Z"
    assert stamp(40.2) == "2023-11-14T22:12:20Z"
    assert stamp(40.2) == stamp(40.2)


def test_a_view_is_reported_with_everything_in_it() -> None:
    what = known(node(gpu(0)), policy(time_slicing(4)), entries=held(key(0, 20480)))
    leaked = Finding(kind=FindingKind.LEAKED, message="process 7 is left", cure="end it")
    state = NodeState()
    state.change(
        inventory=what.inventory,
        plan=what.plan,
        listing=what.listing,
        ledger=what.ledger,
        offers=what.offers,
        faults={gpu_uuid(0): "XID 79"},
        policy=PolicyInForce(unread="it is away"),
        findings=Findings(found=(leaked,)),
    )
    found = report(state.view, About(node_name="node-7", version="1"), 1.0, lambda at_s: "then")
    assert found.metadata.name == "node-7"
    assert found.status.gpus[0].reason == "XID 79"
    assert found.status.holders[0].pod == "train-1"
    assert found.status.policy.unread == "it is away"
    assert found.findings == (leaked,)


def test_a_new_agent_has_a_report_before_it_knows_anything() -> None:
    found = report(NodeState().view, About(node_name="node-7", version="1"), 1.0, lambda at_s: "then")
    assert found.missing() == ("driver: it was not read yet",)
