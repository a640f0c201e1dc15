"""Lists are handed to the kubelet when they change, and nothing is worked out while nothing that matters does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sharer.core.change.rollout import PolicyInForce
from sharer.core.edits import DeviceFacts, Injection
from sharer.core.errors import RequestError
from sharer.core.holders.evidence import Evidence
from sharer.core.holders.ledger import Entry, Ledger, State, allocated
from sharer.core.policy.model import MemoryPolicy
from sharer.flows.inbox import Allocated, Hint
from tests.core.builders import gpu, gpu_uuid, node, policy, rule, time_slicing
from tests.core.evidence import SHARED, checkpoint, given_to, held, key, listed, named
from tests.flows.offer_lab import FACTS, OfferLab
from tests.flows.sources import A, B


def test_a_plan_is_handed_over_once() -> None:
    lab = OfferLab()
    assert lab.step() == f"planned 4 × {SHARED}"
    assert [lab.step() for _ in range(5)] == [None] * 5
    assert lab.kubelet.lists == [(SHARED, [f"{gpu_uuid(0)}::ts-{n}-20480" for n in range(4)])]


def test_while_nothing_changes_nothing_is_worked_out() -> None:
    """65,000 planned slices on an idle node must not burn a core."""
    lab = OfferLab()
    lab.step()
    view = lab.state.view
    for _ in range(5):
        lab.step()
    assert lab.state.view is view
    assert lab.specs.writes == 1


def test_lists_that_are_worked_out_anew_and_say_the_same_stay_the_same_objects() -> None:
    """The kubelet's server keeps what it was handed: with 2,000 slices, another of each would be half a MiB."""
    lab = OfferLab()
    lab.step()
    before = lab.state.view
    held = Entry(state=State.HELD, owner=named("train", uid="uid-1"))
    lab.state.change(ledger=replace(before.ledger, entries={(SHARED, f"{gpu_uuid(0)}::ts-0-20480"): held}))
    lab.step()
    after = lab.state.view
    assert after.basis != before.basis
    assert after.listing is before.listing
    assert after.offers[SHARED] is before.offers[SHARED]


def test_a_spec_that_could_not_be_written_is_tried_again_though_nothing_else_changes() -> None:
    """Found by `tests/faults`: on a node at rest, the CDI directory was read-only for a while."""
    lab = OfferLab()
    lab.step()
    lab.specs.is_behind = True
    lab.step()
    assert lab.specs.writes == 2
    lab.specs.is_behind = False
    lab.step()
    assert lab.specs.writes == 2


def test_an_answer_is_worked_out_once_and_anew_when_anything_it_follows_from_is_another() -> None:
    lab = OfferLab()
    lab.step()
    answers, ids = lab.answers(), [f"{gpu_uuid(0)}::ts-1-20480"]
    first = answers.allocate(ids)
    assert answers.allocate(ids) is first
    lab.state.change(facts=replace(FACTS, injection=(Injection.CDI,), devices={gpu_uuid(0): DeviceFacts(cdi_name="n")}))
    assert answers.allocate(ids).cdi_names == ("n",)
    lab.state.change(faults={gpu_uuid(0): "XID 79"})
    with pytest.raises(RequestError, match="XID 79"):
        answers.allocate(ids)


def test_facts_that_were_read_again_have_the_specs_checked_and_nothing_worked_out() -> None:
    """Somebody may have deleted a CDI spec."""
    lab = OfferLab()
    lab.step()
    plan, listing, offers = lab.state.view.plan, lab.state.view.listing, lab.state.view.offers
    lab.facts_are_read()
    assert lab.step() is None
    assert lab.specs.writes == 2
    view = lab.state.view
    assert (view.plan is plan, view.listing is listing, view.offers is offers) == (True, True, True)
    assert view.facts == replace(FACTS, injection_reason="with 4 specs")


