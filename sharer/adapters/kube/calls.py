"""Requests as plain values: what is asked of which resource, its path, and the rule that allows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from urllib.parse import quote

from sharer.core.values import dataclass

APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"
JSON = "application/json"
_BELONG_TOGETHER = {"list": ("list", "watch"), "watch": ("list", "watch"), APPLY: ("create", "patch")}
_METHODS = {"get": "GET", "list": "GET", "watch": "GET", "create": "POST", "patch": "PATCH", "delete": "DELETE"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """A resource of the API, in the version that sharer speaks."""

    group: str  # "" is the core group
    version: str
    plural: str
    kind: str
    namespaced: bool

    @property
    def api_version(self) -> str:
        """As in an object."""
        return f"{self.group}/{self.version}" if self.group else self.version


PODS = Resource(group="", version="v1", plural="pods", kind="Pod", namespaced=True)
NODES = Resource(group="", version="v1", plural="nodes", kind="Node", namespaced=False)
CONFIG_MAPS = Resource(group="", version="v1", plural="configmaps", kind="ConfigMap", namespaced=True)
EVENTS = Resource(group="", version="v1", plural="events", kind="Event", namespaced=True)
LEASES = Resource(group="coordination.k8s.io", version="v1", plural="leases", kind="Lease", namespaced=True)
GPU_NODES = Resource(group="sharer.dev", version="v1alpha1", plural="gpunodes", kind="GpuNode", namespaced=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request."""

    verb: str  # as in a rule: "list", "watch", "patch"
    resource: Resource
    namespace: str | None = None  # None: a cluster-scoped resource, or all namespaces
    name: str | None = None
    subresource: str | None = None
    query: Mapping[str, str] = field(default_factory=dict)
    content_type: str | None = None
    body: Mapping[str, object] | None = None
    document: str | None = None  # a path of the server's own, such as "/version", instead of the resource's

    @property
    def method(self) -> str:
        """HTTP's."""
        return _METHODS[self.verb]

    @property
    def path(self) -> str:
        """Without the query."""
        if self.document is not None:
            return self.document
        resource = self.resource
        parts = ["apis", resource.group, resource.version] if resource.group else ["api", resource.version]
        if self.namespace is not None:
            parts += ["namespaces", self.namespace]
        parts += [part for part in (resource.plural, self.name, self.subresource) if part is not None]
        return "".join("/" + quote(part, safe="") for part in parts)

    @property
    def plural(self) -> str:
        """The resource as a rule names it: "pods", "pods/eviction"."""
        return f"{self.resource.plural}/{self.subresource}" if self.subresource else self.resource.plural

    @property
    def scope(self) -> str:
        """Where a rule must hold."""
        return "in the whole cluster" if self.namespace is None else f"in namespace {self.namespace}"

    @property
    def what(self) -> str:
        """What it is about, for people: "pods in the whole cluster with spec.nodeName=node-1"."""
        if self.name is not None:
            return f"{self.plural} {self.namespace}/{self.name}" if self.namespace else f"{self.plural} {self.name}"
        selector = self.query.get("fieldSelector")
        return f"{self.plural} {self.scope}" + (f" with {selector}" if selector else "")

    @property
    def rule(self) -> str:
        """The RBAC rule that would allow it, and where it belongs."""
        verbs = ", ".join(_BELONG_TOGETHER.get(self.content_type or self.verb, (self.verb,)))
        role = "a ClusterRole" if self.namespace is None else f"a ClusterRole, or a Role in namespace {self.namespace}"
        return f'{{apiGroups: ["{self.resource.group}"], resources: [{self.plural}], verbs: [{verbs}]}} in {role}'
