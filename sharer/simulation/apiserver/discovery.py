"""What clients ask first: which groups, versions and resources there are; in one document, or step by step."""

from __future__ import annotations

import msgspec

from sharer.simulation.apiserver.definitions import Definitions
from sharer.simulation.apiserver.kinds import Kind, Kinds
from sharer.simulation.apiserver.openapi import openapi
from sharer.simulation.apiserver.statuses import Answer, Object

_SHORT_NAMES = {"pods": ("po",), "nodes": ("no",), "configmaps": ("cm",), "events": ("ev",), "namespaces": ("ns",)}
_CATEGORIES = {"pods": ("all",)}
_VERBS = ["create", "delete", "get", "list", "patch", "update", "watch"]
_AGGREGATED = "g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"


class Discovery:
    """Answers the paths that name no object."""

    def __init__(self, kinds: Kinds, definitions: Definitions, git_version: str) -> None:
        self._kinds, self._definitions, self._git_version = kinds, definitions, git_version

    def answer(self, path: str, accept: str) -> Answer | None:
        """The document at this path; None if there is none."""
        path = path.rstrip("/")
        if path in ("/healthz", "/livez", "/readyz"):
            return Answer(code=200, body=b"ok", content_type="text/plain")
        if path.startswith("/openapi/v3"):
            body = openapi(self._kinds, self._definitions).get(path)
        elif path in ("/api", "/apis") and _AGGREGATED in accept.replace(" ", ""):
            groups = self._groups()
            wanted = {name: group for name, group in groups.items() if bool(name) is (path == "/apis")}
            body = {"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}}
            body["items"] = [self._aggregated(name, versions) for name, versions in wanted.items()]
            return Answer(code=200, body=msgspec.json.encode(body), content_type=f"application/json;{_AGGREGATED}")
        else:
            body = self._document(path)
        return None if body is None else Answer(code=200, body=msgspec.json.encode(body))

    def _groups(self) -> dict[str, list[str]]:
        """The versions by group."""
        groups: dict[str, list[str]] = {}
        for group, version in sorted({(kind.group, kind.version) for kind in self._kinds.all}):
            groups.setdefault(group, []).append(version)
        return groups

    def _of(self, group: str, version: str) -> list[Kind]:
        return [kind for kind in self._kinds.all if (kind.group, kind.version) == (group, version)]

    # -- step by step

    def _document(self, path: str) -> Object | None:
        groups = self._groups()
        match path.strip("/").split("/"):
            case ["version"]:
                return _version(self._git_version)
            case ["api"]:
                return {"kind": "APIVersions", "versions": groups.get("", [])}
            case ["apis"]:
                listed = [_group(name, versions) for name, versions in groups.items() if name]
                return {"kind": "APIGroupList", "apiVersion": "v1", "groups": listed}
            case ["apis", name] if name in groups:
                return {"kind": "APIGroup", "apiVersion": "v1", **_group(name, groups[name])}
            case ["api", version] if version in groups.get("", ()):
                return self._resources("", version)
            case ["apis", name, version] if version in groups.get(name, ()):
                return self._resources(name, version)
            case _:
                return None

    def _resources(self, group: str, version: str) -> Object:
        return {
            "kind": "APIResourceList",
            "apiVersion": "v1",
            "groupVersion": f"{group}/{version}" if group else version,
            "resources": [resource for kind in self._of(group, version) for resource in self._resource(kind)],
        }

    def _resource(self, kind: Kind) -> list[Object]:
        short_names, categories = self._words(kind)
        main: Object = {
            "name": kind.plural,
            "singularName": kind.kind.lower(),
            "namespaced": kind.namespaced,
            "kind": kind.kind,
            "verbs": _VERBS,
        }
        if short_names:
            main["shortNames"] = short_names
        if categories:
            main["categories"] = categories
        parts = [
            {
                "name": f"{kind.plural}/{part}",
                "singularName": "",
                "namespaced": kind.namespaced,
                "kind": "Eviction" if part == "eviction" else kind.kind,
                "verbs": _part_verbs(part),
                **({"group": "policy", "version": "v1"} if part == "eviction" else {}),
            }
            for part in kind.subresources
        ]
        return [main, *parts]

    def _words(self, kind: Kind) -> tuple[list[str], list[str]]:
        definition = self._definitions.of(kind)
        if definition is not None:
            return list(definition.short_names), list(definition.categories)
        return list(_SHORT_NAMES.get(kind.plural, ())), list(_CATEGORIES.get(kind.plural, ()))

    # -- in one document

    def _aggregated(self, group: str, versions: list[str]) -> Object:
        return {
            "metadata": {"name": group} if group else {},
            "versions": [
                {
                    "version": version,
                    "freshness": "Current",
                    "resources": [self._aggregated_resource(kind) for kind in self._of(group, version)],
                }
                for version in versions
            ],
        }

    def _aggregated_resource(self, kind: Kind) -> Object:
        short_names, categories = self._words(kind)
        response_kind = {"group": kind.group, "version": kind.version, "kind": kind.kind}
        return {
            "resource": kind.plural,
            "responseKind": response_kind,
            "scope": "Namespaced" if kind.namespaced else "Cluster",
            "singularResource": kind.kind.lower(),
            "verbs": _VERBS,
            "shortNames": short_names,
            "categories": categories,
            "subresources": [
                {
                    "subresource": part,
                    "responseKind": {"group": "policy", "version": "v1", "kind": "Eviction"}
                    if part == "eviction"
                    else response_kind,
                    "verbs": _part_verbs(part),
                }
                for part in kind.subresources
            ],
        }


def _part_verbs(part: str) -> list[str]:
    return ["create"] if part == "eviction" else ["get", "patch", "update"]


def _group(name: str, versions: list[str]) -> Object:
    listed = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"name": name, "versions": listed, "preferredVersion": listed[-1]}


def _version(git_version: str) -> Object:
    major, minor = git_version.removeprefix("v").split(".")[:2]
    return {
        "major": major,
        "minor": minor,
        "gitVersion": git_version,
        "gitCommit": "simulated",
        "gitTreeState": "clean",
        "buildDate": "2026-01-01T00:00:00Z",
        "goVersion": "go1.25",
        "compiler": "gc",
        "platform": "linux/amd64",
    }
