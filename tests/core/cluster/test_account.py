from __future__ import annotations

from dataclasses import replace

from sharer.core.cluster.account import Selection, report_cluster
from sharer.core.cluster.facts import ClusterFacts, LeaseFacts, Source
from sharer.core.cluster.pod_asks import Ask, PodAsk
from sharer.core.cluster.report import ClusterGpu, ClusterNode, ClusterReport
from sharer.core.cluster.rows import gpu_rows, held_by, holder_names, in_namespace
from sharer.core.report.node import HolderReport, WarningReport
from tests.core.builders import gpu, gpu_uuid, mig, node, policy, time_slicing
from tests.core.cluster.facts import ONE_NODE, account, agent, machine
from tests.core.evidence import SHARED, held, key
from tests.core.nodes import known

NVIDIA = "nvidia.com/gpu"


def ask(name: str = "p", node: str = "n", resource: str = SHARED, requested: int = 1, running: int = 1) -> PodAsk:
    asks = (Ask(resource=resource, requested=requested, running=running),)
    return PodAsk(node=node, namespace="default", name=name, uid=name, phase="Running", deleting=False, asks=asks)


def only(found: ClusterReport) -> ClusterNode:
    (one,) = found.nodes
    return one


def first(found: ClusterReport) -> ClusterGpu:
    return only(found).gpus[0]


def kinds(found: ClusterReport) -> list[str]:
    return [note.kind for note in found.notes]


def test_the_agent_s_slices_and_the_scheduler_s_count_stand_side_by_side() -> None:
    found = account(nodes=(machine(),), agents=(agent(),), pods=(ask(),))
    (resource,) = only(found).resources
    assert (resource.allocatable, resource.requested, resource.running) == (8, 1, 1)
    assert (resource.slices, resource.held, resource.free, resource.out_of_reach) == (8, 1, 7, 0)
    assert kinds(found) == []


def test_what_scheduler_and_kubelet_count_otherwise_is_a_note_with_both() -> None:
    found = account(nodes=(machine(),), agents=(agent(),), pods=(ask("a"), ask("b")))
    assert [note.message for note in found.notes] == [
        f"{SHARED}: pods ask for 2, as the scheduler counts, and the kubelet has given 1"
    ]


def test_free_slices_are_out_of_reach_on_a_node_that_takes_no_pods() -> None:
    for state, one in (
        ("not-ready", machine(ready=False)),
        ("cordoned", machine(cordoned=True)),
        ("gone", machine("other")),
    ):
        found = account(nodes=(one,), agents=(agent(),), pods=(ask(),))
        its_node = next(one for one in found.nodes if one.name == "n")
        assert (its_node.state, its_node.takes_pods) == (state, False)
        assert (its_node.gpus[0].free, its_node.gpus[0].out_of_reach) == (0, 3)
        assert its_node.gpus[0].largest_free_bytes == 0
        shared = next(total for total in found.totals if total.gpus)
        assert (shared.free, shared.out_of_reach, shared.held) == (0, 7, 1)
        assert state in kinds(found)


def test_the_slices_of_an_agent_that_does_not_renew_its_lease_are_out_of_reach() -> None:
    named = agent(lease="sharer/n")
    due = LeaseFacts(key="sharer/n", renewed_at="then", overdue_s=-5.0)
    assert only(account(nodes=(machine(),), agents=(named,), pods=(ask(),), leases=(due,))).agent_silent is None
    late = replace(due, overdue_s=70.0)
    found = account(nodes=(machine(),), agents=(named,), pods=(ask(),), leases=(late,))
    assert only(found).agent_silent == "its agent renewed its Lease last at then, and should have 1m10s ago"
    assert (first(found).free, first(found).state) == (0, ("agent silent",))
    assert "no Lease sharer/n" in (only(account(nodes=(machine(),), agents=(named,), leases=())).agent_silent or "")


def test_slices_that_the_node_does_not_list_are_out_of_reach_and_named() -> None:
    """An agent that the kubelet has not taken, or has forgotten: the scheduler sends no pod."""
    for listed in ({}, {SHARED: 0}):
        found = account(nodes=(machine(allocatable=listed),), agents=(agent(),), pods=(ask(),))
        device, (resource,) = first(found), only(found).resources
        assert (device.free, device.out_of_reach, device.largest_free_bytes, device.state) == (0, 3, 0, ("not listed",))
        assert (resource.free, resource.out_of_reach, found.totals[0].free) == (0, 7, 0)
        (note,) = [note for note in found.notes if note.kind == "no-resource"]
        assert note.message.startswith(f"its agent offers 8 {SHARED}, and the Node lists none")
    strange = account(nodes=(machine(allocatable={SHARED: None}),), agents=(agent(),), pods=(ask(),))
    assert first(strange).free == 3  # whether it lists any cannot be told


