"""A container is held to what its slices add up to, its pod to what its containers may use at one time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharer.core.edits import DeviceFacts, Injection, NodeFacts
from sharer.core.holders.evidence import CheckpointEntry
from sharer.core.holders.observations import ContainerKind, ContainerSeen, PodPhase, PodSeen
from sharer.core.limits.limits import (
    ComputeBound,
    ContainerCgroup,
    MemoryBound,
    PodCgroup,
    Tenant,
    Terms,
    find_tenants,
    make_terms,
    needs_pre_start,
    with_driver_limits,
)
from sharer.core.policy.enforcers import Choice
from sharer.core.policy.model import MemoryPolicy, Mig
from sharer.core.quantities import GIB, MIB
from sharer.core.slices.plan import Slice, make_plan
from tests.core.builders import gpu, gpu_uuid, mig, node, policy, rule, time_slicing

UID = "0e1f8a3b-0000-4000-8000-00000000000a"
A, B = gpu_uuid(0), gpu_uuid(1)
ABLE: Mapping[str, str | None] = {"driver": None, "watch": None, "mig": "it is no MIG device"}
TERMS = {uuid: Terms(reasons=ABLE, memory_bytes=80 * GIB) for uuid in (A, B)}
INIT, SIDECAR, APP = ContainerKind.INIT, ContainerKind.SIDECAR, ContainerKind.APP
SHARED = "nvidia.com/gpu.shared"


def entry(container: str, *ids: str, resource: str = SHARED) -> CheckpointEntry:
    return CheckpointEntry(uid=UID, container=container, resource=resource, ids=ids)


def slices(uuid: str, *replicas: int, mib: int = 1024) -> list[str]:
    return [f"{uuid}::ts-{replica}-{mib}" for replica in replicas]


def seen(*containers: tuple[str, ContainerKind], ids: Mapping[str, str] | None = None) -> PodSeen:
    return PodSeen(
        uid=UID,
        cgroup_uid=UID,
        namespace="train",
        name="job",
        phase=PodPhase.RUNNING,
        containers=tuple(
            ContainerSeen(name=name, kind=kind, container_id=(ids or {}).get(name)) for name, kind in containers
        ),
    )


def leaf(number: int, name: str | None = None, inner: str | None = None) -> ContainerCgroup:
    path = f"/c/pod/{number:064x}"
    return ContainerCgroup(container_id=f"{number:064x}", path=path, inner=inner and f"{path}/{inner}", name=name)


def cgroup(*containers: ContainerCgroup) -> PodCgroup:
    return PodCgroup(uid=UID, path="/c/pod", containers=containers)


def amounts(tenant: Tenant) -> dict[str, tuple[int, int]]:
    """Least and most, in GiB, by device."""
    return {one.uuid: (one.at_least_bytes // GIB, one.at_most_bytes // GIB) for one in tenant.memory}


def pod_of(tenants: list[Tenant]) -> Tenant:
    (pod,) = [tenant for tenant in tenants if tenant.container is None]
    return pod


def test_a_container_is_held_to_the_sum_of_its_slices_on_each_gpu() -> None:
    """P26: what depends on memory is per GPU."""
    entries = [entry("main", *slices(A, 0, 1), *slices(B, 0, mib=4096))]
    pod, main = find_tenants(UID, entries, cgroup(), None, TERMS)
    assert amounts(main) == {A: (2, 2), B: (4, 4)}
    assert (pod.container, amounts(pod)) == (None, {A: (2, 2), B: (4, 4)})
    assert {bound.choice.by for bound in main.memory} == {"driver"}


def test_slices_of_two_resources_on_one_gpu_add_up() -> None:
    entries = [entry("main", *slices(A, 0)), entry("main", *slices(A, 5, mib=2048), resource="example.com/big")]
    assert amounts(pod_of(find_tenants(UID, entries, cgroup(), None, TERMS))) == {A: (3, 3)}


def test_app_containers_and_sidecars_run_at_the_same_time() -> None:
    entries = [entry("side", *slices(A, 0)), entry("one", *slices(A, 1)), entry("two", *slices(A, 2))]
    pod = seen(("side", SIDECAR), ("one", APP), ("two", APP))
    assert amounts(pod_of(find_tenants(UID, entries, cgroup(), pod, TERMS))) == {A: (3, 3)}


def test_an_init_container_runs_alone_with_the_sidecars_before_it() -> None:
    """As a kubelet gave them out (runtime-facts 56): i1 {31, 1}, a sidecar {31}, i2 {1}, c {1}."""
    entries = [
        entry("i1", *slices(A, 31, 1)), entry("side", *slices(A, 31)),
        entry("i2", *slices(A, 1)), entry("c", *slices(A, 1)),
    ]  # fmt: skip
    pod = seen(("i1", INIT), ("side", SIDECAR), ("i2", INIT), ("c", APP))
    tenants = find_tenants(UID, entries, cgroup(), pod, TERMS)
    assert amounts(pod_of(tenants)) == {A: (2, 2)}
    assert [tenant.container for tenant in tenants] == [None, "c", "i1", "i2", "side"]


def test_a_large_init_container_lifts_the_pods_limit_and_not_the_apps() -> None:
    entries = [entry("load", *slices(A, 0, 1, 2)), entry("main", *slices(A, 0))]
    tenants = find_tenants(UID, entries, cgroup(), seen(("load", INIT), ("main", APP)), TERMS)
    assert {str(tenant.container): amounts(tenant)[A] for tenant in tenants} == {
        "None": (3, 3),
        "load": (3, 3),
        "main": (1, 1),
    }


def test_without_the_api_every_slice_that_the_pod_was_given_counts() -> None:
    entries = [entry("load", *slices(A, 0, 1)), entry("main", *slices(A, 2))]
    assert amounts(pod_of(find_tenants(UID, entries, cgroup(), None, TERMS))) == {A: (3, 3)}
    told = seen(("load", INIT), ("main", APP))
    assert amounts(pod_of(find_tenants(UID, entries, cgroup(), told, TERMS))) == {A: (2, 3)}


def test_a_container_that_the_api_does_not_name_makes_every_slice_count() -> None:
    entries = [entry("load", *slices(A, 0, 1)), entry("main", *slices(A, 2))]
    assert amounts(pod_of(find_tenants(UID, entries, cgroup(), seen(("load", INIT)), TERMS))) == {A: (3, 3)}


@st.composite
def pods(draw: st.DrawFn) -> tuple[list[CheckpointEntry], PodSeen]:
    """Pods as kubelets make them: later containers are given slices of earlier init containers first."""
    kinds = draw(st.lists(st.sampled_from([INIT, SIDECAR]), max_size=4)) + [APP] * draw(st.integers(1, 3))
    free = [f"{uuid}::ts-{replica}-1024" for uuid in (A, B) for replica in range(20)]
    reusable: list[str] = []
    entries, containers = [], []
    for number, kind in enumerate(kinds):
        name, count = f"c{number}", draw(st.integers(0, 3))
        held = [reusable.pop(0) if reusable else free.pop(draw(st.integers(0, len(free) - 1))) for _ in range(count)]
        if kind is INIT:
            reusable += [one for one in held if one not in reusable]
        entries.append(entry(name, *held))
        containers.append((name, kind))
    return entries, seen(*containers)


@given(pods())
def test_a_pods_limit_is_enough_for_all_that_run_together_and_never_more_than_was_promised(
    pod: tuple[list[CheckpointEntry], PodSeen],
) -> None:
    entries, told = pod
    tenants = find_tenants(UID, entries, cgroup(), told, TERMS)
    given_out = {device_id for one in entries for device_id in one.ids}
    for bound in pod_of(tenants).memory if tenants else ():
        promised = sum(1 for device_id in given_out if device_id.startswith(bound.uuid)) * GIB
        assert bound.at_least_bytes <= bound.at_most_bytes == promised
        apps = {
            device_id
            for one, container in zip(entries, told.containers, strict=True)
            if container.kind is not INIT
            for device_id in one.ids
            if device_id.startswith(bound.uuid)
        }
        assert bound.at_least_bytes >= len(apps) * GIB
        alone = [own for tenant in tenants if tenant.container for own in tenant.memory if own.uuid == bound.uuid]
        assert bound.at_least_bytes >= max(own.at_least_bytes for own in alone)


@given(pods())
def test_less_knowledge_never_lowers_the_limit_of_a_pod(pod: tuple[list[CheckpointEntry], PodSeen]) -> None:
    entries, told = pod
    with_api = find_tenants(UID, entries, cgroup(), told, TERMS)
    without = find_tenants(UID, entries, cgroup(), None, TERMS)
    if with_api:
        for known, unknown in zip(pod_of(with_api).memory, pod_of(without).memory, strict=True):
            assert known.at_least_bytes <= unknown.at_least_bytes <= known.at_most_bytes


def test_what_promises_no_memory_is_not_held() -> None:
    entries = [entry("main", f"{A}::ts-0", f"{B}::ex-0", "GPU-other::0", "junk")]
    assert find_tenants(UID, entries, cgroup(), None, TERMS) == []


def test_an_id_with_a_limit_of_zero_is_none_of_ours_and_holds_nobody() -> None:
    """Neighbour of P23: zero is an enforcer's word for "unlimited", and must never be set."""
    assert find_tenants(UID, [entry("main", f"{A}::ts-0-0")], cgroup(), None, TERMS) == []


