"""Where the policy comes from, by flags and variables, and what is made of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from sharer.core.errors import NodeError
from sharer.outside import policy_source
from sharer.settings import read_settings


def test_a_configmap_is_named_by_namespace_and_name() -> None:
    assert read_settings(["--policy-configmap", "gpu/policies"], {}).policy_configmap == ("gpu", "policies")
    assert read_settings([], {"SHARER_AGENT_POLICY_CONFIGMAP": "gpu/policies"}).policy_configmap == ("gpu", "policies")
    assert read_settings([], {}).policy_configmap is None


@pytest.mark.parametrize("text", ["policies", "/policies", "gpu/", "gpu/policies/a100", ""])
def test_any_other_form_is_refused_with_an_example(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        read_settings(["--policy-configmap", text], {})
    assert ended.value.code == 2
    assert "such as gpu/sharing-policies" in capsys.readouterr().err


def test_without_any_policy_the_flags_that_name_one_are_told() -> None:
    with pytest.raises(NodeError, match="no policy is named"):
        policy_source(read_settings([], {}), None).shelf()


def test_a_mounted_policy_stands_in_for_a_configmap_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "default").write_text("rules: []")
    flags = [f"--policy={tmp_path}", "--policy-configmap=gpu/policies"]
    shelf = policy_source(read_settings(flags, {}), None).shelf()
    assert shelf.place == str(tmp_path)
    assert "stands in for configmap gpu/policies" in shelf.warnings[0]
