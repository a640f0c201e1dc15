"""What a node's report says, and above all how it counts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sharer.core.change.rollout import PolicyInForce, refuse, stage
from sharer.core.device_id import Strategy
from sharer.core.edits import Injection, NodeFacts
from sharer.core.enforcement import Hold
from sharer.core.health import DeviceHealth, Health
from sharer.core.holders.evidence import ProcessReading, SliceKey, SourceStatus
from sharer.core.holders.findings import Finding, FindingKind
from sharer.core.holders.ledger import Entry, Remnant, State
from sharer.core.known import Known
from sharer.core.policy.model import Exclusive, MemoryPolicy, Mig
from sharer.core.ports.policy import PolicyText
from sharer.core.quantities import GIB, MIB
from sharer.core.report.node import GpuStatus, HolderReport, ResourceReport
from sharer.core.slices.plan import make_plan
from tests.core.builders import gpu, gpu_uuid, mig, node, policy, rule, time_slicing
from tests.core.evidence import SHARED, held, holder, key, process, reading
from tests.core.nodes import UNLIMITED, known, report


def resource(what: Known, name: str = SHARED) -> ResourceReport:
    (found,) = [one for one in report(what).status.resources if one.name == name]
    return found


def one_gpu(what: Known, index: int = 0) -> GpuStatus:
    (found,) = [one for one in report(what).status.gpus if one.uuid == gpu_uuid(index)]
    return found


def holders(what: Known) -> list[HolderReport]:
    return list(report(what).status.holders)


# ---- counting


def test_slices_are_held_or_free() -> None:
    counts = resource(known(node(gpu(0)), policy(time_slicing(4)), entries=held(key(0, 20480), key(2, 20480))))
    assert (counts.slices, counts.held, counts.free, counts.over_by) == (4, 2, 2, 0)
    assert (counts.quarantined, counts.draining, counts.unhealthy, counts.waiting) == (0, 0, 0, 0)
    assert counts.strategy == "time-slicing"


def test_an_allocated_slice_and_one_that_is_being_released_are_held() -> None:
    entries = {
        key(0, 20480): Entry(state=State.ALLOCATED),
        key(1, 20480): Entry(state=State.RELEASING, owner=holder()),
    }
    counts = resource(known(node(gpu(0)), policy(time_slicing(4)), entries=entries))
    assert (counts.held, counts.free) == (2, 2)


def test_a_faulty_gpu_that_is_all_held_leaves_nothing_free_and_never_less_than_nothing() -> None:
    """P38: 8 slices, 1 of them unhealthy, 8 held: 0 free, over by 1."""
    gpus = [gpu(index) for index in range(8)]
    every = [key(0, 81920, index=index) for index in range(8)]
    what = known(node(*gpus), policy(time_slicing(1)), entries=held(*every), faults={gpu_uuid(3): "XID 79"})
    counts = resource(what)
    assert (counts.slices, counts.held, counts.free, counts.over_by, counts.unhealthy) == (8, 8, 0, 1, 1)
    assert (one_gpu(what, 3).health, one_gpu(what, 3).reason) == ("unhealthy", "XID 79")
    assert one_gpu(what, 3).free == 0


def test_a_shrunken_resource_says_by_how_much_too_many_are_held() -> None:
    """P08: 6 in use, policy to 4: nothing is free. P38: holding more after a shrink."""
    eight, four = policy(rule(time_slicing(8), memory=UNLIMITED)), policy(rule(time_slicing(4), memory=UNLIMITED))
    counts = resource(known(node(gpu(0)), eight, four, entries=held(*(key(n) for n in range(2, 8)))))
    assert (counts.slices, counts.held, counts.free, counts.over_by) == (4, 6, 0, 2)
    assert (counts.draining, counts.waiting) == (4, 2)


def test_a_shrink_with_few_held_fills_up_to_the_new_count() -> None:
    """P08: 8 slices with 1, 6 and 7 held, policy to 4: the three and one more."""
    eight, four = policy(rule(time_slicing(8), memory=UNLIMITED)), policy(rule(time_slicing(4), memory=UNLIMITED))
    counts = resource(known(node(gpu(0)), eight, four, entries=held(key(1), key(6), key(7))))
    assert (counts.slices, counts.held, counts.free, counts.over_by, counts.draining) == (4, 3, 1, 0, 2)


def test_a_renamed_resource_drains_under_its_old_name_and_is_not_counted_twice() -> None:
    """P08: rename with one pod running."""
    old = policy(rule(time_slicing(4), memory=UNLIMITED))
    new = policy(rule(time_slicing(4), memory=UNLIMITED, resource="example.com/shared"))
    what = known(node(gpu(0)), old, new, entries=held(key(1)))
    retired = resource(what)
    assert (retired.strategy, retired.slices, retired.held, retired.free, retired.draining) == (None, 0, 1, 0, 1)
    assert (retired.over_by, retired.waiting) == (0, 0)
    renamed = resource(what, "example.com/shared")
    assert (renamed.slices, renamed.held, renamed.free, renamed.waiting) == (4, 0, 3, 1)
    assert "1 of the old" in str(one_gpu(what).waiting)


def test_a_quarantined_slice_is_neither_held_nor_free() -> None:
    left = Remnant(holder=holder(), since_s=0.0, known=True)
    entries = {key(0, 20480): Entry(state=State.QUARANTINED, remnants=(left,), reason="r", is_busy_for_nobody=True)}
    counts = resource(known(node(gpu(0)), policy(time_slicing(4)), entries=entries))
    assert (counts.held, counts.free, counts.quarantined) == (0, 3, 1)


def test_a_free_slice_on_a_faulty_gpu_is_unhealthy_and_not_free() -> None:
    counts = resource(known(node(gpu(0), gpu(1)), policy(time_slicing(4)), faults={gpu_uuid(0): "XID 79"}))
    assert (counts.slices, counts.free, counts.unhealthy) == (8, 4, 4)


@given(
    before=st.integers(1, 12),
    after=st.integers(1, 12),
    states=st.dictionaries(st.integers(0, 11), st.sampled_from([s for s in State if s is not State.OFFERED])),
    faulty=st.booleans(),
    unlimited=st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_counts_are_never_negative_and_nothing_is_counted_twice(
    before: int, after: int, states: dict[int, State], faulty: bool, unlimited: bool
) -> None:
    """P38, whatever the node went through."""
    memory = UNLIMITED if unlimited else MemoryPolicy()
    cuts = [policy(rule(time_slicing(count), memory=memory)) for count in (before, after)]
    first = [(SHARED, str(one.id)) for one in make_plan(node(gpu(0)), cuts[0]).slices()]
    entries = {first[n]: Entry(state=state, owner=holder(n)) for n, state in states.items() if n < len(first)}
    what = known(node(gpu(0)), *cuts, entries=entries, faults={gpu_uuid(0): "XID 79"} if faulty else {})
    counts, row = resource(what), one_gpu(what)
    assert min(counts.held, counts.free, counts.over_by, counts.quarantined, counts.draining, counts.waiting) >= 0
    assert (row.slices, row.held, row.free, row.draining) == (counts.slices, counts.held, counts.free, counts.draining)
    assert counts.held + counts.quarantined == len(entries)
    assert counts.free + counts.waiting <= counts.slices == after
    if not faulty:
        assert counts.over_by == max(0, counts.held - after)
    assert counts.free == 0 or (not faulty and counts.over_by == 0)


# ---- GPUs


def test_a_gpu_tells_what_it_promised_and_the_largest_share_that_is_still_free() -> None:
    row = one_gpu(known(node(gpu(0)), policy(rule(time_slicing(4), request_max=2)), entries=held(key(0, 20480))))
    assert (row.promised_bytes, row.largest_free_bytes) == (80 * GIB, 40 * GIB)
    assert (row.index, row.product, row.memory_bytes) == (0, "NVIDIA A100-SXM4-80GB", 80 * GIB)
    assert (row.strategy, row.resource, row.mig_index) == ("time-slicing", SHARED, None)
    alone = one_gpu(known(node(gpu(0)), policy(time_slicing(4))))
    assert alone.largest_free_bytes == 20 * GIB, "one slice a container, unless the policy says more"


def test_nothing_free_is_zero_and_no_promise_is_unknown_not_zero() -> None:
    full = one_gpu(known(node(gpu(0)), policy(time_slicing(1)), entries=held(key(0, 81920))))
    assert full.largest_free_bytes == 0
    unlimited = one_gpu(known(node(gpu(0)), policy(rule(time_slicing(4), memory=UNLIMITED))))
    assert (unlimited.promised_bytes, unlimited.largest_free_bytes) == (None, None)


def test_a_whole_gpu_has_all_its_memory_free() -> None:
    assert one_gpu(known(node(gpu(0)), policy(Exclusive()))).largest_free_bytes == 80 * GIB


def test_each_mig_device_has_a_row_with_its_gpu_s_index_and_a_gpu_in_mig_mode_has_none() -> None:
    parent = gpu(0, mig_enabled=True, mig_devices=(mig(0, "1g.10gb"), mig(1, "2g.20gb")))
    rows = report(known(node(parent), policy(Mig()))).status.gpus
    assert [(row.uuid, row.gpu_uuid, row.index, row.mig_index, row.mig_profile) for row in rows] == [
        (mig(0, None).uuid, gpu_uuid(0), 0, 0, "1g.10gb"),
        (mig(1, None).uuid, gpu_uuid(0), 0, 1, "2g.20gb"),
    ]
    assert rows[0].promised_bytes == rows[0].memory_bytes == 9856 * MIB


def test_a_gpu_without_slices_says_why() -> None:
    row = one_gpu(known(node(gpu(0, memory_mib=None)), policy(rule(time_slicing(2), memory=MemoryPolicy(limit=GIB)))))
    assert "the driver does not report" in str(row.offers_nothing)
    assert (row.slices, row.strategy, row.memory_bytes, row.largest_free_bytes) == (0, None, None, 0)


def test_a_gpu_that_only_a_held_id_still_names_has_a_row_of_unknowns() -> None:
    """After a restart the driver may not report a GPU any more whose slices are held."""
    gone = key(0, 20480, index=5)
    row = one_gpu(known(node(gpu(0)), policy(time_slicing(4)), entries=held(gone)), 5)
    assert (row.index, row.product, row.memory_bytes, row.health) == (None, None, None, "unknown")
    assert (row.slices, row.held, row.promised_bytes) == (0, 1, 20 * GIB)


def test_health_is_unknown_while_the_driver_does_not_answer_but_a_known_fault_stays_one() -> None:
    """DESIGN §1: a call that hangs makes health unknown."""
    what = known(
        node(gpu(0), gpu(1)), policy(time_slicing(1)), faults={gpu_uuid(1): "XID 79"}, driver_problem="NVML hangs"
    )
    assert (one_gpu(what).health, one_gpu(what).reason) == ("unknown", "NVML hangs")
    assert one_gpu(what, 1).health == "unhealthy"
    assert report(what).missing() == ("driver: NVML hangs",)


def test_a_gpu_that_cannot_report_xids_is_unmonitored_and_not_unhealthy() -> None:
    """P16."""
    health = Health(devices={gpu_uuid(0): DeviceHealth(monitored=False)})
    assert one_gpu(known(node(gpu(0)), policy(time_slicing(1)), health=health)).health == "unmonitored"


# ---- holders


def test_an_owner_is_named_with_pod_container_and_promise() -> None:
    (one,) = holders(known(node(gpu(0)), policy(time_slicing(4)), entries=held(key(1, 20480))))
    assert (one.resource, one.id, one.state) == (*key(1, 20480), "held")
    assert (one.namespace, one.pod, one.uid, one.container) == ("default", "train-1", "uid-1", "c")
    assert (one.promise_bytes, one.used_bytes, one.held_by) == (20 * GIB, None, None)


@pytest.mark.parametrize(
    ("hold", "said"),
    [
        (Hold(by="mps", reason=None), "its share of SMs is held by mps"),
        (Hold(by=None, reason="mps: it never came"), "its share of SMs is not held: mps: it never came"),
    ],
)
def test_an_owner_s_share_of_sms_is_told_beside_its_memory(hold: Hold, said: str) -> None:
    what = known(node(gpu(0)), policy(time_slicing(4)), entries=held(key(1, 20480)))
    at = ("uid-1", "c", gpu_uuid(0))
    (one,) = holders(replace(what, holds={at: Hold(by="driver", reason=None)}, share_holds={at: hold}))
    assert one.held_by == "driver"
    assert said in one.reason


def test_a_slice_that_was_allocated_for_somebody_unknown_has_a_holder_without_a_name() -> None:
    (one,) = holders(
        known(node(gpu(0)), policy(time_slicing(4)), entries={key(0, 20480): Entry(state=State.ALLOCATED)})
    )
    assert (one.state, one.pod, one.container) == ("allocated", None, None)


def test_a_remnant_is_told_beside_the_new_owner_and_alone_in_quarantine() -> None:
    left = Remnant(holder=holder(1), since_s=0.0, known=True)
    entries = {
        key(0, 20480): Entry(state=State.HELD, owner=holder(2), remnants=(left,)),
        key(1, 20480): Entry(state=State.QUARANTINED, remnants=(left,), reason="its owner has ended"),
    }
    told = [
        (one.id, one.state, one.pod) for one in holders(known(node(gpu(0)), policy(time_slicing(4)), entries=entries))
    ]
    assert told == [
        (key(0, 20480)[1], "held", "train-2"),
        (key(0, 20480)[1], "remnant", "train-1"),
        (key(1, 20480)[1], "quarantined", "train-1"),
    ]


def test_another_plugin_s_id_is_listed_with_a_promise_that_is_unknown() -> None:
    foreign = (SHARED, f"{gpu_uuid(0)}::0")
    what = known(node(gpu(0)), policy(time_slicing(4)), entries=held(foreign))
    (one,) = holders(what)
    assert (one.id, one.promise_bytes) == (foreign[1], None)
    assert one_gpu(what).promised_bytes is None
    assert "another plugin" in str(one_gpu(what).waiting)


# ---- used memory


def using(processes: ProcessReading | None, *keys: SliceKey) -> Known:
    return known(
        node(gpu(0), gpu(1)), policy(time_slicing(4)), entries=held(*(keys or (key(0, 20480),))), processes=processes
    )


def used(what: Known) -> tuple[int | None, list[int | None]]:
    return one_gpu(what).used_bytes, [one.used_bytes for one in holders(what)]


def test_used_memory_is_the_sum_of_a_holder_s_processes_and_of_all_on_the_gpu() -> None:
    what = using(reading(process("uid-1", GIB), process("uid-1", GIB, pid=8), process(None, 5)))
    assert used(what) == (2 * GIB + 5, [2 * GIB])
    assert used(using(reading())) == (0, [0]), "a complete list without processes is zero"


def test_without_a_complete_process_list_used_memory_is_unknown_never_zero() -> None:
    assert used(using(None)) == (None, [None])
    assert used(using(reading(asked=[gpu_uuid(1)]))) == (None, [None])
    assert used(using(reading(process("uid-1", None)))) == (None, [None])
    assert report(using(None)).processes is None


def test_a_process_that_could_be_anybody_s_makes_every_holder_s_use_unknown() -> None:
    assert used(using(reading(process("uid-1", GIB), process(None, 5, attributed=False)))) == (GIB + 5, [None])


def test_two_containers_of_one_pod_on_one_gpu_cannot_be_told_apart() -> None:
    first, second = (Entry(state=State.HELD, owner=holder(1, container)) for container in ("a", "b"))
    two = {key(0, 20480): first, key(1, 20480): second}
    what = known(node(gpu(0)), policy(time_slicing(4)), entries=two, processes=reading(process("uid-1", GIB)))
    assert used(what) == (GIB, [None, None])
    idle = known(node(gpu(0)), policy(time_slicing(4)), entries=two, processes=reading())
    assert used(idle) == (0, [0, 0])


def test_several_slices_of_one_container_on_one_gpu_show_what_it_uses_there() -> None:
    entry = Entry(state=State.HELD, owner=holder(1))
    both = {key(0, 20480): entry, key(1, 20480): entry}
    what = known(node(gpu(0)), policy(time_slicing(4)), entries=both, processes=reading(process("uid-1", GIB)))
    assert used(what) == (GIB, [GIB, GIB])


def test_processes_are_listed_with_their_pods() -> None:
    listed = report(
        using(reading(process("uid-1", GIB), process(None, None, pid=9), process("uid-x", 1, pid=8)))
    ).processes
    assert listed is not None
    assert [(one.pid, one.pod, one.uid, one.used_bytes) for one in listed] == [
        (7, "train-1", "uid-1", GIB),
        (8, None, "uid-x", 1),
        (9, None, None, None),
    ]


# ---- slices


def test_each_slice_tells_its_state_and_why_it_is_not_healthy() -> None:
    two, four = policy(time_slicing(2)), policy(time_slicing(4))
    what = known(node(gpu(0)), two, four, entries=held(key(0, 40960)))
    slices = {one.id.partition("::")[2]: one for one in report(what).slices}
    assert set(slices) == {"ts-0-20480", "ts-1-20480", "ts-0-40960", "ts-1-40960"}
    draining, withdrawn, new = slices["ts-0-40960"], slices["ts-1-40960"], slices["ts-0-20480"]
    assert (draining.state, draining.healthy, draining.planned, draining.draining_s) == ("held", True, False, 3.0)
    assert (withdrawn.state, withdrawn.healthy, withdrawn.withdrawn_s) == ("offered", False, 3.0)
    assert "withdrawn" in withdrawn.reason
    assert (new.state, new.healthy, new.planned, new.withdrawn_s) == ("offered", True, True, None)
    assert all(one.listed for one in slices.values())


def test_a_drain_without_patience_left_says_so() -> None:
    two, four = policy(time_slicing(2)), policy(time_slicing(4))
    what = known(node(gpu(0)), two, four, four, entries=held(key(0, 40960)), every_s=700.0)
    (old,) = [one for one in report(what).slices if one.state == "held"]
    assert (old.overdue, old.healthy) == (True, False)
    assert "next release is final" in old.reason


# ---- the rest


def test_the_report_begins_with_what_the_node_is() -> None:
    facts = NodeFacts(injection=(Injection.VOLUME_MOUNTS, Injection.DEVICE_NODES), injection_reason="auto")
    found = report(known(node(gpu(0)), policy(time_slicing(4)), facts=facts))
    assert found.metadata.name == "node-7"
    assert (found.status.observed_at, found.status.agent) == ("at 1000", "1.2.3")
    assert found.status.facts_hash == facts.digest()
    described = found.status.node
    assert (described.driver, described.kernel, described.cgroup) == ("580.95.05", "6.1.0", "v2")
    assert (described.injection, described.injection_reason) == ("volume-mounts,device-nodes", "auto")


def test_an_agent_that_knows_nothing_yet_says_so() -> None:
    empty = report(Known())
    assert (empty.status.gpus, empty.status.resources, empty.slices) == ((), (), ())
    assert (empty.status.facts_hash, empty.status.node.driver, empty.inventory) == (None, None, None)
    assert empty.missing() == ("driver: it was not read yet",)


def test_the_policy_in_force_the_one_wanted_and_the_one_refused_are_all_told() -> None:
    """P05."""
    in_force = PolicyInForce(policy=replace(policy(), source="cm key a100"), digest="a" * 64, wanted_name="a10O")
    told = report(Known(policy=refuse(in_force, "cm has no key 'a10O'"))).status.policy
    assert (told.wanted, told.in_force, told.hash, told.refused) == (
        "a10O",
        "cm key a100",
        "a" * 64,
        "cm has no key 'a10O'",
    )
    assert (told.wanted_hash, told.staged) == (None, None)


def test_a_staged_policy_is_told_with_its_time() -> None:
    in_force = PolicyInForce(policy=policy(), digest="a" * 64)
    text = PolicyText(source="cm key default", text=b"", digest="b" * 64)
    standing = stage(in_force, replace(policy(), rollout_window_s=0.0), text, "node-7", 500.0)
    staged = report(Known(policy=standing)).status.policy.staged
    assert staged is not None
    assert (staged.source, staged.hash, staged.seen_at, staged.applies_at) == (
        "cm key default",
        "b" * 64,
        "at 500",
        "at 500",
    )


def test_sources_tell_their_age_and_what_is_missing() -> None:
    sources = {
        "list": SourceStatus(read_s=990.0),
        "cgroups": SourceStatus(read_s=100.0, problem="they cannot be read"),
        "pods": SourceStatus(),
    }
    found = report(known(node(gpu(0)), sources=sources))
    assert [(one.name, one.read_at, one.age_s) for one in found.sources] == [
        ("driver", None, None),
        ("list", "at 990", 10.0),
        ("cgroups", "at 100", 900.0),
        ("pods", None, None),
    ]
    assert found.missing() == ("cgroups: they cannot be read", "pods: it was not read yet")


def test_findings_and_warnings_of_every_kind_are_told() -> None:
    leaked = Finding(kind=FindingKind.LEAKED, message="process 7 is left", cure="end it", pid=7)
    found = report(
        known(
            replace(node(gpu(0)), warnings=("an index fails",)),
            policy(rule(time_slicing(4), memory=MemoryPolicy(limit=100 * MIB))),
            findings=(leaked,),
            policy=PolicyInForce(warnings=("it is mounted by itself",)),
            facts=NodeFacts(injection=(), warnings=("no nodes",)),
            health=Health(unattributed=("XID 79 on a GPU that the driver does not name",)),
        )
    )
    assert found.findings == (leaked,)
    assert [one.reason for one in found.status.warnings] == [
        "Policy",
        "Plan",
        "Inventory",
        "Injection",
        "UnattributedFault",
        "leaked",
    ]
    assert found.status.warnings[-1].message == "process 7 is left; end it"


def test_the_same_knowledge_gives_the_same_report() -> None:
    what = known(node(gpu(0)), policy(time_slicing(4)), entries=held(key(0, 20480)))
    assert report(what) == report(what)
    assert Strategy.TIME_SLICING.policy_name == "time-slicing"