def test_one_slice_without_a_limit_leaves_its_gpu_without_one_and_no_other() -> None:
    entries = [entry("main", *slices(A, 0), *slices(B, 0)), entry("side", f"{A}::ts-9")]
    tenants = find_tenants(UID, entries, cgroup(), None, TERMS)
    assert amounts(pod_of(tenants)) == {B: (1, 1)}
    assert amounts(tenants[1]) == {A: (1, 1), B: (1, 1)}


def test_oversubscribed_slices_are_held_to_what_there_is() -> None:
    """The driver takes no limit above the GPU's memory."""
    entries = [entry("main", *slices(A, 0, 1, 2, mib=40 * 1024))]
    assert amounts(pod_of(find_tenants(UID, entries, cgroup(), None, TERMS))) == {A: (80, 80)}


def test_a_container_is_found_by_its_own_record_and_the_api_has_the_last_word() -> None:
    entries = [entry("main", *slices(A, 0)), entry("side", *slices(A, 1))]
    cgroups = cgroup(leaf(1), leaf(2, "main"), leaf(3, "side", inner="container"))
    placed = {one.container: one.cgroups for one in find_tenants(UID, entries, cgroups, None, TERMS)}
    assert placed == {
        None: ("/c/pod",),
        "main": (f"/c/pod/{2:064x}",),
        "side": (f"/c/pod/{3:064x}", f"/c/pod/{3:064x}/container"),
    }
    told = seen(("main", APP), ("side", APP), ids={"side": f"{2:064x}"})
    assert [one.container for one in find_tenants(UID, entries, cgroups, told, TERMS)] == [None, "main", "side", "side"]