@pytest.mark.parametrize(
    ("what", "changed"),
    [
        ("another policy", {"policy": PolicyInForce(policy=policy(time_slicing(2)))}),
        ("a lost GPU", {"inventory": node(replace(gpu(0), lost="it has fallen off the bus"))}),
        ("an unusable device", {"facts": replace(FACTS, devices={gpu_uuid(0): DeviceFacts(unusable="no node")})}),
    ],
)
def test_whatever_matters_is_worked_out_at_once(what: str, changed: dict[str, object]) -> None:
    lab = OfferLab()
    lab.step()
    lab.state.change(**changed)
    lab.step()
    assert len(lab.kubelet.lists) == 2, what


def test_a_change_of_policy_goes_on_by_itself_to_its_end() -> None:
    """What is on its way out changes with time alone, and with further readings of the same."""
    lab = OfferLab()
    lab.step()
    lab.state.change(policy=PolicyInForce(policy=policy(time_slicing(2))))
    for serial in range(3, 40):
        evidence = Evidence(listed=listed(serial=serial), checkpoint=checkpoint(serial=serial))
        lab.state.change(ledger=Ledger(evidence=evidence))
        lab.step()
    assert lab.kubelet.lists[-1] == (SHARED, [f"{gpu_uuid(0)}::ts-{n}-40960" for n in range(2)])
    assert len(lab.state.view.listing.ids) == 2
    assert lab.state.view.listing.is_settled


def test_the_specs_of_slices_that_are_dropped_are_cleared_and_never_those_of_slices_that_are_listed() -> None:
    """Neighbour of P08: names of earlier cuts stay behind, and a runtime reads all of them for each container."""
    lab = OfferLab()
    lab.step()
    held = (SHARED, f"{gpu_uuid(0)}::ts-1-20480")
    lab.specs.kept.clear()
    lab.state.change(policy=PolicyInForce(policy=policy(time_slicing(2))))
    for serial in range(3, 40):
        evidence = Evidence(
            listed=listed(serial=serial), checkpoint=checkpoint(given_to("uid-train", held), serial=serial)
        )
        lab.state.change(ledger=Ledger(entries={held: Entry(state=State.HELD)}, evidence=evidence))
        before = set(lab.state.view.listing.ids)
        lab.step()
        if before == set(lab.state.view.listing.ids):
            assert lab.specs.kept == [], "nothing was dropped yet"
        elif before - set(lab.state.view.listing.ids):
            break
    assert lab.specs.kept
    assert all(held[1] in kept for kept in lab.specs.kept)
    assert lab.specs.kept[-1] == {device_id for _, device_id in lab.state.view.listing.ids}


def test_what_an_earlier_run_has_left_is_cleared_once_everybody_who_may_hold_it_was_asked_twice() -> None:
    """Neighbour of P08: the agent was killed in the middle of a re-cut."""
    lab = OfferLab()
    lab.state.change(ledger=Ledger(evidence=Evidence(checkpoint=checkpoint())))
    lab.step()
    assert lab.specs.kept == []
    evidence = Evidence(listed=listed(serial=2), checkpoint=checkpoint(serial=2))
    lab.state.change(ledger=Ledger(evidence=evidence))
    for _ in range(3):
        lab.step()
    assert lab.specs.kept == [{f"{gpu_uuid(0)}::ts-{n}-20480" for n in range(4)}]


def test_specs_that_could_not_be_cleared_are_cleared_later_though_nothing_else_changes() -> None:
    """Those of slices that are still listed are none of them, whatever happened meanwhile."""
    lab = OfferLab()
    lab.step()
    lab.specs.kept.clear()
    lab.specs.has_leftovers = True
    lab.step()
    assert lab.specs.kept == [{f"{gpu_uuid(0)}::ts-{n}-20480" for n in range(4)}]
    lab.specs.has_leftovers = False
    lab.step()
    assert len(lab.specs.kept) == 1


def test_after_a_restart_a_held_limit_that_is_near_enough_is_adopted() -> None:
    """DESIGN §2: totals move with driver versions, and that must not re-cut a node."""
    lab = OfferLab()
    held = (SHARED, f"{gpu_uuid(0)}::ts-2-20352")
    given = checkpoint(given_to("uid-train", held), serial=2)
    lab.state.change(ledger=Ledger(evidence=Evidence(checkpoint=given)), inventory=node(gpu(0, memory_mib=82100)))
    lab.step()
    assert held in lab.state.view.listing.ids
    assert {device_id.split("-")[-1] for _, device_id in lab.state.view.listing.ids} == {"20352"}


