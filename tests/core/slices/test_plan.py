"""What a policy makes of a node, device by device."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharer.core.device_id import DeviceId
from sharer.core.errors import PolicyError
from sharer.core.inventory import Inventory
from sharer.core.policy.enforcers import Availability
from sharer.core.policy.list_size import MAX_LIST_BYTES, worst_case_numbered_list_bytes
from sharer.core.policy.model import Auto, ComputePolicy, Exclusive, Match, MemoryPolicy, Mig, Mps, Policy, TimeSlicing
from sharer.core.quantities import GIB, MIB
from sharer.core.slices.plan import Plan, make_plan
from tests.core.builders import gpu, gpu_uuid, mig, node, policy, rule, time_slicing


def ids(plan: Plan) -> list[str]:
    return [str(one.id) for one in plan.slices()]


def counts(plan: Plan) -> dict[str, int]:
    return {resource.name: len(resource.slices) for resource in plan.resources}


def only_refusal(plan: Plan) -> str:
    assert [refusal.uuid for refusal in plan.refusals] == [gpu_uuid(0)]
    assert not plan.resources
    return plan.refusals[0].reason


def mps(slices: int, **changes: object) -> Policy:
    return policy(
        rule(Mps(slices=slices, slice_memory_bytes=None), compute=ComputePolicy(percent=Auto.AUTO), **changes)
    )


def test_every_gpu_is_cut_into_as_many_slices_as_the_policy_says() -> None:
    plan = make_plan(node(gpu(0), gpu(1)), policy(time_slicing(4)))
    assert counts(plan) == {"nvidia.com/gpu.shared": 8}
    assert ids(plan)[:2] == [f"{gpu_uuid(0)}::ts-0-20480", f"{gpu_uuid(0)}::ts-1-20480"]


def test_one_slice_is_the_whole_gpu() -> None:
    """P03: 1 is a count like any other."""
    assert ids(make_plan(node(gpu(0)), policy(time_slicing(1)))) == [f"{gpu_uuid(0)}::ts-0-81920"]
    assert ids(make_plan(node(gpu(0)), mps(1))) == [f"{gpu_uuid(0)}::mps-0-81920-100"]


def test_each_gpu_is_measured_by_its_own_memory() -> None:
    """P26."""
    plan = make_plan(node(gpu(0, memory_mib=12288), gpu(1, memory_mib=16384)), policy(time_slicing(4)))
    assert [one.id.limit_mib for one in plan.slices()] == [3072] * 4 + [4096] * 4
    assert sum(one.promise_bytes or 0 for one in plan.slices()) == 28672 * MIB


def test_the_first_rule_that_matches_decides() -> None:
    rules = (
        rule(time_slicing(2), match=Match(uuids=(gpu_uuid(1),))),
        rule(Exclusive(), match=Match(product="*a100*")),
    )
    assert counts(make_plan(node(gpu(0), gpu(1)), policy(*rules))) == {"nvidia.com/gpu": 1, "nvidia.com/gpu.shared": 2}


def test_a_gpu_that_no_rule_matches_is_not_offered_and_the_operator_is_told() -> None:
    plan = make_plan(node(gpu(0)), policy(rule(time_slicing(2), match=Match(product="*T4*"))))
    assert plan.resources == ()
    assert "matches no rule" in plan.warnings[0]
    assert gpu_uuid(0) in plan.warnings[0]


def test_an_automatic_limit_is_rounded_down_to_64_mib_and_above_16_gib_to_256_mib() -> None:
    """DESIGN §2."""
    assert ids(make_plan(node(gpu(0, memory_mib=24564)), policy(time_slicing(4))))[0].endswith("::ts-0-6080")
    assert ids(make_plan(node(gpu(0, memory_mib=81559)), policy(time_slicing(4))))[0].endswith("::ts-0-20224")


def test_a_reserve_is_taken_off_before_the_gpu_is_divided_and_oversubscription_is_put_on_top() -> None:
    memory = MemoryPolicy(reserve_bytes=1 * GIB, oversubscribe=2.0)
    plan = make_plan(node(gpu(0, memory_mib=9 * 1024)), policy(rule(time_slicing(4), memory=memory)))
    assert {one.id.limit_mib for one in plan.slices()} == {4096}


def test_one_slice_is_never_promised_more_than_the_gpu_has() -> None:
    memory = MemoryPolicy(oversubscribe=4.0)
    plan = make_plan(node(gpu(0, memory_mib=8192)), policy(rule(time_slicing(2), memory=memory)))
    assert {one.id.limit_mib for one in plan.slices()} == {8192}


def test_slice_memory_decides_how_many_slices_there_are() -> None:
    """Neighbour of P26: with sliceMemory the count differs from GPU to GPU."""
    sharing = TimeSlicing(slices=None, slice_memory_bytes=10 * GIB)
    plan = make_plan(node(gpu(0), gpu(1, memory_mib=16384)), policy(sharing))
    assert Counter(one.gpu_uuid for one in plan.slices()) == {gpu_uuid(0): 8, gpu_uuid(1): 1}
    assert {one.promise_bytes for one in plan.slices()} == {10 * GIB}


def test_a_limit_that_rounds_to_zero_is_refused_and_never_promised() -> None:
    """P23: 4096 slices of a 2000 MiB GPU."""
    assert "rounds to 0" in only_refusal(make_plan(node(gpu(0, memory_mib=2000)), policy(time_slicing(4096))))


@pytest.mark.parametrize(
    ("memory", "words"),
    [
        (MemoryPolicy(limit=90 * GIB), "more than the 80 GiB that the GPU can give"),
        (MemoryPolicy(limit=30 * GIB), "4 slices of 30 GiB promise 120 GiB, and the GPU has 80 GiB"),
        (MemoryPolicy(reserve_bytes=80 * GIB), "memory.reserve is 80 GiB, and the GPU has 80 GiB"),
    ],
)
def test_a_promise_that_cannot_be_kept_is_refused_with_the_figures(memory: MemoryPolicy, words: str) -> None:
    """P23."""
    assert words in only_refusal(make_plan(node(gpu(0)), policy(rule(time_slicing(4), memory=memory))))


def test_what_is_required_is_refused_on_a_node_where_it_was_not_seen_to_be_possible() -> None:
    wanted = policy(rule(time_slicing(4), memory=MemoryPolicy(required=True)))
    unasked: tuple[Availability, ...] = ({}, {gpu_uuid(0): {}})
    for enforcers in unasked:
        refusal = only_refusal(make_plan(node(gpu(0)), wanted, enforcers=enforcers))
        assert "driver: whether it can was not checked" in refusal
    assert "(driver: cgroup v1)" in only_refusal(
        make_plan(node(gpu(0)), wanted, enforcers={gpu_uuid(0): {"driver": "cgroup v1"}})
    )


def test_a_plan_for_a_node_that_nobody_can_ask_says_what_it_takes_for_granted() -> None:
    plan = make_plan(node(gpu(0), gpu(1)), policy(rule(time_slicing(4), memory=MemoryPolicy(required=True))))
    assert counts(plan) == {"nvidia.com/gpu.shared": 8}
    (warning,) = plan.warnings
    assert warning.startswith("rules[0]: memory.required is true, so a node offers these slices only where its agent")


def test_a_small_limit_is_offered_with_a_warning() -> None:
    plan = make_plan(node(gpu(0, memory_mib=2048)), policy(time_slicing(4)))
    assert counts(plan) == {"nvidia.com/gpu.shared": 4}
    assert "512 MiB are small" in plan.warnings[0]


def test_a_gpu_of_unknown_memory_is_time_sliced_without_a_limit_and_the_operator_is_told() -> None:
    """P25: GB10 answers NOT_SUPPORTED; the other GPU is untouched."""
    plan = make_plan(node(gpu(0, memory_mib=None), gpu(1, memory_mib=24576)), policy(time_slicing(4)))
    assert ids(plan)[0] == f"{gpu_uuid(0)}::ts-0"
    assert ids(plan)[4] == f"{gpu_uuid(1)}::ts-0-6144"
    assert {one.promise_bytes for one in plan.slices() if one.gpu_uuid == gpu_uuid(0)} == {None}
    assert "no limit" in plan.warnings[0]


def test_a_size_in_the_policy_is_used_for_the_gpu_that_has_none_and_said_not_to_be_for_the_other() -> None:
    """Neighbour of P25 and P01: whoever writes 40Gi for a GPU of 80 GiB would think that half of it is kept back."""
    memory = MemoryPolicy(total_bytes=40 * GIB)
    plan = make_plan(node(gpu(0, memory_mib=None), gpu(1)), policy(rule(time_slicing(4), memory=memory)))
    assert [one.promise_bytes for one in plan.slices()] == [10 * GIB] * 4 + [20 * GIB] * 4
    [warning] = plan.warnings
    assert "GPU 1" in warning
    assert "memory.total 40 GiB is not used: the driver reports 80 GiB" in warning
    same = MemoryPolicy(total_bytes=80 * GIB)
    assert make_plan(node(gpu(1)), policy(rule(time_slicing(4), memory=same))).warnings == ()


def test_a_gpu_whose_compute_mode_keeps_a_second_process_off_is_warned_of_where_processes_share_it() -> None:
    """Neighbour of P24: set by an administrator, or left by an MPS that is gone. Under MPS it is right."""
    inventory = node(gpu(0, restricted="exclusive process"), gpu(1))
    [warning] = make_plan(inventory, policy(time_slicing(4))).warnings
    assert "compute mode is exclusive process" in warning
    assert f"nvidia-smi -i {gpu_uuid(0)} -c DEFAULT" in warning
    assert make_plan(inventory, mps(4)).warnings == ()
    assert make_plan(inventory, policy(Exclusive())).warnings == ()


def test_mps_on_a_gpu_of_unknown_memory_needs_a_size_and_is_never_unlimited() -> None:
    """P25: MPS without size is refused for that GPU, with size 131072 MiB it is limited."""
    inventory = node(gpu(0, memory_mib=None), gpu(1, memory_mib=24576))
    plan = make_plan(inventory, mps(4))
    assert [refusal.uuid for refusal in plan.refusals] == [gpu_uuid(0)]
    assert "set memory.total" in plan.refusals[0].reason
    assert Counter(one.gpu_uuid for one in plan.slices()) == {gpu_uuid(1): 4}
    sized = make_plan(inventory, mps(4, memory=MemoryPolicy(total_bytes=131072 * MIB)))
    assert ids(sized)[0] == f"{gpu_uuid(0)}::mps-0-32768-25"


@pytest.mark.parametrize(
    ("capability", "slices", "words"),
    [
        ((6, 1), 4, "this GPU has 6.1"),
        (None, 4, "does not report"),
        ((9, 0), 49, "at most 48 clients"),
        ((10, 0), 61, "at most 60 clients"),
    ],
)
def test_mps_is_refused_where_the_gpu_cannot_do_it(capability: tuple[int, int] | None, slices: int, words: str) -> None:
    assert words in only_refusal(make_plan(node(gpu(0, compute_capability=capability)), mps(slices)))


@pytest.mark.parametrize("most", [2, None])
def test_mps_gives_a_container_one_slice_at_most(most: int | None) -> None:
    """gpu-limits §3: a client has its server's one default, or one namespace, however many slices its container has."""
    assert "an MPS client has the limits of one slice" in only_refusal(
        make_plan(node(gpu(0)), mps(4, request_max=most))
    )


