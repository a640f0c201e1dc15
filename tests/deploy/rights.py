"""deploy/rights.yaml against what a rendered chart gives, and as the table of README."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from tests.deploy.chart import NAMESPACE, Object, of_kind, pod_spec
from tests.tasks import ROOT

ROWS: list[dict[str, Any]] = yaml.safe_load((ROOT / "deploy" / "rights.yaml").read_text())
CONTAINERS = ("agent", "check-policy", "mps")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rights:
    """What one container may do."""

    api: frozenset[str] = field(default_factory=frozenset)  # "list pods"
    paths: Mapping[str, str] = field(default_factory=dict)  # of the host: ro or rw
    pod: frozenset[str] = field(default_factory=frozenset)


def declared(values: Mapping[str, Any], places: Mapping[str, list[str]]) -> dict[str, Rights]:
    """What the table says for these values, by container. `places` are what its $words stand for."""
    found: dict[str, Rights] = {}
    for row in ROWS:
        if all(_value(values, path) == wanted for path, wanted in row.get("with", {}).items()):
            before = found.get(row["who"], Rights())
            found[row["who"]] = Rights(
                api=before.api | {f"{verb} {what}" for what, verbs in row.get("api", {}).items() for verb in verbs},
                paths=_strongest(before.paths, _placed(row.get("paths", {}), places)),
                pod=before.pod | set(row.get("pod", ())),
            )
    for who, rights in found.items():
        if "privileged" in rights.pod:  # has every capability
            found[who] = Rights(
                api=rights.api,
                paths=rights.paths,
                pod=frozenset(one for one in rights.pod if not one.isupper() or " " in one),
            )
    return found


def given(objects: tuple[Object, ...]) -> dict[str, Rights]:
    """What a rendered chart gives, by container. Raises AssertionError for a kind of right that is not known here."""
    found: dict[str, Rights] = {}
    for workload in of_kind("DaemonSet", objects):
        spec = pod_spec(workload)
        account = spec["serviceAccountName"]
        api = frozenset(_verbs(account, objects)) if spec["automountServiceAccountToken"] else frozenset()
        hosts = {one["name"]: one["hostPath"]["path"] for one in spec["volumes"] if "hostPath" in one}
        assert "hostNetwork" not in spec
        devices = _devices(workload["spec"]["template"]["metadata"]["annotations"])
        for kind in ("initContainers", "containers"):
            for container in spec.get(kind, ()):
                is_main = kind == "containers"
                found[container["name"]] = Rights(
                    api=api if is_main else frozenset(),
                    paths={
                        hosts[one["name"]]: "ro" if one.get("readOnly") else "rw"
                        for one in container["volumeMounts"]
                        if one["name"] in hosts
                    },
                    pod=frozenset(_allowed(spec, container, is_main=is_main))
                    | devices.get(container["name"], frozenset()),
                )
    return found


def _devices(annotations: Mapping[str, str]) -> dict[str, frozenset[str]]:
    """By container, what GPU Operator's NRI plugin is asked for."""
    asked = "nvidia.cdi.k8s.io/container."
    return {
        key.removeprefix(asked): frozenset({f"CDI device {device}"})
        for key, device in annotations.items()
        if key.startswith(asked)
    }


def _allowed(spec: Mapping[str, Any], container: Mapping[str, Any], *, is_main: bool) -> Iterator[str]:
    security = container["securityContext"]
    if security.get("privileged"):
        yield "privileged"
    else:
        assert security["capabilities"]["drop"] == ["ALL"]
        yield from security["capabilities"].get("add", ())
    if is_main and spec.get("hostPID"):
        yield "host PIDs"
    if is_main and spec.get("hostIPC"):
        yield "host IPC"
    if is_main and spec.get("runtimeClassName"):
        yield f"runtime class {spec['runtimeClassName']}"


def _verbs(account: str, objects: tuple[Object, ...]) -> Iterator[str]:
    for binding in (*of_kind("ClusterRoleBinding", objects), *of_kind("RoleBinding", objects)):
        if binding["subjects"] != [{"kind": "ServiceAccount", "name": account, "namespace": NAMESPACE}]:
            continue
        wanted = binding["roleRef"]
        (role,) = [one for one in objects if (one["kind"], one["metadata"]["name"]) == (wanted["kind"], wanted["name"])]
        own = " (own)" if role["kind"] == "Role" else ""
        for rule in role["rules"]:
            for group in rule["apiGroups"]:
                for resource in rule["resources"]:
                    assert "*" not in (group, resource, *rule["verbs"])
                    what = f"{resource}.{group}" if group else resource
                    yield from (f"{verb} {what}{own}" for verb in rule["verbs"])


def _placed(paths: Mapping[str, str], places: Mapping[str, list[str]]) -> dict[str, str]:
    found = {}
    for path, mode in paths.items():
        word, slash, rest = path.partition("/")
        for place in places[word] if word else [""]:
            found[f"{place}{slash}{rest}"] = mode
    return found


def _strongest(one: Mapping[str, str], other: Mapping[str, str]) -> dict[str, str]:
    return {path: max(one.get(path, "ro"), other.get(path, "ro")) for path in one.keys() | other.keys()}


def _value(values: Mapping[str, Any], path: str) -> object:
    found: Any = values
    for part in path.split("."):
        found = found[part]
    return found


def table() -> str:
    """The rows as Markdown."""
    lines = ["| container | with | for | API | host paths | pod |", "|---|---|---|---|---|---|"]
    for row in ROWS:
        switches = (
            ", ".join(f"`{path}: {str(value).lower()}`" for path, value in row.get("with", {}).items()) or "always"
        )
        api = "; ".join(f"{what}: {', '.join(verbs)}" for what, verbs in row.get("api", {}).items())
        paths = ", ".join(f"`{path}` {mode}" for path, mode in row.get("paths", {}).items())
        cells = (row["who"], switches, row["for"], api, paths, ", ".join(row.get("pod", ())))
        lines.append("| " + " | ".join(cell or "–" for cell in cells) + " |")
    return "\n".join(lines) + "\n"
