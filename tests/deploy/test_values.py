"""Values that cannot work are refused, with the way out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml

from tests.deploy.chart import CHART, agent, main_container, objects, of_kind, pod_spec, refusal, settings_of, template

INLINE = {"default": {"rules": [{"match": {}, "strategy": "time-slicing", "slices": 2}]}}


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"policy": {"inline": INLINE, "existingConfigMap": "x"}}, "remove one of them"),
        ({"policy": {"inline": {"a100": "x"}}}, 'no key "default" (it has a100)'),
        ({"policy": {"inline": {"default": ""}}}, "/policy/inline/default"),
        ({"policy": {"inline": {"default": {}}}}, "/policy/inline/default"),
        ({"policy": {"inline": {"default": ["rules"]}}}, "/policy/inline/default"),
        ({"policy": {"inline": {"no/key": "x", "default": "x"}}}, "'no/key' does not match"),
        ({"policy": {"inline": "text"}}, "/policy/inline"),
        ({"policy": {"name": "x"}}, "additional properties 'name' not allowed"),
        ({"policy": {"map": {}}}, "additional properties 'map' not allowed"),
        ({"policy": {"create": True}}, "additional properties 'create' not allowed"),
        ({"policy": {"default": "x"}}, "additional properties 'default' not allowed"),
    ],
    ids=str,
)
def test_a_policy_that_could_not_be_in_force_is_refused(values: Mapping[str, object], says: str) -> None:
    """P06: a name in the wrong place, data that is empty, a default that is not among the keys, both ways at once."""
    assert says in refusal(values)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"kubernetes": {"enabled": False}}, "set policy.source=mount, or kubernetes.enabled=true"),
        ({"kubernetes": {"enabled": False}, "policy": {"source": "mount"}}, "set features.publish=false"),
        ({"features": {"evict": True, "hostPids": False}}, "set features.hostPids=true"),
        ({"features": {"driverLimits": True, "hostPids": False}}, "needs features.hostPids=true"),
        ({"features": {"mps": True}, "driver": {"access": "privileged"}}, "set driver.access=envvar or volume-mounts"),
        ({"crd": {"install": False}}, "set crd.install=true, or features.publish=false"),
        ({"driver": {"folder": "/run/nvidia"}}, "Set driver.access=privileged"),
        ({"driver": {"access": "nri", "library": "/x"}}, "Set driver.access=privileged"),
        (
            {"driver": {"access": "privileged", "folder": "/run/nvidia/driver/usr/lib64"}},
            "set driver.folder=/run/nvidia",
        ),
        ({"distribution": "bottlerocket"}, "set driver.access=volume-mounts"),
        ({"distribution": "bottlerocket", "driver": {"access": "privileged"}}, "set driver.folder"),
        ({"nodes": "all", "affinity": {"nodeAffinity": {}, "podAffinity": {}}}, "leave nodes out, or affinity empty"),
        ({"http": {"port": 0}, "monitoring": {"podMonitor": {"enabled": True}}}, "set http.port=9465"),
        ({"admission": {"resources": {"gpu": 1}}}, "nvidia.com/gpu.shared"),
        ({"admission": {"resources": None}}, "admission.resources is empty"),
        (
            {"policy": {"inline": {"default": {"rules": [{"strategy": "mps", "resource": "a.io/b", "slices": 2}]}}}},
            "--set admission.resources.a\\.io/b=1",
        ),
        (
            {"policy": {"inline": {"default": {"rules": [{"strategy": "mps", "slices": 4, "request": {"max": 2}}]}}}},
            "set both to the same number",
        ),
        (
            {"policy": {"inline": {"default": {"rules": [{"strategy": "mps", "slices": 4}]}}}},
            "uses MPS, and features.mps is false",
        ),
        (
            {"policy": {"inline": {"default": {"rules": [{"strategy": "mps", "memory": {"onExceed": "evict"}}]}}}},
            "set features.evict=true, or onExceed: report",
        ),
        (
            {"policy": {"inline": {"default": "rules: [{strategy: time-slicing, memory: {required: true}}]"}}},
            "set features.driverLimits=true",
        ),
        ({"podLabels": {"app.kubernetes.io/component": "gpu"}}, "podLabels has app.kubernetes.io/component, by which"),
        (
            {"extraArgs": ["--gds", "--http=off"]},
            "extraArgs has --http, which the chart sets together with the mounts, probes",
        ),
        ({"host": {"stateDir": "/run/sharer"}}, "host.stateDir and host.runDir are both /run/sharer"),
        ({"distribution": "openshift"}, "/distribution"),
        ({"updateStrategy": {"maxUnavailable": 0}}, "/updateStrategy/maxUnavailable"),
        ({"updateStrategy": {"maxSurge": 1}}, "additional properties 'maxSurge' not allowed"),
        ({"image": {"digest": "sha256:1"}}, "/image/digest"),
        ({"host": {"cdiDirs": "/etc/cdi"}}, "/host/cdiDirs"),
        ({"host": {"stateDir": "relative"}}, "/host/stateDir"),
        ({"features": {"limits": True}}, "additional properties 'limits' not allowed"),
        ({"features": {"evict": "true"}}, "/features/evict"),
        ({"injection": {"ways": "cdi,magic"}}, "/injection/ways"),
        ({"replicas": 4}, "additional properties 'replicas' not allowed"),
    ],
    ids=str,
)
def test_values_that_cannot_work_are_refused_with_the_way_out(values: Mapping[str, object], says: str) -> None:
    """P06: charts that render fine and cannot work."""
    assert says in refusal(values)


LATER = ("--device-plugin-dir", "--pod-resources-socket", "--checkpoint", "--mps-dir", "--driver-library")
"""Flags that follow from the chart's mounts, or from values that are not set here."""


