"""`sharer policy plan --live` shows the steps that the agent would take, from a report of the node alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sharer.core.change.rollout import PolicyInForce
from sharer.core.change.transition import Listing, step
from sharer.core.errors import InputError
from sharer.core.holders.evidence import CheckpointReading, Evidence, ListReading, SliceKey
from sharer.core.holders.ledger import Ledger
from sharer.core.known import Known
from sharer.core.policy.model import MemoryPolicy, Mig, Mps, Policy
from sharer.core.report.preview import LivePlanReport, preview
from sharer.core.slices.plan import make_plan
from tests.core.builders import gpu, gpu_uuid, mig, node, policy, rule, time_slicing
from tests.core.evidence import SHARED, held, key
from tests.core.nodes import UNLIMITED, known, report

IN_FORCE = PolicyInForce(policy=policy(), digest="a" * 64)


def live(what: Known, wanted: Policy) -> LivePlanReport:
    return preview(report(replace(what, policy=IN_FORCE)), wanted, "b" * 64)


def told(plan: LivePlanReport) -> list[tuple[float, str, str]]:
    """Time, action and slices of each step: "ts-0-20480 ts-1-20480"."""
    return [(one.at_s, one.action, " ".join(text.partition("::")[2] for text in one.ids)) for one in plan.steps]


def test_the_policy_in_force_changes_nothing() -> None:
    four = policy(time_slicing(4))
    for entries in (held(), held(key(0, 20480))):
        plan = live(known(node(gpu(0)), four, entries=entries), four)
        assert (plan.steps, plan.waiting, plan.in_the_way) == ((), (), ())
        assert (plan.node, plan.policy) == ("node-7", "policy")


def test_free_slices_are_withdrawn_then_new_ones_offered_then_the_old_ones_dropped() -> None:
    plan = live(known(node(gpu(0)), policy(time_slicing(2))), policy(time_slicing(4)))
    old, new = "ts-0-40960 ts-1-40960", "ts-0-20480 ts-1-20480 ts-2-20480 ts-3-20480"
    assert told(plan) == [(0.0, "withdraw", old), (4.0, "offer", new), (32.0, "drop", old)]
    assert (plan.waiting, plan.in_the_way) == ((), ())


def test_held_slices_drain_until_the_patience_ends_and_name_the_pods_in_the_way() -> None:
    what = known(node(gpu(0)), policy(time_slicing(2)), entries=held(key(0, 40960)))
    plan = live(what, policy(time_slicing(4)))
    assert told(plan) == [
        (0.0, "drain", "ts-0-40960"),
        (0.0, "withdraw", "ts-1-40960"),
        (4.0, "offer", "ts-0-20480 ts-1-20480"),
        (32.0, "drop", "ts-1-40960"),
        (600.0, "overdue", "ts-0-40960"),
    ]
    assert [(one.uuid, one.reason) for one in plan.waiting] == [
        (gpu_uuid(0), "2 slices of the new cut wait for 1 of the old one")
    ]
    (blocker,) = plan.in_the_way
    assert (blocker.namespace, blocker.pod, blocker.container, blocker.state) == ("default", "train-1", "c", "held")
    assert (blocker.id, blocker.blocks, blocker.overdue_after_s) == (key(0, 40960)[1], True, 600.0)


def test_a_slice_that_drains_already_has_only_the_rest_of_its_patience() -> None:
    two, four = policy(time_slicing(2)), policy(time_slicing(4))
    what = known(node(gpu(0)), two, four, entries=held(key(0, 40960)), every_s=100.0)
    (draining,) = [one for one in report(what).slices if one.draining_s is not None]
    assert draining.draining_s == 3.0
    plan = live(what, replace(four, drain_patience_s=60.0))
    assert (57.0, "overdue", "ts-0-40960") in told(plan)
    assert plan.in_the_way[0].overdue_after_s == 57.0


def test_going_back_keeps_what_drained() -> None:
    two, four = policy(time_slicing(2)), policy(time_slicing(4))
    plan = live(known(node(gpu(0)), two, four, entries=held(key(0, 40960))), two)
    assert (0.0, "keep", "ts-0-40960") in told(plan)
    assert plan.in_the_way == ()


def test_a_gpu_changes_its_strategy_only_when_idle_and_the_pod_that_prevents_it_is_named() -> None:
    what = known(node(gpu(0), gpu(1)), policy(time_slicing(2)), entries=held(key(0, 40960)))
    plan = live(what, policy(Mps(slices=2, slice_memory_bytes=None)))
    assert [one.uuid for one in plan.steps if one.action == "offer"] == [gpu_uuid(1)]
    assert "only when idle" in plan.waiting[0].reason
    assert [one.pod for one in plan.in_the_way if one.blocks] == ["train-1"]


def test_a_pod_on_a_renamed_resource_is_in_the_way_only_if_something_waits_for_it() -> None:
    old = policy(rule(time_slicing(2), memory=MemoryPolicy(limit=10 * 2**30)))
    new = policy(rule(time_slicing(2), memory=MemoryPolicy(limit=10 * 2**30), resource="example.com/shared"))
    plan = live(known(node(gpu(0)), old, entries=held(key(0, 10240))), new)
    assert {one.resource for one in plan.steps if one.action == "offer"} == {"example.com/shared"}
    assert [(one.resource, one.blocks) for one in plan.in_the_way] == [(SHARED, True)]


def test_a_gpu_that_the_policy_refuses_and_its_warnings_are_told() -> None:
    what = known(node(gpu(0), gpu(1, compute_capability=(6, 1))), policy(time_slicing(2)))
    plan = live(what, policy(Mps(slices=2, slice_memory_bytes=None)))
    assert [one.uuid for one in plan.refusals] == [gpu_uuid(1)]


def test_the_node_s_turn_within_the_window_is_told() -> None:
    what = known(node(gpu(0)), policy(time_slicing(2)))
    wanted = replace(policy(time_slicing(4)), rollout_window_s=600.0)
    assert 0.0 < live(what, wanted).turn_after_s < 600.0
    assert live(what, policy(time_slicing(4))).turn_after_s == 0.0
    assert preview(report(what), wanted, "b" * 64).turn_after_s == 0.0, "a node without a policy takes it at once"


def test_mig_devices_are_planned_from_the_report_too() -> None:
    parent = gpu(0, mig_enabled=True, mig_devices=(mig(0, "1g.10gb"),))
    plan = live(known(node(parent), policy(Mig())), policy(Mig(replicas=2)))
    assert [one.action for one in plan.steps] == ["withdraw", "offer", "drop"]


def test_an_agent_that_has_no_inventory_yet_cannot_be_planned_for() -> None:
    with pytest.raises(InputError, match="does not know its GPUs yet: driver: it was not read yet"):
        preview(report(Known()), policy(), "")


@given(
    before=st.integers(1, 8),
    between=st.integers(1, 8),
    after=st.integers(1, 8),
    held_replicas=st.sets(st.integers(0, 7)),
    unlimited=st.tuples(st.booleans(), st.booleans(), st.booleans()),
)
@settings(max_examples=100, deadline=None)
def test_the_end_that_is_shown_is_the_one_that_the_agent_comes_to(
    before: int, between: int, after: int, held_replicas: set[int], unlimited: tuple[bool, bool, bool]
) -> None:
    cuts = [
        policy(rule(time_slicing(count), memory=UNLIMITED if free else MemoryPolicy()))
        for count, free in zip((before, between, after), unlimited, strict=True)
    ]
    first = [(SHARED, str(one.id)) for one in make_plan(node(gpu(0)), cuts[0]).slices()]
    what = known(node(gpu(0)), *cuts[:2], entries=held(*(one for n, one in enumerate(first) if n in held_replicas)))
    shown = {at: _word(what.listing, at) for at in what.listing.ids}
    for change in live(what, cuts[2]).steps:
        for text in change.ids:
            shown[change.resource, text] = {"keep": "offer", "overdue": "drain"}.get(change.action, change.action)
    shown = {at: action for at, action in shown.items() if action != "drop"}

    listing, plan = what.listing, make_plan(node(gpu(0)), cuts[2], adopt=[one.id for one in what.plan.slices()])
    for cycle in range(400):
        serial = cycle + 2
        evidence = Evidence(listed=ListReading(serial=serial), checkpoint=CheckpointReading(serial=serial))
        ledger = Ledger(entries=what.ledger.entries, evidence=evidence)
        listing = step(listing, plan, ledger, 1000.0 + 2.0 * cycle, patience_s=600.0)
    assert shown == {at: _word(listing, at) for at in listing.ids}


def _word(listing: Listing, at: SliceKey) -> str:
    listed = listing.ids[at]
    return "withdraw" if listed.withdrawn_s is not None else "drain" if listed.draining_s is not None else "offer"
