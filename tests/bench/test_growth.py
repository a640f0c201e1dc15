"""Only that the tables are made right; what is in them is measured by `python -m tests bench`."""

from __future__ import annotations

from tests.bench.figures import Figure
from tests.bench.growth import growths, table


def test_figures_about_so_many_of_something_make_a_table_and_others_do_not() -> None:
    figures = [
        Figure("64 IDs: Allocate p50", 90.0, "µs", None, None),
        Figure("1024 IDs: Allocate p50", 95.5, "µs", None, None),
        Figure("1024 IDs: resident memory", 60.0, "MiB", None, None),
        Figure("250 pods: idle", 0.5, "%", None, 1.0),
        Figure("Allocate p50", 80.0, "µs", 70.0, 80.5),
    ]
    found = growths(figures)
    assert list(found) == ["IDs"]
    assert [line.split() for line in table(found["IDs"])] == [
        ["IDs", "64", "1,024"],
        ["Allocate", "p50,", "µs", "90.0", "95.5"],
        ["resident", "memory,", "MiB", "–", "60.0"],
    ]