def two_rules(*, first: int, second: int, resource: str | None = None) -> Policy:
    """Two MPS rules for one GPU each, with so many slices."""
    make = [
        rule(
            Mps(slices=slices, slice_memory_bytes=None),
            match=Match(uuids=(gpu_uuid(index),)),
            compute=ComputePolicy(percent=Auto.AUTO),
        )
        for index, slices in enumerate((first, second))
    ]
    return policy(make[0], replace(make[1], resource=resource))


def test_two_shares_of_compute_under_one_mps_resource_are_refused_where_its_daemon_has_one_for_all() -> None:
    """Neighbour of P21 and P26: memory has a default for each GPU; SMs have one for the whole daemon."""
    inventory = node(gpu(0), gpu(1, memory_mib=40960))
    plan = make_plan(inventory, two_rules(first=4, second=8))
    assert [refusal.uuid for refusal in plan.refusals] == [gpu_uuid(1)]
    assert "its slices have 12 % of the SMs and those of GPU 0" in plan.refusals[0].reason
    assert counts(make_plan(inventory, two_rules(first=4, second=4))) == {"nvidia.com/gpu.shared": 8}
    apart = make_plan(inventory, two_rules(first=4, second=8, resource="example.com/small"))
    assert counts(apart) == {"nvidia.com/gpu.shared": 4, "example.com/small": 8}