def test_a_flag_that_the_chart_sets_itself_is_no_extra_argument() -> None:
    """Neighbour of P06: with --http=off the probes found nobody, and the agent was started again and again."""
    variables = {one["name"] for one in main_container(agent())["env"]}
    flags = {name.removeprefix("SHARER_AGENT_").lower().replace("_", "-") for name in variables if "SHARER" in name}
    wrong = [*(f"--{flag}" for flag in sorted(flags)), "--node-name", *LATER]
    said = refusal({"extraArgs": [f"{flag}=x" for flag in wrong]})
    assert [flag for flag in wrong if f"extraArgs has {flag}, which" not in said] == []
    spare = ["--gds", "--mofed", "--imex-channels=0", "--cgroup-root=/x"]
    assert main_container(agent({"extraArgs": spare}))["args"] == ["agent", *spare]


def test_no_key_stands_twice_whatever_labels_and_annotations_are_added() -> None:
    """Helm lets the last one pass; Argo CD, Flux and kustomize refuse all of it (reported of three GPU charts)."""
    labels = {"app.kubernetes.io/version": "mine", "helm.sh/chart": "mine", "team": "ml"}
    annotations = {"kubectl.kubernetes.io/default-container": "mine", "team": "ml"}
    values = {
        "podLabels": labels,
        "podAnnotations": annotations,
        "monitoring": {part: {"enabled": True, "labels": labels} for part in ("podMonitor", "rules", "dashboard")},
    }
    text = template(values, of="full")
    assert [said for root in yaml.compose_all(text, Loader=yaml.SafeLoader) for said in repeated(root)] == []
    for workload in of_kind("DaemonSet", objects(values, of="full")):
        made = workload["spec"]["template"]["metadata"]
        assert labels.items() <= made["labels"].items()
        assert annotations.items() <= made["annotations"].items()
        assert workload["spec"]["selector"]["matchLabels"].items() <= made["labels"].items()


