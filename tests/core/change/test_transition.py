"""A live node gets from one cut to the next without losing, doubling or over-promising a slice."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sharer.core.change.transition import DROP_AFTER_S, Listed, Listing, step
from sharer.core.device_id import DeviceId, Strategy
from sharer.core.errors import RequestError
from sharer.core.holders.evidence import (
    Evidence,
    SliceKey,
)
from sharer.core.holders.ledger import Entry, Ledger, Remnant, State
from sharer.core.policy.model import Auto, ComputePolicy, Exclusive, Match, MemoryPolicy, Mig, Mps, Policy
from sharer.core.quantities import MIB
from sharer.core.slices.plan import Plan, make_plan
from tests.core.builders import gpu, gpu_uuid, mig, node, policy, rule, time_slicing
from tests.core.evidence import SHARED, checkpoint, given_to, holder, key, listed, named, process, reading

PATIENCE_S = 600.0
SETTLED_S = 2.0
NODE = node(gpu(0))
UNLIMITED = MemoryPolicy(limit=None)
HOLDER = holder()


def plan(*wanted: object) -> Plan:
    return make_plan(NODE, policy(*wanted))  # type: ignore[arg-type]


def ledger(held: Iterable[SliceKey] = (), readings: int = 2) -> Ledger:
    evidence = Evidence(
        listed=listed(dict.fromkeys(held, "train-1"), serial=readings) if readings else None,
        checkpoint=checkpoint(serial=readings),
    )
    return Ledger(entries={key: Entry(state=State.HELD, owner=HOLDER) for key in held}, evidence=evidence)


def healthy(listing: Listing) -> list[SliceKey]:
    return [key for key, listed in listing.ids.items() if listed.withdrawn_s is None and not listed.overdue]


def walk(
    listing: Listing, wanted: Plan, *held_at: tuple[float, Iterable[SliceKey]], patience_s: float = PATIENCE_S
) -> Listing:
    """Let time pass: at each moment, these slices are held, and every source was read again."""
    for readings, (now_s, held) in enumerate(held_at, start=2):
        listing = step(listing, wanted, ledger(held, readings), now_s, patience_s=patience_s)
    return listing


def test_a_new_node_lists_its_plan() -> None:
    wanted = plan(time_slicing(4))
    assert healthy(walk(Listing(), wanted, (0, ()))) == [(SHARED, str(one.id)) for one in wanted.slices()]


def test_fewer_slices_while_some_are_held_keep_the_held_ones_and_fill_up_to_the_new_count() -> None:
    """P08, pitfall 19: 8 slices, pods on 1, 6 and 7, then 4 slices: the three and one more."""
    eight, four = plan(rule(time_slicing(8), memory=UNLIMITED)), plan(rule(time_slicing(4), memory=UNLIMITED))
    held = [key(1), key(6), key(7)]
    listing = walk(walk(Listing(), eight, (0, held)), four, (10, held), (10 + SETTLED_S, held))
    assert healthy(listing) == [key(0), key(1), key(6), key(7)]
    assert set(listing.ids) == {key(n) for n in range(8)}, "nothing vanishes at once"


def test_more_held_slices_than_the_new_cut_has_leave_none_free() -> None:
    """P08: 6 in use, policy to 4."""
    eight, four = plan(rule(time_slicing(8), memory=UNLIMITED)), plan(rule(time_slicing(4), memory=UNLIMITED))
    held = [key(n) for n in range(2, 8)]
    listing = walk(walk(Listing(), eight, (0, held)), four, (10, held), (50, held), (90, held))
    assert healthy(listing) == held


def test_a_free_slice_of_the_old_cut_is_withdrawn_in_two_steps() -> None:
    """Pitfall 17, DESIGN §3: dropping an ID whose Allocate is in flight crashes the kubelet."""
    listing = walk(walk(Listing(), plan(time_slicing(2)), (0, ())), plan(time_slicing(4)), (10, ()), (11, ()))
    old = [key(n, 40960) for n in range(2)]
    assert [one for one in listing.ids if one in old] == old
    assert not set(healthy(listing)) & set(old)
    late = walk(listing, plan(time_slicing(4)), (10 + DROP_AFTER_S - 0.1, ()), (10 + DROP_AFTER_S - 0.05, ()))
    assert set(old) <= set(late.ids)
    assert not set(old) & set(walk(late, plan(time_slicing(4)), (41, ()), (42, ()), (43, ())).ids)


def test_an_id_is_not_dropped_before_every_source_was_read_twice_without_a_holder() -> None:
    old = walk(Listing(), plan(time_slicing(2)), (0, ()))
    silent = old
    for now_s in (10.0, 100.0, 1000.0):
        silent = step(silent, plan(time_slicing(4)), ledger((), readings=2), now_s, patience_s=PATIENCE_S)
    assert key(0, 40960) in silent.ids


def test_an_id_that_is_allocated_while_it_is_withdrawn_stays() -> None:
    listing = walk(walk(Listing(), plan(time_slicing(2)), (0, ())), plan(time_slicing(4)), (10, ()), (20, ()))
    taken = walk(listing, plan(time_slicing(4)), (30, [key(0, 40960)]), (60, [key(0, 40960)]), (90, [key(0, 40960)]))
    assert key(0, 40960) in taken.ids
    assert key(1, 40960) not in taken.ids


def test_a_held_slice_of_the_old_cut_stays_healthy_for_the_patience_and_is_unhealthy_after_it() -> None:
    held = [key(0, 40960)]
    listing = walk(walk(Listing(), plan(time_slicing(2)), (0, held)), plan(time_slicing(4)), (10, held), (609.9, held))
    assert held[0] in healthy(listing)
    assert held[0] not in healthy(walk(listing, plan(time_slicing(4)), (610, held)))


@pytest.mark.parametrize("in_list", [True, False], ids=["an app container has it too", "nobody else has it"])
def test_what_an_init_container_has_on_record_stays_healthy_for_as_long_as_its_pod_lives(in_list: bool) -> None:
    """Neighbour of P08. Reported of Kubernetes: a kubelet that starts admits a pod anew and rejects it, though it runs,
    for a device of its finished init container that is not healthy. So the end of our patience would be the pod's end.
    """
    mine = key(3, 20480)
    container = "c" if in_list else "prepare"
    evidence = Evidence(
        listed=listed({mine: "train-1"} if in_list else {}, serial=9, others=["train-1"]),
        checkpoint=checkpoint(
            given_to("uid-1", mine, container="prepare"), *([given_to("uid-1", mine)] if in_list else []), serial=9
        ),
    )
    lives = Ledger(entries={mine: Entry(state=State.HELD, owner=holder(1, container))}, evidence=evidence)
    ends = replace(lives, entries={mine: Entry(state=State.RELEASING, owner=holder(1, container))})
    drains = step(Listing(ids={mine: Listed()}), plan(time_slicing(2)), lives, 0.0, patience_s=PATIENCE_S)
    late = step(drains, plan(time_slicing(2)), lives, 100 * PATIENCE_S, patience_s=PATIENCE_S)
    assert mine in healthy(late)
    assert late.ids[mine].draining_s == 0.0
    freed = step(late, plan(time_slicing(2)), ends, 100 * PATIENCE_S, patience_s=PATIENCE_S)
    assert mine not in healthy(freed), "nobody gets it next"


def test_what_an_init_container_of_an_earlier_pod_had_is_no_reason_to_wait_for_this_one() -> None:
    """The checkpoint keeps what ended pods had."""
    mine = key(3, 20480)
    stale = checkpoint(given_to("uid-0", mine, container="prepare"), given_to("uid-1", mine), serial=9)
    evidence = Evidence(listed=listed({mine: "train-1"}, serial=9), checkpoint=stale)
    lives = Ledger(entries={mine: Entry(state=State.HELD, owner=HOLDER)}, evidence=evidence)
    drains = step(Listing(ids={mine: Listed()}), plan(time_slicing(2)), lives, 0.0, patience_s=PATIENCE_S)
    assert step(drains, plan(time_slicing(2)), lives, PATIENCE_S, patience_s=PATIENCE_S).ids[mine].overdue


def test_new_slices_wait_until_old_promises_leave_room_for_them() -> None:
    """80 GiB with 40 GiB promised to a held old slice have room for two new slices of 20 GiB."""
    held = [key(0, 40960)]
    listing = walk(walk(Listing(), plan(time_slicing(2)), (0, held)), plan(time_slicing(4)), (10, held), (13, held))
    assert healthy(listing) == [key(0, 20480), key(1, 20480), *held]
    assert "1 of the old" in listing.waiting[gpu_uuid(0)]
    gone = walk(listing, plan(time_slicing(4)), (20, ()), (23, ()))
    assert healthy(gone) == [key(n, 20480) for n in range(4)]
    assert not gone.waiting


def test_a_gpu_changes_its_strategy_only_when_idle() -> None:
    held = [key(0, 40960)]
    mps = plan(rule(Mps(slices=2, slice_memory_bytes=None), compute=ComputePolicy(percent=Auto.AUTO)))
    listing = walk(walk(Listing(), plan(time_slicing(2)), (0, held)), mps, (10, held), (50, held), (90, held))
    assert healthy(listing) == held
    assert "only when idle" in listing.waiting[gpu_uuid(0)]
    done = walk(listing, mps, (100, ()), (103, ()))
    assert [one[1].split("::")[1] for one in healthy(done)] == ["mps-0-40960-50", "mps-1-40960-50"]


def test_slices_with_and_without_a_limit_never_share_a_gpu() -> None:
    held = [key(0, 40960)]
    free = plan(rule(time_slicing(2), memory=UNLIMITED))
    listing = walk(walk(Listing(), plan(time_slicing(2)), (0, held)), free, (10, held), (50, held))
    assert healthy(listing) == held
    assert "without a limit" in listing.waiting[gpu_uuid(0)]


def test_a_renamed_resource_drains_under_its_old_name_and_no_id_is_offered_under_both() -> None:
    """P08, pitfall 20: a rename with one pod running."""
    held = [key(0, 40960)]
    renamed = plan(rule(time_slicing(2), resource="example.com/gpu"))
    listing = walk(walk(Listing(), plan(time_slicing(2)), (0, held)), renamed, (10, held), (50, held), (90, held))
    assert healthy(listing) == [key(1, 40960, resource="example.com/gpu"), *held]
    assert {name for name, _ in walk(listing, renamed, (100, ()), (131, ()), (132, ())).ids} == {"example.com/gpu"}


def test_from_four_slices_to_one_whoever_holds_one_of_the_four_is_not_joined_by_another() -> None:
    """Neighbour of P03: 1 means "do not share here", so not even with whoever was there before."""
    held = [key(2, 20480)]
    four, one = plan(time_slicing(4)), plan(time_slicing(1))
    listing = walk(walk(Listing(), four, (0, held)), one, (10, held), (13, held), (50, held), (51, held))
    assert healthy(listing) == held
    assert "1 slices of the new cut wait for 1 of the old one" in listing.waiting[gpu_uuid(0)]
    assert healthy(walk(listing, one, (60, ()), (63, ()))) == [key(0, 81920)]


def test_a_rename_that_is_taken_back_lets_the_held_slice_be_what_it_was() -> None:
    """Neighbour of P08: the operator sees the old name at 0, and goes back at once. No ID is ever under two names."""
    held = [key(0, 40960)]
    first, renamed = plan(time_slicing(2)), plan(rule(time_slicing(2), resource="example.com/gpu"))
    there = walk(walk(Listing(), first, (0, held)), renamed, (10, held), (13, held))
    back = walk(there, first, (14, held))
    assert {text for _, text in healthy(back)} == {text for _, text in held}, "the other one was Healthy just now"
    done = walk(back, first, (17, held), (50, held), (51, held))
    assert list(done.ids) == healthy(done) == [key(0, 40960), key(1, 40960)]
    assert done.ids[key(0, 40960)].draining_s is None


def test_fewer_replicas_of_a_mig_device_drain_like_other_slices_and_no_other_device_is_touched() -> None:
    """Neighbour of P08: of two instances on one GPU one is re-cut, by a rule of its own."""
    small, other = mig(1, "1g.10gb"), mig(2, "2g.20gb")
    inventory = node(gpu(0, mig_enabled=True, mig_devices=(small, other)))

    def cut(replicas: int) -> Plan:
        rules = (rule(Mig(replicas=replicas), match=Match(mig_profile="1g*"), memory=UNLIMITED), rule(Mig(replicas=2)))
        return make_plan(inventory, policy(*rules))

    name = "nvidia.com/mig-1g.10gb"
    held = [(name, f"{small.uuid}::mig-{replica}") for replica in (1, 2, 3)]
    before = walk(Listing(), cut(4), (0, held))
    after = walk(before, cut(2), (10, held), (13, held), (50, held), (51, held))
    mine = [one for one in healthy(after) if one[0] == name]
    assert mine == held, "three are held of two that there are to be"
    assert [one for one in after.ids if one[0] != name] == [one for one in before.ids if one[0] != name]
    freed = walk(after, cut(2), (60, held[:1]), (63, held[:1]), (100, held[:1]), (101, held[:1]))
    assert [one for one in freed.ids if one[0] == name] == [(name, f"{small.uuid}::mig-{n}") for n in (0, 1)]


def mps(slices: int, **changes: object) -> object:
    return rule(Mps(slices=slices, slice_memory_bytes=None), **changes)


def test_slices_of_an_mps_daemon_that_has_one_limit_for_a_gpu_wait_for_those_with_another() -> None:
    """gpu-limits §3: one default a device, used by the next server; with namespaces old and new share the GPU."""
    held = [key(0, 40960, strategy="mps")]
    before = walk(Listing(), plan(mps(2)), (0, held))
    listing = walk(before, plan(mps(4)), (10, held), (20, held))
    assert healthy(listing) == held
    assert "one limit for all clients of a GPU" in listing.waiting[gpu_uuid(0)]
    spaced = make_plan(NODE, policy(mps(4)), namespaced={SHARED})  # type: ignore[arg-type]
    assert healthy(walk(before, spaced, (10, held), (20, held)))[:-1] == [key(n, 20480, strategy="mps") for n in (0, 1)]
    freed = walk(listing, plan(mps(4)), (30, ()), (40, ()))
    assert healthy(freed) == [key(n, 20480, strategy="mps") for n in range(4)]


def test_a_renamed_mps_resource_waits_until_the_old_one_s_daemon_has_nobody_left_on_the_gpu() -> None:
    held = [key(0, 40960, strategy="mps")]
    before = walk(Listing(), plan(mps(2)), (0, held))
    listing = walk(before, plan(mps(2, resource="example.com/mps")), (10, held), (20, held))
    assert healthy(listing) == held
    assert "served by one MPS control daemon at a time" in listing.waiting[gpu_uuid(0)]


def test_the_ids_of_another_plugin_stay_listed_while_held_and_keep_the_gpu_to_themselves() -> None:
    """DESIGN §2: taking over nvidia.com/gpu; the NVIDIA plugin's ID is foreign."""
    foreign = ("nvidia.com/gpu", f"{gpu_uuid(0)}::0")
    wanted = plan(Exclusive())
    listing = walk(Listing(), wanted, (0, [foreign]), (50, [foreign]))
    assert healthy(listing) == [foreign]
    assert "another plugin" in listing.waiting[gpu_uuid(0)]
    assert healthy(walk(listing, wanted, (60, ()), (63, ()))) == [("nvidia.com/gpu", f"{gpu_uuid(0)}::ex-0")]


