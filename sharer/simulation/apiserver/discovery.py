"""What clients ask first: which groups, versions and resources there are. Unaggregated, which every client takes."""

from __future__ import annotations

import msgspec

from sharer.simulation.apiserver.kinds import Kind, Kinds
from sharer.simulation.apiserver.statuses import Answer, Object

_SHORT_NAMES = {"pods": ["po"], "nodes": ["no"], "configmaps": ["cm"], "events": ["ev"], "namespaces": ["ns"]}
_VERBS = ["create", "delete", "get", "list", "patch", "watch"]


class Discovery:
    """Answers the paths that name no object."""

    def __init__(self, kinds: Kinds, git_version: str) -> None:
        self._answers = {path: msgspec.json.encode(body) for path, body in _documents(kinds, git_version).items()}

    def answer(self, path: str) -> Answer | None:
        """The document at this path; None if there is none."""
        if path in ("/healthz", "/livez", "/readyz"):
            return Answer(code=200, body=b"ok", content_type="text/plain")
        body = self._answers.get(path.rstrip("/"))
        return None if body is None else Answer(code=200, body=body)


def _documents(kinds: Kinds, git_version: str) -> dict[str, Object]:
    major, minor = git_version.removeprefix("v").split(".")[:2]
    versions = sorted({(kind.group, kind.version) for kind in kinds.all})
    groups = sorted({group for group, _ in versions if group})
    by_group = {name: _group(name, [version for group, version in versions if group == name]) for name in groups}
    documents: dict[str, Object] = {
        "/version": {
            "major": major,
            "minor": minor,
            "gitVersion": git_version,
            "gitCommit": "simulated",
            "gitTreeState": "clean",
            "buildDate": "2026-01-01T00:00:00Z",
            "goVersion": "go1.25",
            "compiler": "gc",
            "platform": "linux/amd64",
        },
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
        "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": list(by_group.values())},
    }
    for name, group in by_group.items():
        documents[f"/apis/{name}"] = {"kind": "APIGroup", "apiVersion": "v1", **group}
    for name, version in versions:
        path = f"/apis/{name}/{version}" if name else f"/api/{version}"
        documents[path] = {
            "kind": "APIResourceList",
            "apiVersion": "v1",
            "groupVersion": f"{name}/{version}" if name else version,
            "resources": [
                resource
                for kind in kinds.all
                if (kind.group, kind.version) == (name, version)
                for resource in _resources(kind)
            ],
        }
    return documents


def _group(name: str, versions: list[str]) -> Object:
    listed = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"name": name, "versions": listed, "preferredVersion": listed[-1]}


def _resources(kind: Kind) -> list[Object]:
    main: Object = {
        "name": kind.plural,
        "singularName": kind.kind.lower(),
        "namespaced": kind.namespaced,
        "kind": kind.kind,
        "verbs": _VERBS,
    }
    if kind.plural in _SHORT_NAMES:
        main["shortNames"] = _SHORT_NAMES[kind.plural]
    parts = [
        {
            "name": f"{kind.plural}/{part}",
            "singularName": "",
            "namespaced": kind.namespaced,
            "kind": "Eviction" if part == "eviction" else kind.kind,
            "verbs": ["create"] if part == "eviction" else ["patch"],
            **({"group": "policy", "version": "v1"} if part == "eviction" else {}),
        }
        for part in kind.subresources
    ]
    return [main, *parts]
