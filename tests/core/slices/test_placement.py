"""Placement does what its docstring measures, on every small node, and never fails on any input."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from sharer.core.policy.model import Placement
from sharer.core.slices.placement import prefer, prefer_linked

Node = tuple[list[int], list[str], list[str], int]  # slices per GPU, available, must-include, size


@st.composite
def nodes(draw: st.DrawFn) -> Node:
    """A small node in any state, and a request that it can serve."""
    totals = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    ids = [f"g{gpu}-{replica}" for gpu, total in enumerate(totals) for replica in range(total)]
    available = draw(st.lists(st.sampled_from(ids), unique=True, min_size=1).map(sorted).flatmap(st.permutations))
    must = draw(st.lists(st.sampled_from(available), unique=True, max_size=3))
    size = draw(st.integers(len(must), len(available)))
    return totals, list(available), must, size


def layout(totals: list[int]) -> list[dict[str, int]]:
    return [{f"g{gpu}-{replica}": replica for replica in range(total)} for gpu, total in enumerate(totals)]


def counted(ids: list[str] | tuple[str, ...], totals: list[int]) -> list[int]:
    return [sum(i in replicas for i in ids) for replicas in layout(totals)]


def packed_measure(node: Node, chosen: list[str] | tuple[str, ...]) -> tuple[int, ...]:
    totals, available, must, _ = node
    free, taken, forced = counted(available, totals), counted(chosen, totals), counted(must, totals)
    touched = [gpu for gpu in range(len(totals)) if taken[gpu]]
    idle = [gpu for gpu in touched if free[gpu] == totals[gpu] and not forced[gpu]]
    return len(touched), len(idle), sum(free[gpu] - taken[gpu] for gpu in touched)


def spread_measure(node: Node, chosen: list[str] | tuple[str, ...]) -> tuple[int, Fraction]:
    totals, available, _, _ = node
    free, taken = counted(available, totals), counted(chosen, totals)
    touched = [gpu for gpu in range(len(totals)) if taken[gpu]]
    shares = [Fraction(totals[gpu] - free[gpu] + taken[gpu], totals[gpu]) for gpu in touched]
    return len(touched), max(shares, default=Fraction(0))


def every_choice(node: Node) -> list[tuple[str, ...]]:
    _, available, must, size = node
    return [choice for choice in combinations(available, size) if set(must) <= set(choice)]


def choose(node: Node, placement: Placement) -> list[str]:
    totals, available, must, size = node
    return prefer(layout(totals), placement, available, must, size)


@given(nodes())
def test_packed_is_as_good_as_the_best_of_all_choices(node: Node) -> None:
    """P28, contract row 28."""
    best = min(packed_measure(node, choice) for choice in every_choice(node))
    assert packed_measure(node, choose(node, Placement.PACKED)) == best


@given(nodes())
def test_spread_is_as_good_as_the_best_of_all_choices(node: Node) -> None:
    """P28, contract row 28."""
    best = min(spread_measure(node, choice) for choice in every_choice(node))
    assert spread_measure(node, choose(node, Placement.SPREAD)) == best


@given(nodes(), st.sampled_from(Placement), st.data())
def test_the_order_in_which_the_kubelet_names_ids_does_not_matter(
    node: Node, placement: Placement, data: st.DataObject
) -> None:
    totals, available, must, size = node
    shuffled = data.draw(st.permutations(available))
    assert sorted(choose(node, placement)) == sorted(prefer(layout(totals), placement, shuffled, must, size))


@given(
    st.lists(st.sampled_from(["g0-0", "g0-1", "g1-0", "x", ""])),
    st.lists(st.sampled_from(["g0-0", "g1-0", "y"])),
    st.integers(-2, 9),
    st.sampled_from(Placement),
)
def test_any_request_is_answered_without_an_error_and_without_a_duplicate(
    available: list[str], must: list[str], size: int, placement: Placement
) -> None:
    """Contract row 29: unknown IDs, a size of 0 or too large, must-includes that are not available."""
    answer = prefer(layout([2, 1]), placement, available, must, size)
    assert (
        len(answer)
        == len(set(answer))
        == max(0, min(size, len(set(available) | set(must))) if must else min(size, len(set(available))))
    )
    assert set(answer) <= set(available) | set(must)


def test_packed_fills_the_fullest_gpu_and_spread_takes_the_emptiest() -> None:
    available = ["g0-2", "g0-3", "g1-0", "g1-1", "g1-2", "g1-3"]
    assert prefer(layout([4, 4]), Placement.PACKED, available, [], 1) == ["g0-2"]
    assert prefer(layout([4, 4]), Placement.SPREAD, available, [], 1) == ["g1-0"]


def test_two_slices_lie_on_one_gpu_where_they_fit_and_on_two_where_they_must() -> None:
    """P28: what several slices mean is stated: one larger share of one GPU, where possible."""
    for placement in Placement:
        assert prefer(layout([2, 3]), placement, ["g0-1", "g1-1", "g1-2"], [], 2) == ["g1-1", "g1-2"]
        assert sorted(prefer(layout([2, 2]), placement, ["g0-1", "g1-1"], [], 2)) == ["g0-1", "g1-1"]


def test_slices_of_an_earlier_cut_are_taken_last_and_never_leave_a_request_short() -> None:
    """Neighbour of P28: in the middle of a re-cut the kubelet still calls them available."""
    old = ["g0::ts-0-40960", "g1::ts-1-40960"]
    for placement in Placement:
        assert not set(prefer(layout([2, 2]), placement, [*old, "g0-1", "g1-0", "g1-1"], [], 2)) & set(old)
        assert set(prefer(layout([1]), placement, [*old, "g0-0"], [], 3)) == {*old, "g0-0"}
        assert prefer(layout([2]), placement, [*old, "g0-0"], [old[1]], 2) == [old[1], "g0-0"]


def test_a_request_for_every_slice_of_two_gpus_gets_them() -> None:
    """P28: size 20 of 2 x 10."""
    everything = [device_id for replicas in layout([10, 10]) for device_id in replicas]
    for placement in Placement:
        assert sorted(prefer(layout([10, 10]), placement, everything, [], 20)) == sorted(everything)


def test_whole_gpus_are_preferred_by_their_links_and_unknown_ids_only_fill_up() -> None:
    """Neighbour of P28: whole GPUs, several for one container."""
    links = [[0, 10, 400], [10, 0, 10], [400, 10, 0]]
    where = layout([1, 1, 1])
    assert prefer_linked(where, links, ["g0-0", "g1-0", "g2-0"], [], 2) == ["g0-0", "g2-0"]
    assert prefer_linked(where, links, ["g0-0", "g1-0", "g2-0"], ["g1-0"], 2) == ["g1-0", "g0-0"]
    assert prefer_linked(where, links, ["x", "g1-0"], [], 2) == ["g1-0", "x"]
    assert prefer_linked(where, links, ["x", "g1-0"], ["x"], 1) == ["x"]
    assert prefer_linked(where, links, [], [], -1) == []