def test_what_could_not_be_counted_of_a_fleet_is_unknown_and_not_zero() -> None:
    facts = ClusterFacts(
        nodes=Source(items=None, problem="forbidden"),
        pods=Source(items=()),
        gpu_nodes=Source(items=(agent(lease="sharer/n"),)),
        leases=Source(items=None, problem="forbidden"),
    )
    fleet = report_cluster(facts, Selection(), cluster="c", observed_at="now").fleet
    assert (fleet.nodes, fleet.not_ready, fleet.cordoned, fleet.agents_silent) == (1, None, None, None)


def test_what_a_gpu_node_has_left_out_is_said_where_it_is_missing() -> None:
    told = agent(holders_omitted=3, gpus_omitted=2)
    gpus = (replace(told.gpus[0], held=4, verified=4), *told.gpus[1:])
    held_one = tuple(replace(one, held_by="driver") for one in told.holders)
    found = account(nodes=(machine(),), agents=(replace(told, gpus=gpus, holders=held_one),), pods=(ask(),))
    assert (first(found).holders_omitted, held_by(first(found))) == (3, "driver 1 of 4")
    assert [note.message for note in found.notes if note.kind == "omitted"] == [
        "devices left out of its GpuNode, and not among the GPUs here: 2",
        "holders left out of its GpuNode, and counted all the same: 3",
    ]
    nobody = account(nodes=(machine(),), agents=(replace(told, gpus=gpus, holders=()),), pods=(ask(),))
    assert held_by(first(nobody)) == "unknown"


def test_a_namespace_is_told_nothing_of_nodes_on_which_it_has_nothing() -> None:
    found = account(
        nodes=(machine("a", cordoned=True), machine("b", cordoned=True)),
        agents=(agent(name="a"), agent(known(ONE_NODE, policy(time_slicing(4))), "b")),
        pods=(ask(node="a"),),
    )
    assert [note.node for note in found.notes if note.kind == "cordoned"] == ["a", "b"]
    ours = in_namespace(found, "default")
    assert [one.name for one in ours.nodes] == ["a"]
    assert {note.node for note in ours.notes} == {"a"}
    assert ours.totals == found.totals


def test_without_leases_nobody_is_called_silent() -> None:
    assert only(account(nodes=(machine(),), agents=(agent(lease="sharer/n"),))).agent_silent is None


def test_free_is_never_negative_and_too_much_is_named_with_its_amount() -> None:
    """P38: capacity 8, allocatable 7, pods hold 8."""
    one = machine(capacity={NVIDIA: 8}, allocatable={NVIDIA: 7})
    found = account(nodes=(one,), pods=tuple(ask(f"p{number}", resource=NVIDIA) for number in range(8)))
    (resource,) = only(found).resources
    assert (resource.free, resource.over_by) == (0, 1)
    assert kinds(found) == ["over"]


def test_allocatable_that_is_missing_is_none_at_all_and_one_that_is_no_number_is_unknown() -> None:
    """P38."""
    absent = account(nodes=(machine(capacity={NVIDIA: 8}, allocatable={}),), pods=(ask(resource=NVIDIA),))
    assert (only(absent).resources[0].free, only(absent).resources[0].over_by) == (0, 1)
    strange = account(
        nodes=(machine(capacity={NVIDIA: None}, allocatable={NVIDIA: None}),), pods=(ask(resource=NVIDIA),)
    )
    assert (only(strange).resources[0].free, only(strange).resources[0].over_by) == (None, 0)


def test_a_pod_that_asks_for_what_its_node_does_not_have_is_unserved() -> None:
    found = account(nodes=(machine(capacity={}, allocatable={}),), pods=(ask(resource=NVIDIA),))
    assert kinds(found) == ["over", "unserved"]
    assert found.notes[1].pod == "p"


def test_what_stays_reserved_for_init_containers_is_named() -> None:
    found = account(nodes=(machine(),), pods=(ask(requested=2, running=0),))
    assert [(note.kind, note.pod) for note in found.notes] == [("init-only", "p")]
    assert (only(found).resources[0].requested, only(found).resources[0].running) == (2, 0)


def test_a_node_whose_labels_tell_of_gpus_and_that_offers_none_is_named() -> None:
    """P37."""
    label = {"feature.node.kubernetes.io/pci-0302_10de.present": "true"}
    found = account(nodes=(machine(labels=label, capacity={}, allocatable={}),))
    assert kinds(found) == ["no-resource"]
    silent = machine(labels={"nvidia.com/gpu.present": "false"}, capacity={}, allocatable={})
    assert account(nodes=(silent,)).nodes == ()


