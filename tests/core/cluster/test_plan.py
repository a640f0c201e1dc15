from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharer.core.change.choice import HOLD_LABEL, POLICY_LABEL
from sharer.core.cluster.plan import ClusterPlan, asking_for, plan_cluster
from sharer.core.known import Known
from sharer.core.policy.model import Exclusive, Match, MemoryPolicy, Mig, Mps, Policy
from sharer.core.quantities import GIB
from tests.core.builders import gpu, gpu_uuid, mig, node, policy, rule, time_slicing
from tests.core.cluster.facts import account, agent, machine
from tests.core.evidence import SHARED, held, key
from tests.core.nodes import known

TWO = node(gpu(0), gpu(1))


def planned(what: Known, wanted: Policy) -> ClusterPlan:
    report = account(nodes=(machine(),), agents=(agent(what),))
    return plan_cluster(report, wanted, "digest")


@pytest.mark.parametrize(
    "same",
    [
        policy(time_slicing(4)),
        policy(rule(time_slicing(4), memory=MemoryPolicy(limit=None))),
        policy(rule(time_slicing(3), memory=MemoryPolicy(reserve_bytes=GIB))),
        policy(Exclusive()),
        policy(rule(Mps(slices=4, slice_memory_bytes=None))),
    ],
)
@pytest.mark.parametrize("taken", [True, False])
def test_the_policy_in_force_changes_nothing(same: Policy, taken: bool) -> None:
    what = known(TWO, same)
    if taken:
        name, first = what.plan.resources[0].name, str(what.plan.resources[0].slices[0].id)
        what = known(TWO, same, entries=held((name, first)))
    assert planned(what, same).nodes == ()
    assert planned(what, same).unchanged == 1


def test_a_finer_cut_names_each_gpu_with_before_and_after_and_who_is_in_the_way() -> None:
    what = known(TWO, policy(time_slicing(4)), entries=held(key(2, 20480)))
    (found,) = planned(what, policy(time_slicing(8))).nodes
    assert [
        (one.device, one.before and one.before.slices, one.after and one.after.slices) for one in found.changes
    ] == [
        ("0", 4, 8),
        ("1", 4, 8),
    ]
    (blocker,) = found.in_the_way
    assert (blocker.uuid, blocker.pod, blocker.resource) == (gpu_uuid(0), "train-1", SHARED)


def test_a_holder_whose_slice_is_of_the_new_cut_too_is_not_in_the_way() -> None:
    what = known(TWO, policy(time_slicing(4)), entries=held(key(0, 20480)))
    limited = policy(rule(time_slicing(3), memory=MemoryPolicy(limit=20 * GIB)))
    (found,) = planned(what, limited).nodes
    assert found.changes != ()
    assert found.in_the_way == ()


def test_another_promise_alone_is_a_change() -> None:
    what = known(TWO, policy(time_slicing(4)))
    (found,) = planned(what, policy(rule(time_slicing(4), memory=MemoryPolicy(limit=10 * GIB)))).nodes
    before, after = found.changes[0].before, found.changes[0].after
    assert before is not None
    assert after is not None
    assert (before.promise_bytes, after.promise_bytes) == (20 * GIB, 10 * GIB)


def test_another_name_alone_is_a_change() -> None:
    what = known(TWO, policy(time_slicing(4)))
    (found,) = planned(what, policy(rule(time_slicing(4), resource="example.com/slice"))).nodes
    assert (found.changes[0].resource_before, found.changes[0].resource_after) == (SHARED, "example.com/slice")


def test_a_gpu_that_would_offer_nothing_says_why() -> None:
    (found,) = planned(known(TWO, policy(time_slicing(4))), policy(rule(Mps(slices=49, slice_memory_bytes=None)))).nodes
    assert found.changes[0].after is None
    assert "at most 48 clients" in found.refusals[0].reason


def test_mig_devices_are_planned_as_such() -> None:
    parent = gpu(0, mig_enabled=True, mig_devices=(mig(0, "1g.10gb"), mig(1, "2g.20gb")))
    what = known(node(parent), policy(Mig()))
    assert planned(what, policy(Mig())).nodes == ()
    (found,) = planned(what, policy(Mig(replicas=2))).nodes
    assert [(one.device, one.after and one.after.slices) for one in found.changes] == [("0:0", 2), ("0:1", 2)]


def test_what_is_taken_for_granted_is_said() -> None:
    what = known(TWO, policy(time_slicing(4)))
    required = policy(rule(time_slicing(4), memory=MemoryPolicy(required=True)))
    assert "memory.required" in planned(what, required).unknown[0]
    assert planned(what, required).nodes == ()