def test_the_slices_of_other_resources_are_none_of_our_business() -> None:
    assert set(walk(Listing(), plan(time_slicing(1)), (0, [("rdma/hca", "mlx5_0")])).ids) == {key(0, 81920)}


def test_right_after_a_start_everything_that_the_checkpoint_names_counts_as_held() -> None:
    """DESIGN §3: nothing of it can be called stale before the list was read twice."""
    young = Ledger(evidence=Evidence(checkpoint=checkpoint(given_to("uid-1", key(0, 40960)))))
    listing = step(Listing(), plan(time_slicing(4)), young, 0.0, patience_s=PATIENCE_S)
    assert healthy(listing) == [key(0, 20480), key(1, 20480), key(0, 40960)]


policies = st.sampled_from(
    [
        policy(time_slicing(2)),
        policy(time_slicing(3)),
        policy(rule(time_slicing(4), memory=UNLIMITED)),
        policy(rule(time_slicing(2), memory=UNLIMITED)),
        policy(rule(Mps(slices=4, slice_memory_bytes=None), compute=ComputePolicy(percent=Auto.AUTO))),
        policy(rule(Mps(slices=2, slice_memory_bytes=None), compute=ComputePolicy(percent=Auto.AUTO))),
        policy(
            rule(
                Mps(slices=4, slice_memory_bytes=None),
                compute=ComputePolicy(percent=Auto.AUTO),
                resource="example.com/mps",
            )
        ),
        policy(rule(time_slicing(2), resource="example.com/gpu")),
        policy(Exclusive()),
    ]
)
moments = st.tuples(
    st.sampled_from([0.1, 1.0, 3.0, 31.0, 700.0]), policies, st.booleans(), st.integers(0, 9), st.integers(0, 9)
)


