"""What the kubelet is shown of a resource."""

from __future__ import annotations

from sharer.core.change.transition import Listed, Listing, step
from sharer.core.edits import DeviceFacts, Injection, NodeFacts
from sharer.core.holders.ledger import Entry, Ledger, State
from sharer.core.inventory import Inventory, Topology
from sharer.core.mps.service import MpsService, MpsServices
from sharer.core.mps.state import MpsGpu
from sharer.core.offers import Faults, Obstacles, Offer, fault_of, find_faults, make_offers
from sharer.core.policy.model import Mig, Mps
from sharer.core.quantities import MIB
from sharer.core.slices.plan import make_plan
from tests.core.builders import gpu, gpu_uuid, mig, node, policy, time_slicing
from tests.core.evidence import holder

FACTS = NodeFacts(injection=(Injection.ENVVAR,))


def offered(
    inventory: Inventory,
    slices: int = 4,
    *,
    facts: NodeFacts = FACTS,
    faults: Faults | None = None,
    ledger: Ledger | None = None,
    listing: Listing | None = None,
) -> Offer:
    """The one resource that this node offers."""
    plan = make_plan(inventory, policy(time_slicing(slices), Mig()))
    ledger = ledger or Ledger()
    listing = listing or step(Listing(), plan, ledger, 0.0, patience_s=600.0)
    found = find_faults(inventory, facts) if faults is None else faults
    offers = make_offers(plan, listing, ledger, inventory, Topology(), Obstacles(faults=found))
    return next(iter(offers.values()))


def unhealthy(offer: Offer) -> list[str]:
    return [device.id for device in offer.devices if not device.healthy]


def test_every_slice_of_a_lost_gpu_is_unhealthy_and_no_other() -> None:
    """P13, P15: errors belong to their GPU; all its slices at once."""
    inventory = node(gpu(0), gpu(1, lost="GPU is lost"))
    assert unhealthy(offered(inventory)) == [f"{gpu_uuid(1)}::ts-{n}-20480" for n in range(4)]


def test_a_gpu_that_cannot_get_into_a_container_is_at_fault_with_that_reason() -> None:
    facts = NodeFacts(
        injection=(Injection.DEVICE_NODES,), devices={gpu_uuid(1): DeviceFacts(unusable="no /dev/nvidia1")}
    )
    assert find_faults(node(gpu(0), gpu(1)), facts) == {gpu_uuid(1): "no /dev/nvidia1"}


def test_free_mps_slices_are_unhealthy_while_no_daemon_serves_them_and_held_ones_are_not() -> None:
    """P40: each pod sent there would run without limits. Who holds one keeps it: its container starts again there."""
    inventory = node(gpu(0), gpu(1))
    plan = make_plan(inventory, policy(Mps(slices=2, slice_memory_bytes=None)))
    name, first = plan.resources[0].name, str(plan.resources[0].slices[0].id)
    ledger = Ledger(entries={(name, first): Entry(state=State.HELD, owner=holder())})
    listing = step(Listing(), plan, ledger, 0.0, patience_s=600.0)
    daemon = MpsService(gpus={gpu_uuid(0): MpsGpu(problem="it crashed"), gpu_uuid(1): MpsGpu()})
    mps = MpsServices(daemons={name: daemon})
    offer = make_offers(plan, listing, ledger, inventory, Topology(), Obstacles(mps=mps))[name]
    assert unhealthy(offer) == [str(plan.resources[0].slices[1].id)], "the other GPU is served"
    unheard = make_offers(plan, listing, ledger, inventory, Topology())[name]
    assert len(unhealthy(unheard)) == 3


def test_a_held_slice_of_a_gpu_that_was_gone_at_the_start_is_at_fault() -> None:
    """P15, after a restart; DESIGN §2: a MIG device's UUID dies with the instance."""
    held = ("nvidia.com/gpu.shared", f"{gpu_uuid(7)}::ts-0-20480")
    assert list(find_faults(node(gpu(0)), FACTS, [held])) == [gpu_uuid(7)]


def test_a_lost_mig_device_takes_only_its_own_slices_along() -> None:
    inventory = node(gpu(0, mig_enabled=True, mig_devices=(mig(0, "1g.10gb"), mig(1, "1g.10gb", lost="gone"))))
    assert unhealthy(offered(inventory)) == [f"{mig(1, None).uuid}::mig-0"]


def test_a_lost_gpu_takes_its_mig_devices_along() -> None:
    inventory = node(gpu(0, mig_enabled=True, mig_devices=(mig(0, "1g.10gb"),), lost="GPU is lost"))
    assert unhealthy(offered(inventory)) == [f"{mig(0, None).uuid}::mig-0"]