def test_mps_depends_on_the_compute_capability_that_the_agent_tells_and_else_on_a_guess_that_is_said() -> None:
    mps = policy(rule(Mps(slices=4, slice_memory_bytes=None)))

    def plan(capability: tuple[int, int] | None) -> ClusterPlan:
        return planned(known(node(gpu(0, compute_capability=capability)), policy(time_slicing(4))), mps)

    assert (plan((8, 0)).unknown, plan((8, 0)).nodes[0].refusals) == ((), ())
    (old,) = plan((6, 1)).nodes
    assert "7.0" in old.refusals[0].reason
    assert "compute capability of NVIDIA A100-SXM4-80GB" in plan(None).unknown[0]
    assert plan(None).nodes[0].refusals == ()


@pytest.mark.parametrize("garbage", ["", "8", "8.x", "a.b", "9" * 5000 + ".0"])
def test_a_compute_capability_that_is_none_is_not_known(garbage: str) -> None:
    told = agent(known(TWO, policy(time_slicing(4))))
    told = replace(told, gpus=tuple(replace(one, compute_capability=garbage) for one in told.gpus))
    mps = policy(rule(Mps(slices=4, slice_memory_bytes=None)))
    plan = plan_cluster(account(nodes=(machine(),), agents=(told,)), mps, "d")
    assert "compute capability" in plan.unknown[0]


def test_a_gpu_in_mig_mode_without_mig_devices_is_never_planned_whole() -> None:
    what = known(node(gpu(0, mig_enabled=True)), policy(time_slicing(4)))
    plan = planned(what, policy(time_slicing(8)))
    assert [one.changes for one in plan.nodes] == [()]
    assert "MIG mode is on" in plan.nodes[0].refusals[0].reason


FLEET = {
    "a": known(TWO, policy(time_slicing(4))),
    "b": known(TWO, policy(time_slicing(4)), entries=held(key(2, 20480), key(0, 20480, index=1))),
    "c": known(TWO, policy(time_slicing(4)), faults={gpu_uuid(1): "XID 79"}),
    "d": known(node(gpu(0, memory_mib=40960), gpu(1)), policy(time_slicing(4))),
    "e": known(node(gpu(0, mig_enabled=True, mig_devices=(mig(0, "1g.10gb"),)), gpu(1)), policy(Mig())),
    "f": known(node(gpu(0), gpu(1, compute_capability=(6, 1))), policy(rule(Mps(slices=2, slice_memory_bytes=None)))),
    "g": known(node(gpu(2), gpu(3)), policy(time_slicing(4))),
}
WANTED = (
    policy(time_slicing(8)),
    policy(rule(Mps(slices=4, slice_memory_bytes=None))),
    policy(rule(time_slicing(3), match=Match(uuids=(gpu_uuid(1), gpu_uuid(2)))), rule(Exclusive())),
    policy(Mig(replicas=2)),
)


@given(names=st.lists(st.sampled_from(sorted(FLEET)), min_size=1, max_size=8), wanted=st.sampled_from(WANTED))
def test_a_node_is_planned_as_if_it_were_alone_whatever_was_planned_before(names: list[str], wanted: Policy) -> None:
    fleet = [(machine(f"n{place}"), agent(FLEET[name], f"n{place}")) for place, name in enumerate(names)]
    together = plan_cluster(account(nodes=tuple(n for n, _ in fleet), agents=tuple(a for _, a in fleet)), wanted, "d")
    alone = [plan_cluster(account(nodes=(one,), agents=(its_agent,)), wanted, "d") for one, its_agent in fleet]
    assert together.nodes == tuple(change for plan in alone for change in plan.nodes)
    assert together.unchanged == sum(plan.unchanged for plan in alone)


def test_nodes_without_an_agent_are_named_and_not_guessed_at() -> None:
    report = account(nodes=(machine(), machine("m")), agents=(agent(),))
    assert plan_cluster(report, policy(time_slicing(8)), "d").not_told == ("m",)


def test_a_node_that_is_held_back_has_no_turn_and_the_others_have_theirs() -> None:
    labels = {HOLD_LABEL: "true", POLICY_LABEL: "a100"}
    report = account(nodes=(machine(labels=labels), machine("m")), agents=(agent(), agent(name="m")))
    wanted = policy(time_slicing(8))
    found = plan_cluster(report, wanted, "d")
    assert [(one.node, one.turn_after_s) for one in found.nodes] == [("m", 0.0), ("n", None)]
    assert [one.name for one in asking_for(report, "a100").nodes] == ["n"]
    assert [one.name for one in asking_for(report, "default").nodes] == ["m"]
