"""Every object is one that API servers of each supported version would take, by their own schemas."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from tests.deploy.chart import PROFILES, Object, objects, of_kind
from tests.deploy.combinations import choices, nested
from tests.tasks import ROOT

VERSIONS = ("1.34", "1.35", "1.36", "1.37")
OF_OTHERS = ("PodMonitor", "PrometheusRule")  # the Prometheus operator's; no schema of theirs is at hand


def check(found: tuple[Object, ...], version: str) -> None:
    """Unknown fields are errors too."""
    for one in found:
        if one["kind"] not in OF_OTHERS:
            kubernetes_validate.validate(one, version, strict=True)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", PROFILES)
def test_a_profile_s_objects_are_valid(name: str, version: str) -> None:
    found = objects({"namespace": {"create": True}, "priorityQuota": True}, of=name)
    assert len(found) > 3
    check(found, version)


@pytest.mark.parametrize("version", [VERSIONS[0], VERSIONS[-1]])
def test_objects_are_valid_whatever_is_switched_on(version: str) -> None:
    distinct = {json.dumps(one): one for choice in choices() for one in objects(nested(choice))}
    assert len(distinct) > 60
    check(tuple(distinct.values()), version)


def test_an_unknown_field_would_be_found() -> None:
    (daemon_set,) = of_kind("DaemonSet", objects())
    wrong = {**daemon_set, "spec": {**daemon_set["spec"], "surge": 0}}
    with pytest.raises(kubernetes_validate.ValidationError, match="surge"):
        check((wrong,), VERSIONS[-1])


def test_the_crd_s_schema_is_a_schema_and_takes_the_smallest_gpu_node() -> None:
    crd: Any = yaml.safe_load((ROOT / "deploy" / "crds" / "gpunodes.sharer.dev.yaml").read_text())
    kubernetes_validate.validate(crd, VERSIONS[-1], strict=True)
    for version in crd["spec"]["versions"]:
        schema = version["schema"]["openAPIV3Schema"]
        jsonschema.Draft202012Validator.check_schema(schema)
        validator = jsonschema.Draft202012Validator(schema)
        smallest = {"apiVersion": f"sharer.dev/{version['name']}", "kind": "GpuNode", "metadata": {"name": "n1"}}
        assert list(validator.iter_errors(smallest)) == []
        assert list(validator.iter_errors({**smallest, "status": "x"}))


def test_the_chart_installs_the_crd_and_leaves_it_when_it_goes() -> None:
    """Deleting a CRD deletes its objects; and an agent newer than its CRD cannot write, so upgrades bring it along."""
    (installed,) = of_kind("CustomResourceDefinition", objects())
    expected = yaml.safe_load((ROOT / "deploy" / "crds" / "gpunodes.sharer.dev.yaml").read_text())
    expected["metadata"].setdefault("annotations", {})["helm.sh/resource-policy"] = "keep"
    assert installed == expected