def test_gpus_that_make_a_list_too_long_leave_what_was_offered_and_its_faults_are_still_told() -> None:
    """Neighbour of P04: the policy was fine for the one GPU that there was. More come, and then the first fails."""
    lab = OfferLab()
    many = rule(time_slicing(6000), memory=MemoryPolicy(limit=None))
    lab.state.change(policy=PolicyInForce(policy=policy(many)))
    lab.step()
    lab.state.change(inventory=node(*(gpu(number) for number in range(15))))
    assert "would have 90000 slices on this node" in str(lab.step())
    assert len(lab.kubelet.lists[-1][1]) == 6000
    lost = replace(gpu(0), lost="it has fallen off the bus")
    lab.state.change(inventory=node(lost, *(gpu(number) for number in range(1, 15))))
    lab.step()
    assert lab.kubelet.lists[-1] == (SHARED, [])
    assert any("would have 90000 slices" in one for one in lab.state.view.plan.warnings)
    lab.state.change(inventory=node(lost, *(gpu(number) for number in range(1, 16))))
    lab.step()
    [warning] = [one for one in lab.state.view.plan.warnings if "stays as it is" in one]
    assert "would have 96000 slices" in warning, "and not what was so before"


def test_a_policy_that_turns_out_too_long_when_the_driver_comes_still_lists_what_is_held() -> None:
    """Neighbour of P04: it could be read before a GPU was known. A restart must take no held ID away."""
    lab = OfferLab()
    held = (SHARED, f"{gpu_uuid(0)}::ts-2-20480")
    given = checkpoint(given_to("uid-train", held), serial=2)
    lab.state.change(
        policy=PolicyInForce(policy=policy(rule(time_slicing(65536), memory=MemoryPolicy(limit=None)))),
        ledger=Ledger(evidence=Evidence(checkpoint=given)),
    )
    assert "65536 slices" in str(lab.step())
    assert lab.kubelet.lists == [(SHARED, [held[1]])]


# What the answers leave in the inbox.


def test_a_gpu_that_is_gone_for_good_is_not_called_healthy_when_its_last_holder_has_ended() -> None:
    """Neighbour of P14: a cloud's node comes back from a reboot with other GPUs under its old name."""
    lab = OfferLab()
    lab.step()
    gone = key(0, 20480, index=9)
    evidence = lab.state.view.ledger.evidence
    lab.state.change(ledger=Ledger(entries=held(gone), evidence=evidence))
    assert f"{gpu_uuid(9)} is at fault" in (lab.step() or "")
    lab.state.change(ledger=Ledger(evidence=evidence))
    said = lab.step() or ""
    assert f"{gpu_uuid(9)} is not there any more, and nobody holds it" in said
    assert "healthy" not in said


def test_an_answered_allocate_is_told_after_it_was_worked_out_and_a_refused_one_is_not() -> None:
    lab = OfferLab()
    lab.state.change(policy=PolicyInForce(policy=policy(rule(time_slicing(4), memory=MemoryPolicy(limit=None)))))
    lab.step()
    ids = [f"{gpu_uuid(0)}::ts-1", f"{gpu_uuid(0)}::ts-0"]
    lab.answers().allocate(ids)
    assert lab.inbox.wait(0.0) == [Allocated(resource=SHARED, ids=tuple(ids))]
    with pytest.raises(Exception, match="is not one that sharer offers"):
        lab.answers().allocate(["GPU-x::ts-0"])
    assert lab.inbox.wait(0.0) == []


def test_a_start_that_the_kubelet_announces_is_worth_a_look() -> None:
    lab = OfferLab()
    lab.answers().pre_start([A[1]])
    assert lab.inbox.wait(0.0) == [Hint.START]


def test_an_allocated_slice_is_worked_in_at_the_next_step() -> None:
    lab = OfferLab()
    lab.step()
    basis = lab.state.view.basis
    lab.state.change(ledger=allocated(lab.state.view.ledger, [B], lab.now_s))
    lab.step()
    assert lab.state.view.basis != basis
