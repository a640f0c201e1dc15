"""What the kubelet is shown of a resource."""

from __future__ import annotations

from sharer.core.edits import DeviceFacts, Injection, NodeFacts
from sharer.core.inventory import Inventory
from sharer.core.listing import Offer, fault_of, find_faults, make_offer, with_faults
from sharer.core.plan import make_plan
from sharer.core.policy import Mig
from tests.core.builders import gpu, gpu_uuid, mig, node, policy, time_slicing

FACTS = NodeFacts(injection=(Injection.ENVVAR,))


def offered(inventory: Inventory, slices: int = 4, facts: NodeFacts = FACTS) -> Offer:
    plan = make_plan(inventory, policy(time_slicing(slices), Mig()))
    return make_offer(plan.resources[0], inventory, find_faults(inventory, facts))


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


def test_a_lost_mig_device_takes_only_its_own_slices_along() -> None:
    inventory = node(gpu(0, mig_enabled=True, mig_devices=(mig(0, "1g.10gb"), mig(1, "1g.10gb", lost="gone"))))
    assert unhealthy(offered(inventory)) == [f"{mig(1, None).uuid}::mig-0"]


def test_a_lost_gpu_takes_its_mig_devices_along() -> None:
    inventory = node(gpu(0, mig_enabled=True, mig_devices=(mig(0, "1g.10gb"),), lost="GPU is lost"))
    assert unhealthy(offered(inventory)) == [f"{mig(0, None).uuid}::mig-0"]


def test_a_change_of_health_changes_no_id_and_no_length() -> None:
    """Contract rows 21 and 22."""
    inventory = node(gpu(0), gpu(1))
    before = offered(inventory)
    after = with_faults(before, inventory, {gpu_uuid(0): "XID 79"})
    assert [device.id for device in after.devices] == [device.id for device in before.devices]
    assert with_faults(after, inventory, {}) == before


def test_numa_nodes_are_given_for_all_slices_of_a_resource_or_for_none() -> None:
    """Contract §14, row 27."""
    everywhere = offered(node(gpu(0, numa_node=0), gpu(1, numa_node=1)))
    assert [device.numa_node for device in everywhere.devices] == [0] * 4 + [1] * 4
    partly = offered(node(gpu(0, numa_node=0), gpu(1, numa_node=None)))
    assert {device.numa_node for device in partly.devices} == {None}


def test_what_was_offered_before_and_is_not_planned_now_stays_listed_unhealthy() -> None:
    """Contract §17.17 and §17.19: a held ID never vanishes."""
    inventory = node(gpu(0))
    old, new = offered(inventory, 4), make_plan(inventory, policy(time_slicing(2))).resources[0]
    recut = make_offer(new, inventory, {}, old.slices.values())
    assert [device.id for device in recut.devices if device.healthy] == [
        f"{gpu_uuid(0)}::ts-{n}-40960" for n in range(2)
    ]
    assert unhealthy(recut) == [f"{gpu_uuid(0)}::ts-{n}-20480" for n in range(4)]


def test_a_fault_names_the_device_or_the_gpu_below_it() -> None:
    inventory = node(gpu(0, mig_enabled=True, mig_devices=(mig(0, "1g.10gb"),)))
    one = next(make_plan(inventory, policy(Mig())).slices())
    assert fault_of(one, {gpu_uuid(0): "XID 79"}) == "XID 79"
    assert fault_of(one, {mig(0, None).uuid: "gone"}) == "gone"
    assert fault_of(one, {gpu_uuid(1): "XID 79"}) is None
