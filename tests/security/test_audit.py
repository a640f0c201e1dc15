"""What could not be looked up is never called audited."""

from __future__ import annotations

import json

from tests.audit import NOT_AUDITED, verdict

GOOD = {"name": "a", "version": "1", "vulns": []}
BAD = {"name": "b", "version": "2", "vulns": [{"id": "CVE-1", "fix_versions": ["3"]}]}
SKIPPED = {"name": "c", "skip_reason": "Dependency not found on PyPI and could not be audited: c (1)"}


def of(*found: object) -> tuple[int, list[str]]:
    return verdict(json.dumps({"dependencies": found}), "")


def test_only_an_audit_of_every_package_without_a_find_is_a_pass() -> None:
    assert of(GOOD) == (0, ["1 packages, no known hole"])
    assert of(GOOD, BAD) == (1, ["b 2: CVE-1, fixed in 3"])


def test_a_package_that_was_not_looked_up_is_not_audited() -> None:
    assert of(GOOD, SKIPPED)[0] == NOT_AUDITED
    assert of(SKIPPED, BAD)[0] == 1
    assert of()[0] == NOT_AUDITED


def test_a_tool_that_could_not_be_run_has_audited_nothing() -> None:
    assert verdict("", "x\nno network\n") == (
        NOT_AUDITED,
        ["not audited: pip-audit could not be run: no network"],
    )
