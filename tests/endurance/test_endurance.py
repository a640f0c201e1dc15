"""A short day, and that what is looked for would be found."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.endurance.day import SHORT, Day, live_through
from tests.endurance.growth import Sample, grown

FLAT = Sample(
    hour=1, pods=100, refused=0, resident_mib=78.0, threads=25, files=22, allocate_us=80.0, start_ms=5.0, busy_ms=2.0
)


def test_nothing_of_an_agent_grows_with_the_pods_that_have_ended() -> None:
    """2,000 allocations, 20 re-cuts, 10 kubelet restarts. `python -m tests endurance` lives through a whole day."""
    hours = list(live_through(SHORT))
    few = {"most_growth_mib": 4.0, "most_slower": 4.0}  # hours, and beside other tests
    assert list(grown(hours, **few, times=["busy_ms"])) == []


def test_what_happens_in_a_day_is_spread_over_its_hours() -> None:
    turns = Day(recuts=500, restarts=200).turns()
    assert sorted(map(len, turns)) == [29] * 20 + [30] * 4
    assert sum(hour.count("re-cut") for hour in turns) == 500


@pytest.mark.parametrize(
    ("last", "said"),
    [
        (replace(FLAT, resident_mib=80.5), "resident memory has grown by 2.5 MiB"),
        (replace(FLAT, threads=29), "there were 25 threads, and there are 29"),
        (replace(FLAT, files=26), "there were 22 files, and there are 26"),
        (replace(FLAT, allocate_us=170.0), "allocate_us has grown from 80.00 to 170.00"),
        (replace(FLAT, busy_ms=5.0), "busy_ms has grown from 2.00 to 5.00"),
        (replace(FLAT, refused=60), "turned away"),
    ],
)
def test_whatever_grows_is_named_with_its_figures(last: Sample, said: str) -> None:
    found = list(grown([FLAT] * 9 + [last] * 3))
    assert len(found) == 1
    assert said in found[0]


def test_what_grows_while_it_warms_up_is_no_growth() -> None:
    assert list(grown([replace(FLAT, resident_mib=60.0), *[FLAT] * 9])) == []