def test_a_daemon_with_namespaces_has_a_share_for_each_slice() -> None:
    plan = make_plan(node(gpu(0), gpu(1)), two_rules(first=4, second=8), namespaced={"nvidia.com/gpu.shared"})
    assert counts(plan) == {"nvidia.com/gpu.shared": 12}
    assert {room.is_uniform for room in plan.rooms.values()} == {False}


def test_mps_can_never_be_what_memory_that_is_required_rests_on() -> None:
    """It holds each process, not the container, and a process can leave it."""
    memory = MemoryPolicy(enforce=("driver", "mps"), required=True)
    reasons = {gpu_uuid(0): {"driver": "cgroup v1", "mps": None}}
    plan = make_plan(node(gpu(0)), mps(4, memory=memory), enforcers=reasons)
    assert "driver: cgroup v1; mps: its limit is one of each process" in plan.refusals[0].reason
    held = make_plan(node(gpu(0)), mps(4, memory=memory), enforcers={gpu_uuid(0): {"driver": None}})
    assert counts(held) == {"nvidia.com/gpu.shared": 4}


def test_a_mig_device_is_no_part_of_a_gpu_for_mps() -> None:
    """P24's neighbour: MPS is excluded there, with the reason, and the other GPU is offered."""
    cut = gpu(0, mig_enabled=True, mig_devices=(mig(0, "1g.10gb"), mig(1, "1g.10gb")))
    plan = make_plan(node(cut, gpu(1)), mps(2))
    assert {refusal.uuid for refusal in plan.refusals} == {mig(0, None).uuid, mig(1, None).uuid}
    assert all("MPS does not share MIG devices" in refusal.reason for refusal in plan.refusals)
    assert [one.gpu_uuid for one in plan.slices()] == [gpu_uuid(1)] * 2