def test_a_container_without_a_known_cgroup_is_nowhere() -> None:
    main = find_tenants(UID, [entry("main", *slices(A, 0))], cgroup(leaf(1), leaf(2)), None, TERMS)[1]
    assert (main.cgroups, main.container_id) == ((), None)


def test_two_starts_of_a_container_are_two_tenants() -> None:
    tenants = find_tenants(UID, [entry("main", *slices(A, 0))], cgroup(leaf(1, "main"), leaf(2, "main")), None, TERMS)
    assert len({tenant.key for tenant in tenants}) == 3


def test_a_mig_device_holds_its_one_container_whatever_the_policy_names() -> None:
    device = mig(0, "1g.10gb")
    terms = make_terms(
        node(gpu(0, mig_enabled=True, mig_devices=(device,))),
        policy(rule(Mig(), memory=MemoryPolicy(enforce=("driver",)))),
        {device.uuid: {"mig": None, "driver": "the driver takes no limits for MIG devices", "watch": None}},
    )
    main = find_tenants(UID, [entry("main", f"{device.uuid}::mig-0")], cgroup(leaf(1, "main")), None, terms)[1]
    assert [(bound.choice.by, bound.at_most_bytes) for bound in main.memory] == [("mig", 9856 * MIB)]


def test_replicas_of_a_mig_device_are_not_held_by_their_instance() -> None:
    device = mig(0, "1g.10gb")
    terms = make_terms(
        node(gpu(0, mig_enabled=True, mig_devices=(device,))),
        policy(rule(Mig(replicas=2), memory=MemoryPolicy(enforce=("mig", "driver", "watch")))),
        {device.uuid: {"mig": None, "driver": "the driver takes no limits for MIG devices", "watch": None}},
    )
    main = find_tenants(UID, [entry("main", f"{device.uuid}::mig-0-4864")], cgroup(), None, terms)[1]
    assert main.memory[0].choice.by == "watch"


def test_a_mig_device_of_unknown_size_promises_nothing_that_could_be_held() -> None:
    """Neighbour of P25: an instance can be without figures, too."""
    assert find_tenants(UID, [entry("main", "MIG-x::mig-0")], cgroup(), None, {}) == []


def test_a_share_of_compute_that_nothing_can_hold_stays_in_sight() -> None:
    main = find_tenants(UID, [entry("main", f"{A}::mps-0-1024-25")], cgroup(), None, TERMS)[1]
    assert [(bound.percent, bound.choice.by) for bound in main.compute] == [(25, None)]


