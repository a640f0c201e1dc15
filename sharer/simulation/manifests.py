"""Pods from ordinary Kubernetes manifests, for the planner: what they ask for, when they come, how long they run.

Read are Pod, Deployment, ReplicaSet, StatefulSet, Job and List; other kinds are named and passed over. Of a pod only
its extended resources count (names with a "/"): CPU and memory are not simulated. Two annotations, on a Pod, or on a
workload's pod template or the workload itself, say when and for how long:

    simulation.sharer.dev/start-after: 5m     # from the beginning; default: at once
    simulation.sharer.dev/run-for: 1h30m      # default: for ever
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import yaml

from sharer.adapters.yaml_text import in_words
from sharer.core.errors import InputError
from sharer.core.quantities import parse_duration_s
from sharer.simulation.kubelet import ContainerSpec

START_AFTER = "simulation.sharer.dev/start-after"
RUN_FOR = "simulation.sharer.dev/run-for"
MAX_PODS = 10_000  # of one workload: guards against a slip of the keyboard
_ENDLESS = ("Deployment", "ReplicaSet", "StatefulSet")
_PLANNED = "Pod, Job, Deployment, ReplicaSet or StatefulSet"
_COUNT = re.compile(r"0|[1-9][0-9]{0,8}")
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

Node = object
"""What YAML made of a part of a document: a mapping, a list, or a scalar."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPod:
    """One pod that is to run."""

    name: str
    namespace: str
    containers: tuple[ContainerSpec, ...]
    init_containers: tuple[ContainerSpec, ...] = ()
    start_after_s: float = 0.0
    run_for_s: float | None = None  # None: for ever
    job: str | None = None  # "namespace/name" of its Job, of whose pods `at_once` run at a time
    at_once: int | None = None

    @property
    def title(self) -> str:
        """For people."""
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifests:
    """Everything in a file."""

    pods: tuple[PlannedPod, ...]
    warnings: tuple[str, ...]


def read_manifests(text: bytes, source: str) -> Manifests:
    """The pods of a multi-document YAML file. Raises InputError that names file, object, field, and what is allowed."""
    try:
        documents = list(yaml.load_all(text, Loader=_LOADER))
    except yaml.YAMLError as error:
        raise InputError(in_words(error, source)) from error
    pods: list[PlannedPod] = []
    warnings: list[str] = []
    for number, document in enumerate(documents, start=1):
        for item in _objects(document, f"{source}: document {number}"):
            found = _Object(item, f"{source}: document {number}")
            if found.kind == "Pod" or found.kind == "Job" or found.kind in _ENDLESS:
                pods += found.pods()
            else:
                warnings.append(f"{found.where} is passed over: only pods and what makes them are planned")
    titles = [pod.title for pod in pods]
    twice = sorted({title for title in titles if titles.count(title) > 1})
    if twice:
        raise InputError(f"{source}: pod {twice[0]} is there twice; give each pod a name of its own")
    if not pods:
        raise InputError(f"{source}: has no pod; expected documents of kind {_PLANNED}")
    return Manifests(pods=tuple(pods), warnings=tuple(warnings))


def _objects(document: Node, where: str) -> Iterator[Mapping[str, Node]]:
    if document is None:
        return
    if not isinstance(document, dict):
        raise InputError(f"{where}: is {_what(document)}, not a Kubernetes object")
    if document.get("kind") == "List":
        items = document.get("items") or []
        if not isinstance(items, list):
            raise InputError(f"{where}: items is {_what(items)}, not a list")
        for item in items:
            yield from _objects(item, where)
    else:
        yield document


