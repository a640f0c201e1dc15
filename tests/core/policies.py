"""Policies as text, and what reading them says."""

from __future__ import annotations

import pytest

from sharer.adapters.yaml_text import read_policy_text
from sharer.core.errors import PolicyError
from sharer.core.policy.model import Policy, Rule

HEAD = "apiVersion: sharer.dev/v1alpha1\nkind: SharingPolicy\n"


def read(text: str | bytes) -> Policy:
    return read_policy_text(text, "node.yaml")


def read_rules(*rules: str, rest: str = "") -> Policy:
    """A policy with these rules, each written as a flow mapping without its braces."""
    return read(HEAD + "rules:\n" + "".join(f"  - {{{rule}}}\n" for rule in rules) + rest)


def read_rule(rule: str) -> Rule:
    return read_rules(rule).rules[0]


def refusal(text: str | bytes) -> list[str]:
    """Every problem of a text that must be refused, one line each, in order."""
    with pytest.raises(PolicyError) as refused:
        read(text)
    assert [str(problem) for problem in refused.value.problems] == str(refused.value).split("\n")
    return str(refused.value).split("\n")


def refused_rules(*rules: str, rest: str = "") -> list[str]:
    return refusal(HEAD + "rules:\n" + "".join(f"  - {{{rule}}}\n" for rule in rules) + rest)


def only(problems: list[str]) -> str:
    """The one problem there is, without file name, line and column."""
    assert len(problems) == 1, problems
    return problems[0].split(": ", 1)[1]