def test_findings_of_agents_are_notes_of_their_kind_and_other_warnings_are_warnings() -> None:
    warnings = tuple(
        WarningReport(reason=reason, message=reason, since=None)
        for reason in ("leaked", "contested", "UnattributedFault", "Plan")
    )
    found = account(nodes=(machine(),), agents=(agent(warnings=warnings),), pods=(ask(),))
    assert kinds(found) == ["leaked", "contested", "unattributed", "warning"]


def test_slices_that_somebody_unknown_holds_are_unattributed() -> None:
    told = agent()
    unknown = tuple(replace(one, pod=None, namespace=None) for one in told.holders)
    found = account(nodes=(machine(),), agents=(replace(told, holders=unknown),), pods=(ask(),))
    assert kinds(found) == ["unattributed"]
    assert holder_names(first(found)) == ("somebody unknown",)


def test_a_node_in_the_middle_of_a_re_cut_says_what_drains_and_what_waits() -> None:
    """P08."""
    what = known(node(gpu(0)), policy(time_slicing(2)), policy(time_slicing(4)), entries=held(key(0, 40960)))
    found = account(nodes=(machine(),), agents=(agent(what),), pods=(ask(),))
    assert first(found).state == ("1 draining", "waiting")
    assert kinds(found) == ["draining", "waiting"]


def test_totals_are_by_resource_and_product_and_unknown_where_a_part_is() -> None:
    other = agent(known(node(gpu(0, product="Tesla T4")), policy(time_slicing(2))), "m")
    found = account(
        nodes=(machine(), machine("m"), machine("x", capacity={NVIDIA: 4}, allocatable={NVIDIA: None})),
        agents=(agent(), other),
        pods=(ask(),),
    )
    lines = {(one.resource, one.product): one for one in found.totals}
    assert set(lines) == {(NVIDIA, None), (SHARED, "NVIDIA A100-SXM4-80GB"), (SHARED, "Tesla T4")}
    shared = lines[(SHARED, "NVIDIA A100-SXM4-80GB")]
    assert (shared.gpus, shared.slices, shared.held, shared.free, shared.used_bytes) == (2, 8, 1, 7, None)
    assert (lines[(NVIDIA, None)].free, lines[(NVIDIA, None)].memory_bytes, lines[(NVIDIA, None)].gpus) == (None,) * 3


def test_nodes_come_in_the_order_of_the_numbers_in_their_names() -> None:
    names = ("gpu-10", "gpu-9", "cpu", "gpu-9a")
    found = account(nodes=tuple(machine(name) for name in names))
    assert [one.name for one in found.nodes] == ["cpu", "gpu-9", "gpu-9a", "gpu-10"]


def test_the_order_of_what_was_read_changes_nothing() -> None:
    nodes, pods = (machine("a"), machine("b")), (ask("p"), ask("q", node="b"), ask("r"))
    agents = (agent(name="a"), agent(name="b"))
    one = account(nodes=nodes, agents=agents, pods=pods)
    assert account(nodes=nodes[::-1], agents=agents[::-1], pods=pods[::-1]) == one


def test_mig_devices_have_lines_of_their_own() -> None:
    from sharer.core.policy.model import Mig

    parent = gpu(0, mig_enabled=True, mig_devices=(mig(0, "1g.10gb"), mig(1, "2g.20gb")))
    found = account(nodes=(machine(),), agents=(agent(known(node(parent), policy(Mig()))),))
    assert [(gpu.mig_index, gpu.mig_profile, gpu.gpu_uuid) for _, gpu in gpu_rows(found)] == [
        (0, "1g.10gb", gpu_uuid(0)),
        (1, "2g.20gb", gpu_uuid(0)),
    ]


def holder(by: str | None, state: str = "held") -> HolderReport:
    (one,) = agent().holders
    return replace(one, held_by=by, state=state)


def test_held_by_says_what_was_seen_to_hold_how_many() -> None:
    device = first(account(nodes=(machine(),), agents=(agent(),)))
    looked = replace(device, verified=1)
    for by, word in (
        ((), None),
        (("driver", "driver"), "driver"),
        (("driver", None), "driver 1 of 2"),
        (("driver", "watch", None), "driver 1, watch 1 of 3"),
        ((None,), "nothing"),
    ):
        assert held_by(replace(looked, holders=tuple(holder(one) for one in by))) == word
    assert held_by(replace(device, verified=None, holders=(holder(None),))) == "unknown"
    assert held_by(replace(looked, holders=(holder(None, "quarantined"),))) is None


def test_a_selection_by_labels_leaves_out_what_is_on_other_nodes() -> None:
    found = account(
        nodes=(machine("a"),),
        agents=(agent(name="a"), agent(name="b")),
        pods=(ask(node="b"),),
        selection=Selection(only_listed=True),
    )
    assert [one.name for one in found.nodes] == ["a"]