def test_shares_of_compute_never_add_up_to_more_than_the_gpu() -> None:
    assert {one.id.percent for one in make_plan(node(gpu(0)), mps(3)).slices()} == {33}
    asked = policy(rule(Mps(slices=4, slice_memory_bytes=None), compute=ComputePolicy(percent=30)))
    assert "4 slices of 30 %" in only_refusal(make_plan(node(gpu(0)), asked))


def test_a_gpu_in_mig_mode_without_a_device_offers_nothing_and_its_neighbours_everything() -> None:
    """P18."""
    inventory = node(
        gpu(0, mig_enabled=True),
        gpu(1, mig_enabled=True, mig_devices=(mig(0, "1g.10gb"), mig(1, "1g.10gb"), mig(2, "1g.10gb"))),
        gpu(2),
    )
    plan = make_plan(inventory, policy(Mig(), time_slicing(2)))
    assert counts(plan) == {"nvidia.com/gpu.shared": 2, "nvidia.com/mig-1g.10gb": 3}
    assert [refusal.uuid for refusal in plan.refusals] == [gpu_uuid(0)]
    assert "there is no MIG device" in plan.refusals[0].reason


def test_a_gpu_whose_mig_mode_cannot_be_read_is_not_offered_whole() -> None:
    """P18: it may be in MIG mode."""
    unreadable = gpu(0, mig_enabled=None, unknown=(("mig_enabled", "unknown error"),))
    assert "cannot be read: unknown error" in only_refusal(make_plan(node(unreadable), policy(time_slicing(2))))
    without_mig = gpu(0, mig_enabled=None)
    assert counts(make_plan(node(without_mig), policy(time_slicing(2)))) == {"nvidia.com/gpu.shared": 2}


def test_profiles_with_media_extensions_have_names_of_their_own() -> None:
    """P20."""
    devices = tuple(mig(n, profile) for n, profile in enumerate(["1g.10gb"] * 5 + ["1g.10gb+me", "1g.20gb"]))
    more = tuple(mig(n + 10, profile) for n, profile in enumerate(["1g.24gb", "1g.24gb+me", "1g.24gb+gfx"]))
    inventory = node(gpu(0, mig_enabled=True, mig_devices=devices), gpu(1, mig_enabled=True, mig_devices=more))
    assert counts(make_plan(inventory, policy(Mig()))) == {
        "nvidia.com/mig-1g.10gb": 5,
        "nvidia.com/mig-1g.10gb.me": 1,
        "nvidia.com/mig-1g.20gb": 1,
        "nvidia.com/mig-1g.24gb": 1,
        "nvidia.com/mig-1g.24gb.gfx": 1,
        "nvidia.com/mig-1g.24gb.me": 1,
    }


def test_two_profiles_that_would_share_a_name_are_not_mixed_up() -> None:
    """Neighbour of P20: '+' becomes '.', so 1g.10gb+me and a profile 1g.10gb.me would collide."""
    inventory = node(gpu(0, mig_enabled=True, mig_devices=(mig(0, "1g.10gb+me"), mig(1, "1g.10gb.me"))))
    plan = make_plan(inventory, policy(Mig()))
    assert counts(plan) == {"nvidia.com/mig-1g.10gb.me": 1}
    assert "would both be called" in plan.refusals[0].reason


