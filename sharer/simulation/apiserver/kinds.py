"""The kinds of object that the simulated API server serves, and how a path names one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import unquote

from sharer.simulation.apiserver.statuses import Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind in one version of one group."""

    group: str  # "" is the core group
    version: str
    kind: str
    plural: str
    namespaced: bool
    subresources: tuple[str, ...] = ()
    custom: bool = False  # served by a CustomResourceDefinition

    @property
    def api_version(self) -> str:
        """As in an object: "v1", "sharer.dev/v1alpha1"."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def qualified(self) -> str:
        """As in messages: "pods", "gpunodes.sharer.dev"."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def qualified_kind(self) -> str:
        """As in messages about a wrong object: "Pod", "Lease.coordination.k8s.io"."""
        return f"{self.kind}.{self.group}" if self.group else self.kind


POD = Kind(
    group="", version="v1", kind="Pod", plural="pods", namespaced=True, subresources=("status", "eviction")
)  # fmt: skip
NODE = Kind(group="", version="v1", kind="Node", plural="nodes", namespaced=False, subresources=("status",))
EVENT = Kind(group="", version="v1", kind="Event", plural="events", namespaced=True)
LEASE = Kind(group="coordination.k8s.io", version="v1", kind="Lease", plural="leases", namespaced=True)
CONFIG_MAP = Kind(group="", version="v1", kind="ConfigMap", plural="configmaps", namespaced=True)
NAMESPACE = Kind(group="", version="v1", kind="Namespace", plural="namespaces", namespaced=False)
BUDGET = Kind(
    group="policy", version="v1", kind="PodDisruptionBudget", plural="poddisruptionbudgets", namespaced=True,
    subresources=("status",),
)  # fmt: skip
DAEMON_SET = Kind(
    group="apps", version="v1", kind="DaemonSet", plural="daemonsets", namespaced=True, subresources=("status",)
)  # fmt: skip
RUNTIME_CLASS = Kind(
    group="node.k8s.io", version="v1", kind="RuntimeClass", plural="runtimeclasses", namespaced=False
)  # fmt: skip
POLICY_BINDING = Kind(
    group="admissionregistration.k8s.io", version="v1", kind="ValidatingAdmissionPolicyBinding",
    plural="validatingadmissionpolicybindings", namespaced=False,
)  # fmt: skip
ACCESS_REVIEW = Kind(
    group="authorization.k8s.io", version="v1", kind="SelfSubjectAccessReview", plural="selfsubjectaccessreviews",
    namespaced=False,
)  # fmt: skip
GPU_NODE = Kind(
    group="sharer.dev", version="v1alpha1", kind="GpuNode", plural="gpunodes", namespaced=False,
    subresources=("status",), custom=True,
)  # fmt: skip
KINDS = (
    POD, NODE, EVENT, LEASE, CONFIG_MAP, NAMESPACE, BUDGET, DAEMON_SET, RUNTIME_CLASS, POLICY_BINDING, ACCESS_REVIEW,
    GPU_NODE,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a path names."""

    kind: Kind
    namespace: str | None = None  # None: cluster scope, or all namespaces
    name: str | None = None  # None: the collection
    subresource: str | None = None

    @property
    def resource(self) -> str:
        """As in a rule: "pods", "pods/eviction"."""
        return f"{self.kind.plural}/{self.subresource}" if self.subresource else self.kind.plural


class Kinds:
    """Which kinds there are, looked up by path. Custom ones come and go."""

    def __init__(self, kinds: Iterable[Kind]) -> None:
        self._by_plural = {(kind.group, kind.version, kind.plural): kind for kind in kinds}

    @property
    def all(self) -> tuple[Kind, ...]:
        """Those that are served now."""
        return tuple(self._by_plural.values())

    def serve(self, kind: Kind) -> None:
        """Serve this kind too."""
        self._by_plural = {**self._by_plural, (kind.group, kind.version, kind.plural): kind}

    def withdraw(self, kind: Kind) -> None:
        """Serve it no more."""
        self._by_plural = {key: one for key, one in self._by_plural.items() if one != kind}

    def parse(self, path: str) -> Target | None:
        """What a path names; None if it is no path below a group's version. Raises Failure for an unknown resource."""
        parts = [unquote(part) for part in path.strip("/").split("/")]
        match parts:
            case ["api", version, first, *rest]:
                group = ""
            case ["apis", group, version, first, *rest]:
                pass
            case _:
                return None
        namespace = None
        if first == "namespaces" and len(rest) > 1 and rest[1] not in ("status", "finalize"):
            namespace, first, *rest = rest
        kind = self._by_plural.get((group, version, first))
        if kind is None or len(rest) > 2 or (namespace is not None and not kind.namespaced):
            raise Failure.no_such_path()
        name, subresource = (*rest, None, None)[:2]
        unserved = subresource is not None and subresource not in kind.subresources
        if unserved or (name is not None and kind.namespaced and namespace is None):
            raise Failure.no_such_path()
        return Target(kind=kind, namespace=namespace, name=name, subresource=subresource)