@settings(max_examples=200)
@given(st.lists(moments, max_size=12))
def test_whatever_happens_no_held_id_is_dropped_and_no_promise_is_exceeded(
    history: list[tuple[float, Policy, bool, int, int]],
) -> None:
    """DESIGN §3, with pods that come and go, policies that change and agents that restart in between."""
    now_s, listing, readings = 0.0, Listing(), 2
    held: list[SliceKey] = []
    for wait_s, wanted, restart, take, give in history:
        now_s, readings = now_s + wait_s, readings + 1
        target = make_plan(NODE, wanted)
        if restart:
            listing = Listing()
        before = listing
        listing = step(before, target, ledger(held, readings), now_s, patience_s=PATIENCE_S)
        assert step(listing, target, ledger(held, readings), now_s, patience_s=PATIENCE_S) == listing
        assert set(held) <= set(listing.ids)
        for gone in set(before.ids) - set(listing.ids):
            assert before.ids[gone].withdrawn_s is not None, "an ID is Unhealthy before it is dropped"
        check_promises(listing, held)
        free = [one for one in healthy(listing) if one not in held]
        if free:
            held = [*held, free[take % len(free)]]
        if held and give % 2:
            held = [one for number, one in enumerate(held) if number != give % len(held)]


@given(policies, policies)
def test_every_change_ends_with_exactly_the_new_plan(first: Policy, second: Policy) -> None:
    old, new = make_plan(NODE, first), make_plan(NODE, second)
    listing = walk(Listing(), old, (0, ()), (1, ()))
    listing = walk(listing, new, (10, ()), (13, ()), (44, ()), (45, ()), (48, ()))
    assert list(listing.ids) == [(r.name, str(one.id)) for r in new.resources for one in r.slices]
    assert healthy(listing) == list(listing.ids)


