"""What helm says when it has installed."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

import pytest
import yaml

from tests.deploy.chart import CHART, NAMESPACE, PROFILES, RELEASE, profile, run
from tests.deploy.taints import tolerates
from tests.tasks import ROOT


def notes(values: Mapping[str, object] | None = None, of: str = "standard") -> str:
    done = run(
        "install", RELEASE, CHART, "-n", NAMESPACE, "--dry-run=client", "-f", profile(of), "-f", "-",
        stdin=json.dumps(values or {}),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.partition("NOTES:")[2]


@pytest.mark.parametrize("name", PROFILES)
def test_the_notes_say_what_to_do_next(name: str) -> None:
    said = notes(of=name)
    assert f"kubectl -n {NAMESPACE} rollout status daemonset/{RELEASE}-agent" in said
    assert "sharer report" in said
    assert ("kubectl get gpunodes" in said) == (name != "minimal")
    assert "nvidia.com/gpu.shared: 1" in said
    assert "image.repository is only an example" in said
    assert max(len(line) for line in said.splitlines()) <= 132


def test_the_first_pod_of_the_notes_is_a_pod() -> None:
    (text,) = re.findall(r"<<EOF\n(.*?)\n +EOF", notes(), re.DOTALL)
    first = yaml.safe_load(text)
    assert first["kind"] == "Pod"
    assert first["spec"]["containers"][0]["resources"] == {"limits": {"nvidia.com/gpu.shared": 1}}
    pool = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
    assert any(tolerates(one, pool) for one in first["spec"]["tolerations"]), "P37: or it waits for ever on such a pool"


def test_readme_s_first_pod_is_that_of_the_notes() -> None:
    def pod(text: str) -> object:
        (found,) = re.findall(r"^ *kubectl apply -f - <<EOF\n(.*?)\n *EOF", text, re.DOTALL | re.MULTILINE)
        return yaml.safe_load(found)

    assert pod((ROOT / "README.md").read_text()) == pod(notes())


def test_the_notes_fit_what_was_chosen() -> None:
    assert "is not set up" not in notes({"driver": {"access": "privileged"}})
    assert "cdi_spec_dirs" in notes({"distribution": "talos"})
    bottlerocket = {"distribution": "bottlerocket", "driver": {"access": "volume-mounts", "runtimeClassName": ""}}
    assert "device plugin of their own" in notes(bottlerocket)
    assert "RuntimeClass" not in notes(bottlerocket)
    assert "NRI_MANAGEMENT_CDI_DEVICE_NAMESPACES" in notes({"driver": {"access": "nri"}})
    assert "admission.bypass=Deny" in notes()
    assert "admission.bypass=Deny" not in notes(of="full")
    assert "never restarted by an upgrade" in notes(of="full")
    assert "only an example" not in notes({"image": {"repository": "r.io/sharer"}})
