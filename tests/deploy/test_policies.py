"""Policies in the chart are read by the parser of the agent."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import yaml

from sharer.adapters.yaml_text import read_policy_text
from sharer.core.policy.model import Mps, TimeSlicing, default_resource
from tests.deploy.chart import (
    CHART,
    NAMESPACE,
    PROFILES,
    RELEASE,
    agent,
    named,
    objects,
    of_kind,
    pod_spec,
    profile,
    settings_of,
)
from tests.tasks import ROOT


def policies(values: Mapping[str, object], of: str = "standard") -> dict[str, str]:
    found = named("ConfigMap", f"{RELEASE}-policies", objects(values, of=of))["data"]
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("name", PROFILES)
def test_the_agent_s_own_parser_takes_every_policy_that_a_profile_ships(name: str) -> None:
    found = policies({}, of=name)
    assert "default" in found
    for key, text in found.items():
        assert read_policy_text(text.encode(), key).rules


def shared(text: str) -> set[str]:
    """The resources of a policy of which a container should not ask for any number."""
    rules = read_policy_text(text.encode(), "policy").rules
    return {
        rule.resource or default_resource(rule.sharing) for rule in rules if isinstance(rule.sharing, TimeSlicing | Mps)
    }


@pytest.mark.parametrize("name", PROFILES)
def test_what_a_profile_s_policies_share_is_what_its_admission_policies_check(name: str) -> None:
    wanted = {resource for text in policies({}, of=name).values() for resource in shared(text)}
    values = yaml.safe_load((CHART / "values.yaml").read_text())["admission"]["resources"]
    values |= ((yaml.safe_load(profile(name).read_text()) or {}).get("admission") or {}).get("resources") or {}
    assert wanted <= values.keys()


def test_a_policy_as_text_and_as_values_is_the_same_policy() -> None:
    text = (ROOT / "config" / "exclusive-and-shared.yaml").read_text()
    as_values = yaml.safe_load(text)
    one, other = (
        policies({"policy": {"inline": {"default": text}}}),
        policies({"policy": {"inline": {"default": as_values}}}),
    )
    assert one["default"] == text
    assert read_policy_text(one["default"].encode(), "x") == read_policy_text(other["default"].encode(), "x")


def test_a_large_number_among_the_values_is_the_same_number_in_the_policy() -> None:
    """Neighbour of P06: Helm reads numbers as floats, and 1.00066e+09 is no user of OpenShift's."""
    rule = {"match": {}, "strategy": "mps", "slices": 4, "mps": {"user": 1000660000}}
    inline = {"default": {"apiVersion": "sharer.dev/v1alpha1", "kind": "SharingPolicy", "rules": [rule]}}
    text = policies({"policy": {"inline": inline}, "features": {"mps": True}})["default"]
    (read,) = read_policy_text(text.encode(), "default").rules
    assert isinstance(read.sharing, Mps)
    assert read.sharing.user_id == 1000660000


def test_every_example_of_ours_can_be_given_inline() -> None:
    paths = sorted((ROOT / "config").glob("*.yaml"))
    assert len(paths) > 5
    inline = {path.stem: path.read_text() for path in paths}
    resources = dict.fromkeys(_resources(inline), 64)
    features = {"mps": True, "evict": True, "driverLimits": True}
    found = policies({"policy": {"inline": inline}, "admission": {"resources": resources}, "features": features})
    assert {key: read_policy_text(text.encode(), key) for key, text in found.items()} == {
        key: read_policy_text(text.encode(), key) for key, text in inline.items()
    }


def _resources(inline: Mapping[str, str]) -> set[str]:
    return {name for text in inline.values() for name in shared(text)}


def test_a_config_map_of_one_s_own_is_mounted_followed_and_not_made() -> None:
    values = {"policy": {"existingConfigMap": "mine"}}
    found = objects(values)
    assert not any(one["metadata"]["name"].endswith("policies") for one in of_kind("ConfigMap", found))
    assert settings_of(agent(values)).policy_configmap == (NAMESPACE, "mine")
    (rule,) = [rule for one in of_kind("Role", found) for rule in one["rules"] if rule["resources"] == ["configmaps"]]
    assert rule["resourceNames"] == ["mine"]


def test_the_init_container_checks_with_the_same_parser_and_stops_no_node_in_use() -> None:
    (container,) = pod_spec(agent())["initContainers"]
    assert container["args"] == [
        "policy", "check", "--unless-held=/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint",
        "/etc/sharer/policies",
    ]  # fmt: skip
    assert {"/etc/sharer/policies", "/var/lib/kubelet/device-plugins"} == {
        one["mountPath"] for one in container["volumeMounts"] if one["readOnly"]
    }
