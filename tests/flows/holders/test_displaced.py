"""A name that another plugin has registered after us is registered again (kubelet-contract §2.4)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sharer.core.holders.evidence import Evidence
from sharer.core.holders.ledger import Ledger
from sharer.flows.holders.displaced import Displaced
from tests.core.builders import gpu
from tests.core.builders import node as inventory
from tests.core.evidence import SHARED, checkpoint, held, listed
from tests.flows.offer_lab import Kubelet, OfferLab

OURS = ("GPU-aaaaaaaa-0000-0000-0000-000000000000::ts-1-20480",)
OLD = ("GPU-aaaaaaaa-0000-0000-0000-000000000000::ts-1-40960",)
THEIRS = ("GPU-aaaaaaaa-0000-0000-0000-000000000000::0",)


class Renewals(Kubelet):
    """Remembers what was registered again."""

    def __init__(self) -> None:
        super().__init__()
        self.renewed: list[str] = []

    def renew(self, resource: str) -> None:
        self.renewed.append(resource)


class Node:
    """A node with one resource of ours, and a kubelet whose checkpoint names who has listed it last."""

    def __init__(self) -> None:
        self.lab, self.kubelet, self.step = OfferLab(), Renewals(), Displaced()
        self.lab.step()

    def reads(self, ids: tuple[str, ...], *, is_current: bool = True) -> list[str]:
        """What is registered again once the file has these IDs."""
        reading = replace(checkpoint(registered={SHARED: ids}), is_current=is_current)
        state = self.lab.state
        state.change(ledger=replace(state.view.ledger, evidence=Evidence(listed=listed(serial=2), checkpoint=reading)))
        self.kubelet.renewed.clear()
        self.step(state, self.kubelet)
        return list(self.kubelet.renewed)


def test_a_name_that_had_our_ids_and_has_only_another_plugin_s_is_registered_again_once() -> None:
    """Neighbour of P11: the checkpoint is all by which it shows."""
    node = Node()
    assert node.reads(OURS) == []
    assert node.reads(THEIRS) == [SHARED]
    assert node.reads(THEIRS) == [], "the kubelet has not read our list yet"
    assert node.reads(OURS) == []
    assert node.reads(THEIRS) == [SHARED], "it registers itself again, too"


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ((), THEIRS),  # at our start, or on a disk that is full: the file is as old as the plugin before us
        (OURS, ()),  # all of ours are unhealthy
        (OURS, OLD),  # a file that could not be written since the node was cut anew
        (OURS, (*THEIRS, *OURS)),
    ],
)
def test_nothing_else_is_taken_for_it(before: tuple[str, ...], now: tuple[str, ...]) -> None:
    """Neighbour of P11: a registration for nothing makes every slice unhealthy for a moment."""
    node = Node()
    node.reads(before)
    assert node.reads(now) == []


def test_what_a_pod_still_holds_of_the_plugin_before_us_is_in_our_own_list() -> None:
    """Neighbour of P11: while our slices beside it cannot be given out, the kubelet has no healthy ID but that one."""
    node = Node()
    state = node.lab.state
    evidence = Evidence(listed=listed(serial=2), checkpoint=checkpoint(serial=2))
    ledger = Ledger(entries=held((SHARED, THEIRS[0])), evidence=evidence)
    state.change(inventory=inventory(gpu(0), gpu(1)), ledger=ledger)
    node.lab.step()
    assert THEIRS[0] in {one.id for one in state.view.offers[SHARED].devices}
    node.reads((*THEIRS, next(iter(state.view.offers[SHARED].slices))))
    assert node.reads(THEIRS) == []
    assert node.reads((*THEIRS, f"{gpu(0).uuid}::1")) == [SHARED], "that plugin is back, and offers more than this one"


def test_a_checkpoint_that_is_gone_or_damaged_says_nothing() -> None:
    node = Node()
    node.reads(OURS)
    assert node.reads(THEIRS, is_current=False) == []
    node.lab.state.change(ledger=Ledger())
    node.step(node.lab.state, node.kubelet)
    assert node.kubelet.renewed == []
