"""A container that asks for several whole GPUs gets those that belong together."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from sharer.core.inventory import GpuLink, PcieDistance, Topology
from sharer.core.slices.linked import Links, best_linked, make_links
from tests.core.builders import gpu, gpu_uuid, node

Case = tuple[Links, list[int], list[int], int]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    count = draw(st.integers(1, 7))
    links = [[0] * count for _ in range(count)]
    for one, other in combinations(range(count), 2):
        links[one][other] = links[other][one] = draw(st.sampled_from([10, 20, 100, 400]))
    free = draw(st.lists(st.integers(0, count - 1), unique=True, min_size=1))
    forced = draw(st.lists(st.sampled_from(free), unique=True, max_size=2))
    return links, free, forced, draw(st.integers(len(forced), len(free)))


def measure(links: Links, free: list[int], chosen: tuple[int, ...]) -> tuple[int, int]:
    inside = sum(links[one][other] for one, other in combinations(chosen, 2))
    cut = sum(links[one][other] for one in chosen for other in free if other not in chosen)
    return -inside, cut


@given(cases())
def test_the_chosen_set_is_as_good_as_the_best_of_all(case: Case) -> None:
    links, free, forced, size = case
    chosen = best_linked(links, free, forced, size)
    every = [each for each in combinations(sorted(free), size) if set(forced) <= set(each)]
    assert len(chosen) == len(set(chosen)) == size
    assert measure(links, free, tuple(chosen)) == min(measure(links, free, each) for each in every)


@given(cases(), st.data())
def test_the_order_in_which_gpus_are_named_does_not_matter(case: Case, data: st.DataObject) -> None:
    links, free, forced, size = case
    assert best_linked(links, data.draw(st.permutations(free)), forced, size) == best_linked(links, free, forced, size)


def islands(count: int, size: int) -> Links:
    """NVLink islands of `size` GPUs each."""
    return [[0 if a == b else 400 if a // size == b // size else 10 for b in range(count)] for a in range(count)]


def test_an_nvlink_island_is_given_out_whole() -> None:
    assert best_linked(islands(8, 4), range(8), [], 4) == [0, 1, 2, 3]
    assert best_linked(islands(8, 4), [1, 2, 3, 4, 5, 6, 7], [], 4) == [4, 5, 6, 7]


def test_a_single_gpu_is_taken_from_the_island_that_is_broken_already() -> None:
    assert best_linked(islands(8, 4), [0, 1, 2, 4, 5, 6, 7], [], 1) == [0]
    assert best_linked(islands(8, 4), [0, 1, 2, 3, 5, 6], [], 1) == [5]


def test_the_forced_gpus_draw_their_island_along() -> None:
    assert best_linked(islands(8, 4), range(8), [6], 4) == [6, 4, 5, 7]


def test_a_request_for_more_than_there_is_gets_what_there_is() -> None:
    assert best_linked(islands(4, 2), [1, 3], [], 4) == [1, 3]
    assert best_linked(islands(4, 2), [1, 3], [], 0) == []


def test_sixty_four_gpus_are_still_given_out_by_island() -> None:
    assert best_linked(islands(64, 8), range(1, 64), [], 8) == list(range(8, 16))


def test_closeness_is_nvlinks_first_then_pcie_and_unknown_pairs_count_as_little_as_they_can() -> None:
    uuids = [gpu_uuid(n) for n in range(4)]
    topology = Topology(
        links=(
            GpuLink(uuids=(uuids[0], uuids[1]), nvlinks=4, pcie=PcieDistance.SYSTEM),
            GpuLink(uuids=(uuids[0], uuids[2]), nvlinks=0, pcie=PcieDistance.ONE_SWITCH),
            GpuLink(uuids=(uuids[1], uuids[2]), nvlinks=None, pcie=None),
        )
    )
    inventory = node(gpu(0, numa_node=0), gpu(1, numa_node=0), gpu(2, numa_node=0), gpu(3, numa_node=None))
    links = make_links(uuids, topology, inventory)
    assert [links[0][1], links[0][2], links[1][2], links[0][3]] == [400, 50, 20, 10]
    assert all(links[a][b] == links[b][a] for a in range(4) for b in range(4))