def test_a_mig_device_of_unknown_profile_needs_a_name_from_the_policy() -> None:
    inventory = node(gpu(0, mig_enabled=True, mig_devices=(mig(0, None),)))
    assert "set resource" in make_plan(inventory, policy(Mig())).refusals[0].reason
    assert counts(make_plan(inventory, policy(rule(Mig(), resource="example.com/mig")))) == {"example.com/mig": 1}


def test_a_mig_device_promises_its_instances_memory_and_replicas_divide_it() -> None:
    inventory = node(gpu(0, mig_enabled=True, mig_devices=(mig(0, "1g.10gb", memory_mib=9856),)))
    whole = make_plan(inventory, policy(Mig()))
    assert ids(whole) == [f"{mig(0, None).uuid}::mig-0"]
    assert [one.promise_bytes for one in whole.slices()] == [9856 * MIB]
    assert ids(make_plan(inventory, policy(Mig(replicas=2))))[1] == f"{mig(0, None).uuid}::mig-1-4928"


def test_a_mig_uuid_that_cannot_be_a_device_id_is_refused_in_words() -> None:
    old = replace(mig(0, "1g.5gb"), uuid=f"MIG-{gpu_uuid(0)}/7/0")
    plan = make_plan(node(gpu(0, mig_enabled=True, mig_devices=(old,))), policy(Mig()))
    assert "update the driver" in plan.refusals[0].reason


def test_the_largest_list_that_the_kubelet_receives_is_planned_and_one_slice_more_refuses_the_policy() -> None:
    """P04, contract row 26."""
    inventory = node(gpu(0))
    unlimited = MemoryPolicy(limit=None)

    def sliced(count: int) -> Policy:
        return policy(rule(time_slicing(count), memory=unlimited))

    def size_bytes(count: int) -> int:
        return worst_case_numbered_list_bytes(len(f"{gpu_uuid(0)}::ts-"), count)

    largest = bisect_right(range(65536), MAX_LIST_BYTES, key=size_bytes) - 1
    assert counts(make_plan(inventory, sliced(largest))) == {"nvidia.com/gpu.shared": largest}
    with pytest.raises(PolicyError, match="the kubelet receives at most 4194304"):
        make_plan(inventory, sliced(largest + 1))
    with pytest.raises(PolicyError, match=r"rules\[0\].*131072 slices on this node"):
        make_plan(node(*(gpu(n) for n in range(8))), sliced(16384))


def test_a_limit_that_moved_by_less_than_its_step_stays_as_it_was() -> None:
    """DESIGN §2: totals move with driver versions, and that must not re-cut a node."""
    before = make_plan(node(gpu(0, memory_mib=81920)), policy(time_slicing(4)))
    held = [one.id for one in before.slices()]
    grown = node(gpu(0, memory_mib=81920 + 1000))
    assert make_plan(grown, policy(time_slicing(4)), adopt=held[2:3]).resources == before.resources
    far = node(gpu(0, memory_mib=81920 + 4 * 256))
    assert ids(make_plan(far, policy(time_slicing(4)), adopt=held)) == ids(make_plan(far, policy(time_slicing(4))))


def test_an_id_that_is_known_is_the_same_object_in_the_plan() -> None:
    """So is its text, which who reads the kubelet's checkpoint keeps: of 2,000 slices 0.2 MiB."""
    held = [DeviceId.parse(str(one.id)) for one in make_plan(node(gpu(0)), policy(time_slicing(4))).slices()]
    assert [id(one.id) for one in make_plan(node(gpu(0)), policy(time_slicing(4)), adopt=held).slices()] == list(
        map(id, held)
    )
    text = str(held[0])
    assert str(DeviceId.parse(text)) is text


def test_an_old_limit_is_not_adopted_above_what_the_gpu_has() -> None:
    held = [one.id for one in make_plan(node(gpu(0, memory_mib=81920)), policy(time_slicing(4))).slices()]
    shrunk = node(gpu(0, memory_mib=81900))
    assert ids(make_plan(shrunk, policy(time_slicing(4)), adopt=held))[0].endswith("-20224")
    reserve = MemoryPolicy(reserve_bytes=100 * MIB)
    held = [DeviceId(uuid=gpu_uuid(0), strategy=held[0].strategy, replica=0, limit_mib=20224)]
    into_reserve = make_plan(node(gpu(0, memory_mib=80990)), policy(rule(time_slicing(4), memory=reserve)), adopt=held)
    assert {one.id.limit_mib for one in into_reserve.slices()} == {20224}