def check_promises(listing: Listing, held: Iterable[SliceKey]) -> None:
    counted = {*healthy(listing), *held}
    assert len({text for _, text in counted}) == len(counted), "one ID under two names"
    ids = []
    for one in counted:
        try:
            ids.append(DeviceId.parse(one[1]))
        except RequestError:
            continue
    assert sum((device_id.limit_mib or 0) * MIB for device_id in ids) <= (NODE.gpus[0].memory_bytes or 0)
    assert sum(device_id.percent or 0 for device_id in ids) <= 100
    assert len({device_id.strategy for device_id in ids}) <= 1
    assert len({name for name, text in counted if "::mps-" in text}) <= 1, "two daemons on one GPU"
    assert len({(one.limit_mib, one.percent) for one in ids if one.strategy is Strategy.MPS}) <= 1


def test_a_quarantined_slice_counts_like_a_held_one() -> None:
    busy = replace(ledger([]), entries={key(0, 40960): Entry(state=State.QUARANTINED, is_busy_for_nobody=True)})
    listing = step(
        walk(Listing(), plan(time_slicing(2)), (0, ())), plan(time_slicing(4)), busy, 10.0, patience_s=PATIENCE_S
    )
    assert key(0, 40960) in listing.ids
    assert listing.ids[key(0, 40960)].withdrawn_s is None


