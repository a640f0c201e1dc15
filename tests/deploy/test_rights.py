"""No right is given that the table does not name, and none is named that is not given (bug case P36)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import yaml

from sharer.cli.doctor.node_survey import rights_of
from tests.deploy.chart import (
    CHART,
    NAMESPACE,
    PROFILES,
    Object,
    named,
    objects,
    of_kind,
    pod_spec,
    profile,
    settings_of,
)
from tests.deploy.combinations import FACTORS, choices, nested
from tests.deploy.rights import CONTAINERS, ROWS, declared, given, table
from tests.tasks import ROOT

DISTRIBUTION_FOLDERS = {"talos": "/usr/local/glibc/usr/lib"}
KUBELET = {"microk8s": "/var/snap/microk8s/common/var/lib/kubelet", "k0s": "/var/lib/k0s/kubelet"}
CDI = {"talos": ["/var/cdi/static", "/var/cdi/dynamic"]}


def places(distribution: object) -> dict[str, list[str]]:
    """What the table's words stand for on a distribution."""
    first, last = CDI.get(str(distribution), ["/etc/cdi", "/var/run/cdi"])
    return {
        "$kubelet": [KUBELET.get(str(distribution), "/var/lib/kubelet")],
        "$run": ["/run/sharer"],
        "$state": ["/var/lib/sharer"],
        "$cdi-first": [first],
        "$cdi-last": [last],
        "$driver": [DISTRIBUTION_FOLDERS.get(str(distribution), "/usr/lib/x86_64-linux-gnu")],
    }


def test_the_combinations_are_few_and_every_feature_is_both_on_and_off_in_them() -> None:
    assert 20 < len(choices()) < 60
    for name, values in FACTORS.items():
        assert {choice[name] for choice in choices()} == set(values)


def test_the_table_is_what_the_chart_gives_whatever_is_switched_on() -> None:
    for choice in choices():
        values = nested(choice)
        assert given(objects(values)) == declared(values, places(choice["distribution"])), choice


def merged(*values: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for one in values:
        for key, value in one.items():
            found[key] = merged(found.get(key, {}), value) if isinstance(value, dict) else value
    return found


def test_doctor_asks_for_the_rights_that_the_table_names() -> None:
    """`sharer doctor --node` would otherwise miss one, or warn of one that nobody needs."""
    for choice in choices():
        values = nested(choice)
        named_here = declared(values, places(choice["distribution"]))["agent"].api
        settings = settings_of(named("DaemonSet", "sharer-agent", objects(values)))
        asked = {
            f"{one.verb} {one.resource}{f'.{one.group}' if one.group else ''}{' (own)' if one.namespace else ''}"
            for one in (rights_of(settings) if settings.kubernetes != "off" else ())
            if not one.optional or f"{one.verb} {one.resource}" in named_here
        }
        assert asked == named_here, choice


@pytest.mark.parametrize("name", PROFILES)
def test_the_table_is_what_each_profile_gives(name: str) -> None:
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    values = merged(defaults, yaml.safe_load(profile(name).read_text()) or {})
    assert given(objects(of=name)) == declared(values, places("generic"))


def test_minimal_asks_the_api_for_nothing() -> None:
    found = objects(of="minimal")
    assert not any("Role" in one["kind"] for one in found)
    assert not any(rights.api for rights in given(found).values())


def test_every_row_is_about_a_container_and_gives_something() -> None:
    assert {row["who"] for row in ROWS} == set(CONTAINERS)
    assert [row for row in ROWS if not row.get("api") and not row.get("paths") and not row.get("pod")] == []


def test_readme_has_the_table() -> None:
    """If it fails: put `tests.deploy.rights.table()` there."""
    assert table() in (ROOT / "README.md").read_text()


def test_no_secret_is_readable_and_nothing_can_be_deleted_or_escalated() -> None:
    for choice in choices():
        found = given(objects(nested(choice)))
        verbs = {verb for rights in found.values() for verb in rights.api}
        assert not any(
            "secrets" in verb or verb.startswith(("delete", "update", "bind", "impersonate")) for verb in verbs
        )


# ---- what every container is, whatever is switched on


def containers(found: tuple[Object, ...]) -> list[tuple[Any, Any]]:
    specs = [pod_spec(one) for one in of_kind("DaemonSet", found)]
    return [(spec, one) for spec in specs for one in (*spec.get("initContainers", ()), *spec["containers"])]


def test_every_container_has_a_read_only_root_and_no_way_to_more() -> None:
    """Threat 9."""
    for choice in choices():
        for spec, container in containers(objects(nested(choice))):
            security = container["securityContext"]
            assert security["readOnlyRootFilesystem"] is True
            assert security.get("privileged") or security["allowPrivilegeEscalation"] is False
            assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}


def test_a_mount_below_which_others_appear_later_follows_the_host() -> None:
    for choice in choices():
        for _, container in containers(objects(nested(choice))):
            for mount in container["volumeMounts"]:
                if mount["name"] in ("dev", "driver"):
                    assert mount["mountPropagation"] == "HostToContainer"
                assert mount.get("mountPropagation") != "Bidirectional"


def test_a_read_only_cgroup_tree_is_read_only_below_its_mounts_too() -> None:
    """On v1 and hybrid hosts the controllers are mounts of their own (runtime-facts §9.60)."""
    agent = pod_spec(named("DaemonSet", "sharer-agent", objects()))["containers"][0]
    (mount,) = [one for one in agent["volumeMounts"] if one["name"] == "cgroups"]
    assert (mount["readOnly"], mount["recursiveReadOnly"]) == (True, "IfPossible")


def test_the_namespace_of_the_release_is_the_only_one_with_objects() -> None:
    assert {one["metadata"].get("namespace", NAMESPACE) for one in objects(of="full")} == {NAMESPACE}