def test_old_ids_are_held_by_what_the_node_has_now() -> None:
    inventory = node(gpu(0))
    terms = make_terms(inventory, None, {A: {"driver": "it is too old", "watch": None}})
    main = find_tenants(UID, [entry("main", f"{A}::ts-3-777")], cgroup(), None, terms)[1]
    assert [(bound.choice.by, bound.choice.reason) for bound in main.memory] == [("watch", "driver: it is too old")]


def test_a_required_limit_is_offered_only_where_something_can_hold_it() -> None:
    inventory = node(gpu(0), gpu(1))
    wanted = policy(rule(time_slicing(4), memory=MemoryPolicy(required=True)))
    plan = make_plan(inventory, wanted, enforcers={A: {"driver": None}, B: {"driver": "cgroup v1", "watch": None}})
    assert {one.gpu_uuid for one in plan.slices()} == {A}
    assert [(refusal.uuid, "driver: cgroup v1" in refusal.reason) for refusal in plan.refusals] == [(B, True)]


def test_a_gpu_of_unknown_memory_is_not_offered_without_the_limit_that_is_required() -> None:
    """P25: never applied unlimited."""
    wanted = policy(rule(time_slicing(4), memory=MemoryPolicy(required=True)))
    plan = make_plan(node(gpu(0, memory_mib=None)), wanted, enforcers={A: {"driver": None}})
    assert list(plan.slices()) == []


def test_starts_wait_where_the_policy_requires_a_limit_whatever_can_hold_it_just_now() -> None:
    inventory = node(gpu(0))
    required = policy(rule(time_slicing(4), memory=MemoryPolicy(required=True)))
    offered = list(make_plan(inventory, required, enforcers={A: {"driver": None}}).slices())
    for reasons in ({"driver": None}, {"driver": "it is gone"}):
        assert needs_pre_start(offered, make_terms(inventory, required, {A: reasons}))
    assert not needs_pre_start(offered, make_terms(inventory, policy(time_slicing(4)), {A: {"driver": None}}))
    assert not needs_pre_start([], make_terms(inventory, required, {A: {"driver": None}}))


def test_a_mig_device_never_waits() -> None:
    device = mig(0, "1g.10gb")
    inventory = node(gpu(0, mig_enabled=True, mig_devices=(device,)))
    wanted = policy(rule(Mig(), memory=MemoryPolicy(required=True)))
    offered: list[Slice] = list(make_plan(inventory, wanted).slices())
    assert offered
    assert not needs_pre_start(offered, make_terms(inventory, wanted, {}))


def test_variables_for_the_toolkit_need_the_driver_to_be_chosen() -> None:
    facts = NodeFacts(injection=(Injection.CDI,), devices={A: DeviceFacts(), B: DeviceFacts(driver_limit=True)})
    inventory = node(gpu(0), gpu(1))
    chosen = make_terms(inventory, policy(time_slicing(4)), {A: {"driver": None}, B: {"driver": "cgroup v1"}})
    marked = with_driver_limits(facts, chosen)
    assert {uuid: device.driver_limit for uuid, device in marked.devices.items()} == {A: True, B: False}
    assert with_driver_limits(marked, chosen) is marked
    unwished = policy(rule(time_slicing(4), memory=MemoryPolicy(enforce=("watch",))))
    terms = make_terms(inventory, unwished, {A: {"driver": None, "watch": None}})
    assert not with_driver_limits(facts, terms).devices[A].driver_limit


@pytest.mark.parametrize(
    ("by", "names", "given_up"),
    [
        ("driver", ("watch",), True),
        ("driver", ("watch", "driver"), False),
        ("mig", ("watch",), False),
        (None, (), False),
    ],
)
def test_what_the_policy_names_no_more_is_given_up_but_an_instance_holds_whatever_it_says(
    by: str | None, names: tuple[str, ...], given_up: bool
) -> None:
    def held(choice: Choice, policy: MemoryPolicy) -> Tenant:
        bound = MemoryBound(uuid=A, at_least_bytes=GIB, at_most_bytes=GIB, policy=policy, choice=choice)
        share = ComputeBound(uuid=A, percent=25, choice=Choice(by="mps"))
        return Tenant(uid=UID, container="main", memory=(bound,), compute=(share,))

    before = held(Choice(by=by), MemoryPolicy())
    found = before.given_up(held(Choice(by="watch"), MemoryPolicy(enforce=names)))
    assert found == (replace(before, compute=()) if given_up else None)
