"""The chart, as helm renders it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from sharer.settings import Settings, read_settings
from tests.deploy.tools import helm
from tests.tasks import ROOT

CHART = ROOT / "deploy" / "helm" / "sharer"
PROFILES = ("minimal", "standard", "full")
RELEASE, NAMESPACE = "sharer", "sharer"

Object = dict[str, Any]  # Any: an object of Kubernetes'
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def profile(name: str) -> Path:
    """The values of a profile."""
    return CHART / "profiles" / f"{name}.yaml"


def run(*arguments: str | Path, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """What helm does, whatever its exit status."""
    return subprocess.run([helm(), *arguments], input=stdin, capture_output=True, text=True, check=False)


def template(values: Mapping[str, object] | None = None, *, of: str = "standard", release: str = RELEASE) -> str:
    """The chart's text with these values on top of a profile. Raises AssertionError with what helm says."""
    return _template(json.dumps(values or {}), of, release)


@cache
def _template(values: str, of: str, release: str) -> str:
    done = run("template", release, CHART, "-n", NAMESPACE, "-f", profile(of), "-f", "-", stdin=values)
    assert done.returncode == 0, done.stderr
    return done.stdout


def refusal(values: Mapping[str, object], *, of: str = "standard") -> str:
    """What helm says to values that it must not render."""
    done = run("template", RELEASE, CHART, "-n", NAMESPACE, "-f", profile(of), "-f", "-", stdin=json.dumps(values))
    assert done.returncode != 0, "it rendered"
    return done.stderr


@cache
def _objects(text: str) -> tuple[Object, ...]:
    return tuple(document for document in yaml.load_all(text, Loader=_LOADER) if document)


def objects(values: Mapping[str, object] | None = None, *, of: str = "standard") -> tuple[Object, ...]:
    """The objects that the chart makes of these values. Do not change them."""
    return _objects(template(values, of=of))


def of_kind(kind: str, found: tuple[Object, ...]) -> list[Object]:
    """Those of one kind."""
    return [one for one in found if one["kind"] == kind]


def named(kind: str, name: str, found: tuple[Object, ...]) -> Object:
    """The one of this kind and name."""
    (one,) = [one for one in of_kind(kind, found) if one["metadata"]["name"] == name]
    return one


def pod_spec(workload: Object) -> Any:
    """Of a DaemonSet."""
    return workload["spec"]["template"]["spec"]


def agent(values: Mapping[str, object] | None = None, *, of: str = "standard") -> Any:
    """The agent's DaemonSet."""
    return named("DaemonSet", f"{RELEASE}-agent", objects(values, of=of))


def settings_of(workload: Object) -> Settings:
    """As the agent reads them from the variables and flags that it is given."""
    container = main_container(workload)
    command, *flags = container["args"]
    assert command == "agent"
    variables = {one["name"]: one["value"] for one in container["env"] if "value" in one}
    return read_settings(flags, variables | {"NODE_NAME": "n"})


def main_container(workload: Object) -> Any:
    """Of a DaemonSet, the one that is no init container."""
    (container,) = pod_spec(workload)["containers"]
    return container
