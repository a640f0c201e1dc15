"""Every rule of the contract and every bug case has a test that says so, and CONTRIBUTING says which."""

from __future__ import annotations

from pathlib import Path

from tests.proof import CONTRIBUTING, HEADING, collect, table


def test_every_row_pitfall_and_bug_case_has_a_test_that_names_it() -> None:
    found = collect()
    assert found.missing() == []
    assert found.unknown() == []


def test_contributing_says_which_row_is_which_test() -> None:
    """If it fails: `python -m tests proof`."""
    assert CONTRIBUTING.read_text().partition(HEADING)[2].strip() == table(collect()).strip()


def test_what_a_docstring_names_is_found_in_every_form(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        'def test_a() -> None:\n    """P04, pitfalls 1, 3 and\n    29 to 31: said so. Not in row 7."""\n'
        "def helper() -> None:\n    'P05'\n"
        'class Other:\n    """P06"""\n'
    )
    found = collect(tmp_path)
    assert dict(found.cases) == {4: ["test_it.py::test_a"]}
    assert sorted(found.pitfalls) == [1, 3, 29, 30, 31]
    (tmp_path / "test_next.py").write_text(
        'def test_b() -> None:\n    """Neighbour of P07 and P08: unlike P04 it\n    is so."""\n'
    )
    found = collect(tmp_path)
    assert dict(found.neighbours) == {7: ["test_next.py::test_b"], 8: ["test_next.py::test_b"]}
    assert dict(found.cases) == {4: ["test_it.py::test_a", "test_next.py::test_b"]}, (
        "a neighbour is no test of its case"
    )
    assert {"P05", "pitfall 2", "contract row 7"} <= set(found.missing())
