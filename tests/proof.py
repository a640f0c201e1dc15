"""Which test holds which rule of the team's papers: read from the tests' docstrings, written into CONTRIBUTING.

A docstring names what it holds: "Contract row 12" (kubelet-contract §19), "pitfall 5" (its §17), "P04" (bug-reports),
"threat 2" (the second claim in README's table); and several as "rows 1, 2 and 18" or "pitfalls 29 to 31". Rows count
where the agent is a process of its own. "Neighbour of P04" is what others would run into next door.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
HEADING = "## Proof\n"
THREATS_HEADING = "## What holds, and what does not\n"
BEYOND_TESTS = {7}  # "One tenant does not see another's data": what hardware and driver do
ROWS, PITFALLS, CASES = range(1, 41), range(1, 49), range(1, 41)
_AGENT_IS_A_PROCESS = ROOT / "tests/e2e"
_LIST = r"(\d+(?:(?:, | and | to )\d+)*)"
_ROW = re.compile(rf"\bcontract (?:§19 )?rows? {_LIST}", re.IGNORECASE)
_PITFALL = re.compile(rf"\bpitfalls? {_LIST}", re.IGNORECASE)
_THREAT = re.compile(rf"\bthreats? {_LIST}", re.IGNORECASE)
_CASE = re.compile(r"\bP(\d\d)\b")
_NEIGHBOUR = re.compile(r"\bNeighbour of P\d\d(?:(?:, | and )P\d\d)*")


@dataclass
class Proof:
    """The tests of each rule, as `file::name` below tests/, in the order of their names."""

    rows: dict[int, list[str]] = field(default_factory=lambda: defaultdict(list))
    pitfalls: dict[int, list[str]] = field(default_factory=lambda: defaultdict(list))
    cases: dict[int, list[str]] = field(default_factory=lambda: defaultdict(list))
    neighbours: dict[int, list[str]] = field(default_factory=lambda: defaultdict(list))  # of a case
    threats: dict[int, list[str]] = field(default_factory=lambda: defaultdict(list))

    def missing(self) -> list[str]:
        """The rules that no test holds."""
        return [
            *(f"contract row {number}" for number in ROWS if number not in self.rows),
            *(f"pitfall {number}" for number in PITFALLS if number not in self.pitfalls),
            *(f"P{number:02}" for number in CASES if number not in self.cases),
            *(f"threat {n}, {claim!r}" for n, claim in claims().items() if n not in {*self.threats, *BEYOND_TESTS}),
        ]

    def unknown(self) -> list[str]:
        """The tests that name a rule which does not exist."""
        cases = ((self.cases, CASES), (self.neighbours, CASES))
        known = ((self.rows, ROWS), (self.pitfalls, PITFALLS), *cases, (self.threats, claims()))
        return [test for rules, numbers in known for number in rules if number not in numbers for test in rules[number]]


def collect(folder: Path = ROOT / "tests") -> Proof:
    """What the docstrings of all tests say."""
    found = Proof()
    for path in sorted(folder.rglob("test_*.py")):
        for name, docstring in _tests(path):
            test = f"{path.relative_to(folder)}::{name}"
            if path.is_relative_to(_AGENT_IS_A_PROCESS):
                _add(found.rows, _numbers(_ROW, docstring), test)
            _add(found.pitfalls, _numbers(_PITFALL, docstring), test)
            _add(found.threats, _numbers(_THREAT, docstring), test)
            _add(found.cases, _case_numbers(_NEIGHBOUR.sub("", docstring)), test)
            _add(found.neighbours, _case_numbers(" ".join(_NEIGHBOUR.findall(docstring))), test)
    return found


def claims() -> dict[int, str]:
    """What README says that holds, by its place in the table."""
    rows = (ROOT / "README.md").read_text().partition(THREATS_HEADING)[2].partition("\n## ")[0].splitlines()
    cells = [row.split(" | ")[0].removeprefix("| ") for row in rows if row.startswith("| ")]
    return dict(enumerate(cells[1:], 1))


def table(found: Proof) -> str:
    """The part of CONTRIBUTING below its heading: all tests of a row, and for the rest where they are."""
    lines = [
        "Written by `python -m tests proof`, from the tests' docstrings. First the rows of kubelet-contract §19, each",
        "with the tests that hold it against the agent as a process, below `tests/e2e`.",
        "",
        "| row | test |",
        "|---|---|",
        *(
            f"| {number} | {_by_file([test.removeprefix('e2e/') for test in found.rows[number]])} |"
            for number in sorted(found.rows)
        ),
        "",
        "The pitfalls of kubelet-contract §17 and README's claims against threats, each with the first test that names",
        "it, below `tests`.",
        "",
        "| rule | the first test |",
        "|---|---|",
        *(f"| pitfall {number} | {_first(found.pitfalls[number])} |" for number in sorted(found.pitfalls)),
        *(f"| threat {n}: {claims().get(n)} | {_first(found.threats[n])} |" for n in sorted(found.threats)),
        "",
        "The cases of bug-reports, each with the first test that names it, and with the tests of what others would run",
        "into next door; `grep -rn P04 tests` finds the others.",
        "",
        "| case | the first test | its neighbours |",
        "|---|---|---|",
        *(
            f"| P{number:02} | {_first(found.cases[number])} | {_by_file(found.neighbours.get(number, []))} |"
            for number in sorted(found.cases)
        ),
    ]
    return "\n".join(lines) + "\n"


def written(text: str, found: Proof) -> str:
    """CONTRIBUTING with the table in the place of the old one."""
    return text.partition(HEADING)[0].rstrip("\n") + "\n\n" + HEADING + "\n" + table(found)


def _tests(path: Path) -> Iterator[tuple[str, str]]:
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            yield node.name, " ".join((ast.get_docstring(node) or "").split())


def _numbers(pattern: re.Pattern[str], docstring: str) -> set[int]:
    found: set[int] = set()
    for listed in pattern.findall(docstring):
        for part in re.split(", | and ", listed):
            first, _, last = part.partition(" to ")
            found.update(range(int(first), int(last or first) + 1))
    return found


def _case_numbers(text: str) -> set[int]:
    return {int(number) for number in _CASE.findall(text)}


def _add(rules: dict[int, list[str]], numbers: set[int], test: str) -> None:
    for number in numbers:
        rules[number].append(test)


def _by_file(tests: list[str]) -> str:
    names: Mapping[str, list[str]] = defaultdict(list)
    for test in tests:
        file, _, name = test.partition("::")
        names[file].append(f"`{name.removeprefix('test_')}`")
    return "; ".join(f"{file}: {', '.join(own)}" for file, own in names.items())


def _first(tests: list[str]) -> str:
    file, _, name = tests[0].partition("::")
    return f"{file}: `{name.removeprefix('test_')}`"
