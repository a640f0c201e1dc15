"""Each MPS daemon is told of every slice that is listed or held, under its resource's name."""

from __future__ import annotations

from sharer.core.change.transition import Listing, step
from sharer.core.holders.evidence import SliceKey
from sharer.core.holders.ledger import Entry, Ledger, State
from sharer.core.inventory import Inventory
from sharer.core.limits.limits import make_terms
from sharer.core.mps.state import MpsWanted
from sharer.core.mps.wanted import mps_gpus, mps_wanted, serving
from sharer.core.policy.model import Auto, ComputePolicy, MemoryPolicy, Mps, Policy
from sharer.core.slices.plan import make_plan
from tests.core.builders import gpu, gpu_uuid, node, policy, rule, time_slicing
from tests.core.evidence import holder

A, B = gpu_uuid(0), gpu_uuid(1)
NAME, OTHER = "nvidia.com/gpu.mps", "example.com/mps"
TWO_GPUS = node(gpu(0), gpu(1, memory_mib=40960))


def mps(slices: int, *, resource: str = NAME, user: int | None = None, memory: MemoryPolicy | None = None) -> Policy:
    return policy(
        rule(
            Mps(slices=slices, slice_memory_bytes=None, user_id=user),
            resource=resource,
            memory=memory or MemoryPolicy(),
            compute=ComputePolicy(percent=Auto.AUTO),
        )
    )


def listing(inventory: Inventory, wanted: Policy, *held: SliceKey, before: Listing | None = None) -> Listing:
    """What is listed under a policy while these slices are held."""
    ledger = Ledger(entries={key: Entry(state=State.HELD, owner=holder()) for key in held})
    shown = before or Listing()
    for now_s in (0.0, 3.0):
        shown = step(shown, make_plan(inventory, wanted), ledger, now_s, patience_s=600.0)
    return shown


def wanted_of(shown: Listing, wanted: Policy, inventory: Inventory = TWO_GPUS) -> tuple[MpsWanted, ...]:
    return mps_wanted(shown, inventory, wanted, make_terms(inventory, wanted, {}))


def test_a_daemon_serves_the_gpus_of_its_resource_and_no_other() -> None:
    """P21: one daemon sees its own GPUs only."""
    both = policy(*mps(2).rules)
    first_only = policy(rule(time_slicing(2), match=rule(time_slicing(1)).match))
    (one,) = wanted_of(listing(TWO_GPUS, both), both)
    assert one == MpsWanted(
        resource=NAME,
        slices={
            A: (f"{A}::mps-0-40960-50", f"{A}::mps-1-40960-50"),
            B: (f"{B}::mps-0-20480-50", f"{B}::mps-1-20480-50"),
        },
        limits_memory=True,
    )
    assert wanted_of(listing(TWO_GPUS, first_only), first_only) == ()


def test_the_user_of_the_policy_is_told() -> None:
    assert wanted_of(listing(TWO_GPUS, mps(2, user=1000)), mps(2, user=1000))[0].user_id == 1000


def test_memory_is_left_to_the_driver_where_that_holds_it_on_every_gpu() -> None:
    """r615 and newer: MPS then only shares SMs."""
    wanted = mps(2)
    shown = listing(TWO_GPUS, wanted)
    terms = make_terms(TWO_GPUS, wanted, {A: {"driver": None}, B: {"driver": None}})
    assert mps_wanted(shown, TWO_GPUS, wanted, terms)[0].limits_memory is False
    partly = make_terms(TWO_GPUS, wanted, {A: {"driver": None}, B: {"driver": "NVML hangs"}})
    assert mps_wanted(shown, TWO_GPUS, wanted, partly)[0].limits_memory is True


def test_a_held_slice_of_an_earlier_cut_keeps_its_daemon_whatever_the_policy_says_now() -> None:
    held = (NAME, f"{A}::mps-0-40960-50")
    before = listing(TWO_GPUS, mps(2), held)
    sliced = policy(time_slicing(2))
    shown = listing(TWO_GPUS, sliced, held, before=before)
    assert held[1] in wanted_of(shown, sliced)[0].slices[A]
    assert wanted_of(shown, sliced)[0].user_id is None


def test_a_renamed_resource_s_daemon_comes_when_the_old_one_s_last_slice_is_free() -> None:
    """Two daemons cannot serve one GPU."""
    held = (NAME, f"{A}::mps-0-40960-50")
    renamed = mps(2, resource=OTHER)
    shown = listing(node(gpu(0)), renamed, held, before=listing(node(gpu(0)), mps(2), held))
    assert serving(shown, node(gpu(0)), renamed) == {A: NAME}
    assert [one.resource for one in wanted_of(shown, renamed)] == [NAME]
    assert mps_gpus(shown, node(gpu(0)), renamed) == {OTHER: {A: None}, NAME: {A: None}}
    free = listing(node(gpu(0)), renamed)
    assert serving(free, node(gpu(0)), renamed) == {A: OTHER}


def test_free_slices_that_are_being_withdrawn_want_no_daemon_because_others_are_in_their_place() -> None:
    """P24: the GPU would be in exclusive compute mode while its time slices are given out."""
    one = node(gpu(0))
    sliced, renamed = policy(time_slicing(2)), mps(2, resource=OTHER)
    shown = listing(one, sliced, before=listing(one, mps(2)))
    assert [listed.withdrawn_s is None for listed in shown.ids.values()] == [True, True, False, False]
    assert wanted_of(shown, sliced, one) == ()
    assert not serving(shown, one, sliced)
    assert not mps_gpus(shown, one, sliced)
    shown = listing(one, renamed, before=listing(one, mps(2)))
    assert serving(shown, one, renamed) == {A: OTHER}
    assert [daemon.resource for daemon in wanted_of(shown, renamed, one)] == [OTHER]


def test_before_anything_is_listed_it_is_known_whose_each_gpu_will_be() -> None:
    assert mps_gpus(Listing(), TWO_GPUS, mps(2)) == {NAME: {A: None, B: None}}
    assert mps_gpus(Listing(), TWO_GPUS, None) == mps_gpus(Listing(), None, mps(2)) == {}