class _Object:
    """One Kubernetes object; `where` names it in messages."""

    def __init__(self, raw: Mapping[str, Node], document: str) -> None:
        self._raw = raw
        self.where = document
        kind = raw.get("kind")
        if not isinstance(kind, str) or not isinstance(raw.get("apiVersion"), str):
            raise InputError(f"{document}: has no apiVersion and kind; expected a Kubernetes object such as a Pod")
        self.kind = kind
        self.where = f"{document}: {kind}"
        metadata = self._mapping(raw, "metadata")
        self._name = self._text(metadata, "metadata.name", None)
        self._namespace = self._text(metadata, "metadata.namespace", "default")
        self.where = f"{document}: {kind} {self._name}"
        self._annotations = self._mapping(metadata, "annotations")

    def pods(self) -> Iterator[PlannedPod]:
        """The pods that it stands for."""
        spec = self._mapping(self._raw, "spec")
        if self.kind == "Pod":
            yield self._pod(self._name, spec, self._annotations)
            return
        template = self._mapping(spec, "template")
        own = self._mapping(self._mapping(template, "metadata"), "annotations")
        annotations = {**self._annotations, **own}
        pod_spec = self._mapping(template, "spec")
        if self.kind == "Job":
            at_once = self._count(spec, "parallelism", 1)
            for number in range(self._count(spec, "completions", at_once)):
                job = f"{self._namespace}/{self._name}"
                yield self._pod(f"{self._name}-{number}", pod_spec, annotations, job, at_once)
            return
        if RUN_FOR in annotations:
            raise InputError(f"{self.where}: {RUN_FOR} is set, and the pods of a {self.kind} never end; use a Job")
        for number in range(self._count(spec, "replicas", 1)):
            yield self._pod(f"{self._name}-{number}", pod_spec, annotations)

    def _pod(
        self,
        name: str,
        spec: Mapping[str, Node],
        annotations: Mapping[str, Node],
        job: str | None = None,
        at_once: int | None = None,
    ) -> PlannedPod:
        containers = tuple(self._containers(spec, "containers"))
        if not containers:
            raise InputError(f"{self.where}: its pod has no containers")
        return PlannedPod(
            name=name,
            namespace=self._namespace,
            containers=containers,
            init_containers=tuple(self._containers(spec, "initContainers")),
            start_after_s=self._duration(annotations, START_AFTER) or 0.0,
            run_for_s=self._duration(annotations, RUN_FOR),
            job=job,
            at_once=at_once,
        )

    def _containers(self, spec: Mapping[str, Node], key: str) -> Iterator[ContainerSpec]:
        listed = spec.get(key) or []
        if not isinstance(listed, list):
            raise InputError(f"{self.where}: {key} is {_what(listed)}, not a list")
        for number, raw in enumerate(listed):
            if not isinstance(raw, dict):
                raise InputError(f"{self.where}: {key}[{number}] is {_what(raw)}, not a container")
            name = self._text(raw, f"{key}[{number}].name", None)
            sidecar = key == "initContainers" and raw.get("restartPolicy") == "Always"
            resources = self._mapping(raw, "resources")
            yield ContainerSpec(name=name, limits=self._limits(resources, f"container {name}"), sidecar=sidecar)

    def _limits(self, resources: Mapping[str, Node], container: str) -> dict[str, int]:
        """Extended resources only. The API server wants a limit for each, and a request to be the same."""
        limits, requests = self._mapping(resources, "limits"), self._mapping(resources, "requests")
        found = {}
        for name in sorted({*limits, *requests}):
            if "/" not in name:
                continue
            if name not in limits:
                raise InputError(f"{self.where}: {container} requests {name} without a limit; Kubernetes wants both")
            text = str(limits[name])
            if isinstance(limits[name], bool) or _COUNT.fullmatch(text) is None:
                raise InputError(f"{self.where}: {container} asks for {text} {name}; a whole number is allowed")
            if str(requests.get(name, text)) != text:
                raise InputError(f"{self.where}: {container} requests {requests[name]} {name} with a limit of {text}")
            if text != "0":
                found[name] = int(text)
        return found

    def _mapping(self, raw: Mapping[str, Node], key: str) -> Mapping[str, Node]:
        found = raw.get(key)
        if found is None:
            return {}
        if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
            raise InputError(f"{self.where}: {key} is {_what(found)}, not a mapping with text keys")
        return found

    def _text(self, raw: Mapping[str, Node], path: str, default: str | None) -> str:
        """The last part of `path` in `raw`; all of it is for messages."""
        found = raw.get(path.rpartition(".")[2], default)
        if found is None:
            raise InputError(f"{self.where}: {path} is missing")
        if not isinstance(found, str) or not found:
            raise InputError(f"{self.where}: {path} is {found!r}, and must be text")
        return found

    def _count(self, raw: Mapping[str, Node], key: str, default: int) -> int:
        found = raw.get(key)
        if found is None:
            return default
        if not isinstance(found, int) or isinstance(found, bool) or not 0 <= found <= MAX_PODS:
            raise InputError(f"{self.where}: {key} is {found!r}; a whole number from 0 to {MAX_PODS} is allowed")
        return found

    def _duration(self, annotations: Mapping[str, Node], key: str) -> float | None:
        found = annotations.get(key)
        if found is None:
            return None
        try:
            return parse_duration_s(str(found))
        except ValueError as error:
            raise InputError(f"{self.where}: annotation {key}: {error}") from error


def _what(found: Node) -> str:
    """What a part of a document is, in words of YAML.

    >>> _what({}), _what("a"), _what(1.5)
    ('a mapping', 'text', 'a number')
    """
    if isinstance(found, dict):
        return "a mapping"
    if isinstance(found, list):
        return "a list"
    if isinstance(found, bool):
        return "true or false"
    return "a number" if isinstance(found, (int, float)) else "text"