def test_a_listing_is_settled_when_time_and_further_readings_change_nothing() -> None:
    """Whoever lists 65,000 slices need not work it out again and again."""
    wanted = plan(time_slicing(4))
    assert not step(Listing(), wanted, ledger(readings=0), 0.0, patience_s=PATIENCE_S).is_settled, (
        "nothing was read yet"
    )
    assert not step(Listing(), wanted, ledger(readings=1), 0.0, patience_s=PATIENCE_S).is_settled
    assert walk(Listing(), wanted, (0, [key(0, 20480)])).is_settled
    changed = walk(walk(Listing(), plan(time_slicing(2)), (0, ())), wanted, (10, ()))
    assert not changed.is_settled, "old slices are on their way out"
    assert walk(changed, wanted, (41, ()), (42, ()), (45, ())).is_settled


def test_a_remnant_counts_once_whatever_it_had_on_the_gpu() -> None:
    """DESIGN §3: its measured use takes from what may be promised to others."""
    left = (Remnant(holder=named("old", uid="uid-old"), since_s=0.0, known=True),)
    entries = {key(n, 20480): Entry(state=State.HELD, owner=HOLDER, remnants=left) for n in range(2)}
    evidence = replace(ledger().evidence, processes=reading(process("uid-old", 20480 * MIB)))
    haunted = Ledger(entries=entries, evidence=evidence)
    listing = step(Listing(), plan(time_slicing(4)), haunted, 0.0, patience_s=PATIENCE_S)
    assert healthy(listing) == [key(n, 20480) for n in range(3)], "80 GiB, of which 20 are haunted"