def test_the_same_input_gives_the_same_plan_in_any_order_of_discovery() -> None:
    """Contract row 20: the IDs, not the order, since enumeration may change at a boot."""
    one_way = make_plan(node(gpu(0), gpu(1)), policy(time_slicing(3)))
    other_way = make_plan(node(replace(gpu(1), index=0), replace(gpu(0), index=1)), policy(time_slicing(3)))
    assert sorted(ids(one_way)) == sorted(ids(other_way))


def test_millions_of_slices_are_refused_without_being_made() -> None:
    """Found by fuzzing: sliceMemory: 1Mi on a node of 8 large GPUs took the agent's memory before it was refused."""
    large = node(*(gpu(number, memory_mib=16 * 2**20) for number in range(8)))
    with pytest.raises(PolicyError, match=r"would have 134217728 slices on this node"):
        make_plan(large, policy(TimeSlicing(slices=None, slice_memory_bytes=MIB)))


@st.composite
def inventories(draw: st.DrawFn) -> Inventory:
    gpus = []
    for index in range(draw(st.integers(0, 4))):
        instances = draw(st.lists(st.sampled_from(["1g.10gb", "1g.10gb+me", "2g.20gb", None]), max_size=3))
        devices = tuple(mig(index * 10 + n, profile) for n, profile in enumerate(instances))
        memory_mib = draw(st.none() | st.integers(1, 200_000))
        enabled = draw(st.sampled_from([None, False, True]))
        capability = draw(st.sampled_from([None, (6, 1), (7, 0), (8, 0), (10, 0)]))
        changed = gpu(index, memory_mib=memory_mib, compute_capability=capability, mig_enabled=enabled)
        gpus.append(replace(changed, mig_devices=devices if enabled else ()))
    return node(*gpus)


memories = st.builds(
    MemoryPolicy,
    limit=st.none() | st.just(Auto.AUTO) | st.integers(MIB, 100 * GIB),
    reserve_bytes=st.integers(0, 8 * GIB),
    oversubscribe=st.sampled_from([1.0, 1.5, 3.0]),
    total_bytes=st.none() | st.integers(GIB, 100 * GIB),
)
counted = st.integers(1, 200)
sharings = st.one_of(
    st.builds(TimeSlicing, slices=counted, slice_memory_bytes=st.none()),
    st.builds(TimeSlicing, slices=st.none(), slice_memory_bytes=st.integers(MIB, 50 * GIB).map(lambda b: max(b, GIB))),
    st.builds(Mps, slices=counted, slice_memory_bytes=st.none()),
    st.builds(Mig, replicas=st.integers(1, 8)),
    st.just(Exclusive()),
)


@given(inventories(), sharings, memories)
def test_whatever_is_planned_keeps_the_promises_of_the_design(
    inventory: Inventory, sharing: object, memory: MemoryPolicy
) -> None:
    """DESIGN §2, §3: IDs are unique and valid, no limit is 0, and promises stay within each GPU."""
    plan = make_plan(inventory, policy(rule(sharing, memory=memory)))  # type: ignore[arg-type]
    assert plan == make_plan(inventory, policy(rule(sharing, memory=memory)))  # type: ignore[arg-type]
    texts = ids(plan)
    assert len(texts) == len(set(texts))
    promised: Counter[str] = Counter()
    percents: Counter[str] = Counter()
    for one in plan.slices():
        assert DeviceId.parse(str(one.id)) == one.id
        assert one.promise_bytes is None or one.promise_bytes > 0
        promised[one.id.uuid] += (one.id.limit_mib or 0) * MIB
        percents[one.id.uuid] += one.id.percent or 0
    for known in inventory.gpus:
        for uuid, memory_bytes in (
            (known.uuid, known.memory_bytes),
            *((m.uuid, m.memory_bytes) for m in known.mig_devices),
        ):
            total_bytes = memory_bytes if memory_bytes is not None else memory.total_bytes
            if promised[uuid]:
                assert total_bytes is not None
                assert promised[uuid] <= (total_bytes - memory.reserve_bytes) * memory.oversubscribe
    assert all(percent <= 100 for percent in percents.values())
    offered = {one.id.uuid for one in plan.slices()}
    for known in inventory.gpus:
        if known.mig_enabled:
            assert known.uuid not in offered, "a GPU in MIG mode is never offered whole"
