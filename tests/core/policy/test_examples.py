"""The example policies in `config/` are read without a problem and say what they seem to say."""

from __future__ import annotations

from pathlib import Path

import pytest

from sharer.adapters.yaml_text import read_policy_text
from sharer.core.policy.model import Policy, TimeSlicing
from sharer.core.policy.text import to_yaml

CONFIG = Path(__file__).parents[3] / "config"
EXAMPLES = sorted(path.name for path in CONFIG.glob("*.yaml"))


def example(name: str) -> Policy:
    return read_policy_text((CONFIG / name).read_bytes(), name)


def test_there_are_examples() -> None:
    assert {"default.yaml", "mps.yaml", "mig.yaml", "nvidia-format.yaml"} <= set(EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_accepted_and_reads_back_the_same(name: str) -> None:
    policy = example(name)
    assert read_policy_text(to_yaml(policy), name) == policy


@pytest.mark.parametrize("name", sorted(set(EXAMPLES) - {"oversubscribed-notebooks.yaml"}))
def test_an_example_warns_of_nothing(name: str) -> None:
    assert example(name).warnings == ()


def test_the_oversubscribed_example_warns_that_it_is() -> None:
    assert "up to 2 times the memory there is" in example("oversubscribed-notebooks.yaml").warnings[0]


def test_the_default_example_is_four_time_slices() -> None:
    (rule,) = example("default.yaml").rules
    assert rule.sharing == TimeSlicing(slices=4, slice_memory_bytes=None)
    assert example("nvidia-format.yaml").rules[0].sharing == rule.sharing