def test_a_change_of_health_changes_no_id_and_no_length() -> None:
    """Contract rows 21 and 22."""
    inventory = node(gpu(0), gpu(1))
    fit, unfit = offered(inventory), offered(inventory, faults={gpu_uuid(0): "XID 79"})
    assert [device.id for device in fit.devices] == [device.id for device in unfit.devices]
    assert len(unhealthy(unfit)) == 4


def test_numa_nodes_are_given_for_all_slices_of_a_resource_or_for_none() -> None:
    """Contract §14, row 27."""
    everywhere = offered(node(gpu(0, numa_node=0), gpu(1, numa_node=1)))
    assert [device.numa_node for device in everywhere.devices] == [0] * 4 + [1] * 4
    partly = offered(node(gpu(0, numa_node=0), gpu(1, numa_node=None)))
    assert {device.numa_node for device in partly.devices} == {None}


def test_a_slice_that_the_kubelet_believes_free_is_unhealthy_while_something_lives_on_it() -> None:
    """DESIGN §3, the one health rule. P30."""
    key = ("nvidia.com/gpu.shared", f"{gpu_uuid(0)}::ts-1-20480")
    busy = Ledger(entries={key: Entry(state=State.QUARANTINED, is_busy_for_nobody=True)})
    assert unhealthy(offered(node(gpu(0)), ledger=busy)) == [key[1]]
    held = Ledger(entries={key: Entry(state=State.HELD, owner=holder())})
    assert unhealthy(offered(node(gpu(0)), ledger=held)) == []


def test_the_free_slices_of_a_contested_gpu_are_withheld_and_its_held_ones_stay() -> None:
    """DESIGN §3: another plugin offers the same GPU."""
    key = ("nvidia.com/gpu.shared", f"{gpu_uuid(0)}::ts-1-20480")
    held = Ledger(entries={key: Entry(state=State.HELD, owner=holder())})
    inventory = node(gpu(0), gpu(1))
    plan = make_plan(inventory, policy(time_slicing(4)))
    listing = step(Listing(), plan, held, 0.0, patience_s=600.0)
    offers = make_offers(plan, listing, held, inventory, Topology(), Obstacles(contested={gpu_uuid(0)}))
    assert unhealthy(next(iter(offers.values()))) == [f"{gpu_uuid(0)}::ts-{n}-20480" for n in (0, 2, 3)]


def test_slices_of_the_old_cut_are_listed_and_answered_for_and_unhealthy_when_they_are_on_their_way_out() -> None:
    """Contract §17.17 and §17.19: a held ID never vanishes, and Allocate may be asked for it."""
    old = f"{gpu_uuid(0)}::ts-0-40960", f"{gpu_uuid(0)}::ts-1-40960"
    listing = Listing(
        ids={
            ("nvidia.com/gpu.shared", old[0]): Listed(draining_s=0.0),
            ("nvidia.com/gpu.shared", old[1]): Listed(withdrawn_s=0.0),
        }
    )
    offer = offered(node(gpu(0)), listing=listing)
    assert [(device.id, device.healthy) for device in offer.devices] == [(old[0], True), (old[1], False)]
    assert [str(one.id) for one in offer.slices.values()] == [*old]
    assert {one.promise_bytes for one in offer.slices.values()} == {40960 * MIB}
    overdue = Listing(ids={("nvidia.com/gpu.shared", old[0]): Listed(draining_s=0.0, overdue=True)})
    assert unhealthy(offered(node(gpu(0)), listing=overdue)) == [old[0]]


def test_an_id_of_another_plugin_is_listed_and_no_slice_of_ours() -> None:
    listing = Listing(ids={("nvidia.com/gpu.shared", f"{gpu_uuid(0)}::0"): Listed(draining_s=0.0)})
    offer = offered(node(gpu(0)), listing=listing)
    assert [device.id for device in offer.devices] == [f"{gpu_uuid(0)}::0"]
    assert offer.slices == {}


def test_a_fault_names_the_device_or_the_gpu_below_it() -> None:
    inventory = node(gpu(0, mig_enabled=True, mig_devices=(mig(0, "1g.10gb"),)))
    one = next(make_plan(inventory, policy(Mig())).slices())
    assert fault_of(one, {gpu_uuid(0): "XID 79"}) == "XID 79"
    assert fault_of(one, {mig(0, None).uuid: "gone"}) == "gone"
    assert fault_of(one, {gpu_uuid(1): "XID 79"}) is None
