"""Labels of a Node that hold whatever a GPU is called."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharer.core.policy.model import Exclusive, Match
from sharer.core.slices.plan import Plan, make_plan
from sharer.core.tell.node_labels import (
    COUNT,
    DRIVER,
    KEYS,
    MEMORY,
    PRODUCT,
    SLICES,
    STRATEGY,
    label_value,
    node_labels,
)
from tests.core.builders import gpu, node, policy, rule, time_slicing

VALID = re.compile(r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?")


def test_a_node_of_one_product_is_labelled_with_all_there_is() -> None:
    inventory = node(gpu(0), gpu(1))
    assert node_labels(inventory, make_plan(inventory, policy(time_slicing(4)))) == {
        PRODUCT: "NVIDIA-A100-SXM4-80GB",
        MEMORY: "81920",
        COUNT: "2",
        DRIVER: "580.95.05",
        STRATEGY: "time-slicing",
        SLICES: "8",
    }


def test_several_products_or_strategies_are_mixed_and_the_smallest_memory_counts() -> None:
    inventory = node(gpu(0), gpu(1, memory_mib=40960, product="NVIDIA A100-PCIE-40GB"))
    wanted = policy(
        rule(Exclusive(), match=Match(product="*PCIE*")),
        rule(time_slicing(4)),
    )
    labels = node_labels(inventory, make_plan(inventory, wanted))
    assert (labels[PRODUCT], labels[STRATEGY], labels[MEMORY], labels[SLICES]) == ("mixed", "mixed", "40960", "5")


def test_what_is_not_known_has_no_label() -> None:
    inventory = node(gpu(0, memory_mib=None, product=None))
    labels = node_labels(inventory, Plan())
    assert labels == {COUNT: "1", DRIVER: "580.95.05", SLICES: "0"}


@pytest.mark.parametrize("gpus", [(), (gpu(0, lost="it has fallen off the bus"),)])
def test_no_gpus_are_no_labels(gpus: tuple[object, ...]) -> None:
    assert node_labels(node(*gpus), Plan()) == {}  # type: ignore[arg-type]  # a tuple of GPUs


def test_lost_gpus_do_not_count() -> None:
    inventory = node(gpu(0), gpu(1, lost="gone"))
    assert node_labels(inventory, Plan())[COUNT] == "1"


@given(st.text(max_size=200))
def test_a_label_can_hold_whatever_a_gpu_is_called(name: str) -> None:
    assert VALID.fullmatch(label_value(name))


@given(st.text(alphabet=st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=63))
def test_a_name_that_a_label_can_hold_stays_as_it_is(name: str) -> None:
    assert label_value(name) == name


def test_every_key_is_ours_and_valid() -> None:
    assert all(re.fullmatch(r"sharer\.dev/[a-z.-]{1,63}", key) for key in KEYS)
