"""The strongest means that the policy names and the node has holds a promise."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharer.core.device_id import Strategy
from sharer.core.policy.enforcers import (
    COMPUTE_ENFORCERS,
    LEAVABLE,
    MEMORY_ENFORCERS,
    WATCHING,
    choose,
    why_not_held,
    why_without_effect,
)
from sharer.core.policy.model import Exclusive, Mig, Mps, made_by
from tests.core.builders import time_slicing

names = st.lists(st.sampled_from(MEMORY_ENFORCERS), unique=True)
reasons = st.dictionaries(st.sampled_from(MEMORY_ENFORCERS), st.none() | st.just("it is too old"))


@given(names, reasons)
def test_the_strongest_that_can_is_chosen_whatever_the_order_of_the_wishes(
    wished: list[str], known: dict[str, str | None]
) -> None:
    able = [name for name in MEMORY_ENFORCERS if name in wished and known.get(name, "?") is None]
    assert choose(wished, known).by == (able[0] if able else None)
    assert choose(wished, known) == choose(reversed(wished), known)


@given(names, reasons)
def test_what_is_passed_over_is_told_with_its_reason(wished: list[str], known: dict[str, str | None]) -> None:
    choice = choose(wished, known)
    passed_over = dict(choice.instead_of)
    assert set(passed_over) <= set(wished)
    assert all(known.get(name, "whether it can was not checked") == why for name, why in passed_over.items())
    assert choice.by is not None or set(passed_over) == set(wished)


def test_what_was_not_checked_cannot_hold_anything() -> None:
    assert choose(["driver"], {}).reason == "driver: whether it can was not checked"


def test_watching_prevents_nothing() -> None:
    watched = choose(["driver", "watch"], {"driver": "cgroup v1", "watch": None})
    assert (watched.by, watched.prevents, watched.reason) == ("watch", False, "driver: cgroup v1")
    assert why_not_held(["driver", "watch"], {"driver": "cgroup v1", "watch": None}) == "driver: cgroup v1"
    assert why_not_held(["watch"], {"watch": None}) == "the policy names nothing that could"
    assert why_not_held(["driver"], {"driver": None}) is None


def test_compute_is_held_by_other_means_than_memory() -> None:
    assert choose(["driver", "mps"], {"driver": None, "mps": None}, COMPUTE_ENFORCERS).by == "mps"


@pytest.mark.parametrize(
    ("name", "strategy", "whole", "has_effect"),
    [
        ("mig", Strategy.MIG, True, True),
        ("mig", Strategy.MIG, False, False),
        ("mig", Strategy.TIME_SLICING, False, False),
        ("driver", Strategy.MIG, False, False),
        ("driver", Strategy.MPS, False, True),
        ("mps", Strategy.MPS, False, True),
        ("mps", Strategy.TIME_SLICING, False, False),
        ("watch", Strategy.TIME_SLICING, False, True),
        ("watch", Strategy.MIG, False, True),
    ],
)
def test_what_can_have_an_effect_follows_from_how_slices_are_made(
    name: str, strategy: Strategy, whole: bool, has_effect: bool
) -> None:
    assert (why_without_effect(name, strategy, whole=whole) is None) is has_effect


def test_only_whole_devices_have_one_slice() -> None:
    assert made_by(Exclusive()) == (Strategy.EXCLUSIVE, True)
    assert made_by(Mig(replicas=1)) == (Strategy.MIG, True)
    assert made_by(Mig(replicas=2)) == (Strategy.MIG, False)
    assert made_by(Mps(slices=2, slice_memory_bytes=None)) == (Strategy.MPS, False)
    assert made_by(time_slicing(1)) == (Strategy.TIME_SLICING, False)
    assert set(MEMORY_ENFORCERS) >= WATCHING | LEAVABLE


def test_what_a_process_can_leave_is_better_than_watching_and_prevents_nothing_for_sure() -> None:
    """MPS counts per process, and a client can turn away from it (gpu-limits §1)."""
    held = choose(["mps", "watch"], {"mps": None, "watch": None})
    assert (held.by, held.prevents) == ("mps", False)
    assert why_not_held(["mps", "watch"], {"mps": None, "watch": None}) == (
        "mps: its limit is one of each process and not of the container, and a process can leave it"
    )
    assert why_not_held(["driver", "mps"], {"driver": None}) is None