def repeated(node: yaml.Node | None) -> Iterator[str]:
    """The keys that stand twice in one mapping, at any depth."""
    if isinstance(node, yaml.MappingNode):
        keys = [key.value for key, _ in node.value]
        yield from sorted({f"{key} at {node.start_mark}" for key in keys if keys.count(key) > 1})
        for _, value in node.value:
            yield from repeated(value)
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            yield from repeated(value)


def test_every_problem_is_said_at_once() -> None:
    said = refusal({"kubernetes": {"enabled": False}, "driver": {"folder": "/x"}})
    assert "policy.source" in said
    assert "features.publish" in said
    assert "driver.folder" in said


MAY_BE_EMPTY = {  # beside what is empty in the chart: what `null` means there is said in values.yaml, or is plain
    ("driver", "runtimeClassName"),
    ("gpuOperator", "pauseLabels"),
    ("resources",),
    ("mpsResources",),
    ("admission", "resources"),  # refused by a sentence of its own
    ("admission", "exemptNamespaces"),
    ("monitoring", "dashboard", "labels"),
}


def nulls(*paths: tuple[str, ...]) -> dict[str, Any]:
    """The values that take all of these away."""
    values: dict[str, Any] = {}
    for *sections, name in paths:
        here = values
        for section in sections:
            here = here.setdefault(section, {})
        here[name] = None
    return values


def paths_in(values: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every value of the chart with its path, but for what is below one that may be empty."""
    for name, value in values.items():
        path = (*above, name)
        yield path, value
        if isinstance(value, dict) and path not in MAY_BE_EMPTY:
            yield from paths_in(value, path)


def test_null_for_what_cannot_be_without_a_value_is_refused_and_named() -> None:
    """`--set NAME=null` takes a default away. An agent got other rights than meant, or none, and Helm said `nil`."""
    chart = dict(paths_in(yaml.safe_load((CHART / "values.yaml").read_text())))
    full = {path: value for path, value in chart.items() if value not in ("", [], {}) and path not in MAY_BE_EMPTY}
    for level in (
        [path for path, value in full.items() if not isinstance(value, dict)],
        [path for path, value in full.items() if isinstance(value, dict) and len(path) == 1],
        [path for path, value in full.items() if isinstance(value, dict) and len(path) == 2],
    ):
        said = refusal(nulls(*level), of="full")
        for path in level:
            assert f"{'.'.join(path)} is null, and cannot be without a value; leave it out" in said
        assert "--reset-then-reuse-values" in said, "an upgrade with --reuse-values lacks what is new in the chart"


def test_null_for_what_may_be_empty_is_as_if_it_were_empty() -> None:
    chart = dict(paths_in(yaml.safe_load((CHART / "values.yaml").read_text())))
    empty = [path for path, value in chart.items() if value in ("", [], {})]
    assert ("affinity",) in empty
    assert objects(nulls(*empty)) == objects()
    taken = nulls(*(MAY_BE_EMPTY - {("admission", "resources")}))
    agent, mps = of_kind("DaemonSet", objects({**taken, "features": {"mps": True}}))
    for container in (main_container(agent), main_container(mps)):
        assert container["resources"] == {}
    assert "runtimeClassName" not in pod_spec(agent)
    assert settings_of(agent).pause_label == ()


def test_a_policy_that_is_wrong_in_itself_is_left_to_its_own_check() -> None:
    """The init container's parser names line and cure; the template only must not trip over it."""
    rules = [{"strategy": "time-slicing", "memory": "much", "request": [1]}, "text", {"strategy": ["mps"]}]
    for wrong in (rules, "text", {"a": 1}):
        assert objects({"policy": {"inline": {"default": {"rules": wrong}}}})


def test_the_schema_knows_every_value_and_no_other() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())

    def compare(part: Mapping[str, Any], value: Mapping[str, Any], path: str) -> None:
        assert part["additionalProperties"] is False, path
        assert part["properties"].keys() - {"global"} == value.keys(), path
        for name, inner in value.items():
            known = part["properties"][name]
            if isinstance(inner, dict) and "properties" in known:
                compare(known, inner, f"{path}.{name}")

    compare(schema, values, "")
