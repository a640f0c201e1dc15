"""What the API server says about this node and its pods, as frozen values.

Only what sharer acts on is kept. A snapshot is whole: a pod that is not in it did not exist in the API when it was
taken. No news is not "no pods": without a first list there is no snapshot at all, and a lost watch leaves the last
one standing with its age.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum

from sharer.core.values import dataclass


class PodPhase(StrEnum):
    """A pod's phase in the API."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    UNKNOWN = "Unknown"  # says nothing; so does every phase that is not known here

    @property
    def is_terminal(self) -> bool:
        """Whether the pod has ended for good. A terminal phase never changes again."""
        return self in (PodPhase.SUCCEEDED, PodPhase.FAILED)


class ContainerKind(StrEnum):
    """When a container runs within its pod."""

    INIT = "init"
    SIDECAR = "sidecar"  # an init container with restartPolicy Always: it runs beside the app containers
    APP = "app"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerSeen:
    """What a container asks for."""

    name: str
    kind: ContainerKind = ContainerKind.APP
    limits: Mapping[str, int] = field(default_factory=dict)  # extended resource -> count; never 0, never cpu or memory
    container_id: str | None = None  # the runtime's, without its scheme, of the last start; None: not told (yet)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSeen:
    """A pod as the API server has it."""

    uid: str  # of the API object: what an eviction or an Event names
    cgroup_uid: str  # in cgroup names and the checkpoint: the same, but the manifest's hash for a static pod
    namespace: str
    name: str
    phase: PodPhase
    is_deleting: bool = False  # has a deletion time; it may run on for its whole grace period and longer
    node_name: str | None = None  # None: bound to no node yet
    containers: tuple[ContainerSeen, ...] = ()  # init containers and sidecars first, in the order of the spec

    def kind_of(self, container: str) -> ContainerKind | None:
        """When a container of this name runs; None: the pod has none."""
        return next((one.kind for one in self.containers if one.name == container), None)

    @property
    def is_static(self) -> bool:
        """Whether this is the mirror of a pod that the kubelet runs from a manifest on the node (runtime-facts 44)."""
        return self.uid != self.cgroup_uid


def pod_title(uid: str | None, namespace: str | None, name: str | None) -> str:
    """A pod for people, as far as it is known: "pod default/train", else "pod" and the UID of its cgroup."""
    return f"pod {uid}" if name is None else f"pod {namespace}/{name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodsSeen:
    """Every pod bound to this node."""

    pods: Mapping[str, PodSeen]  # by `PodSeen.uid`
    synced_at_s: float  # on the monotonic clock: when the API server last confirmed it
    resource_version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSeen:
    """This node's object, as far as people steer sharer by it."""

    uid: str  # owner of the GpuNode; a node made anew under the same name has another
    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)  # only keys of sharer.dev: others can be large


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigMapSeen:
    """A ConfigMap's values."""

    uid: str
    namespace: str
    name: str
    resource_version: str
    data: Mapping[str, str] = field(default_factory=dict)
    binary: Mapping[str, bytes] = field(default_factory=dict)  # what is not UTF-8, which kubectl and a mount keep so


class ApiTroubleKind(StrEnum):
    """Why the API server is not followed just now; the word is that of the metric."""

    FORBIDDEN = "forbidden"  # 403: a rule is missing; tried again slowly, so that a later grant is picked up
    UNAUTHORIZED = "unauthorized"  # 401: the token is not known, or not any more
    THROTTLED = "throttled"  # 429
    REFUSED = "refused"  # another 4xx: asking the same again will not help soon
    SERVER = "server"  # 5xx, an ERROR event, an answer that cannot be read
    UNREACHABLE = "unreachable"  # no connection, a broken one, or no answer in time
    EXPIRED = "expired"  # 410: the version we knew is too old; everything is listed again


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiTrouble:
    """Why the API server is not followed just now."""

    kind: ApiTroubleKind
    message: str  # one sentence: verb, resource, scope, what to do
    since_s: float  # on the monotonic clock


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiSync:
    """How current the view of one kind of object is."""

    synced_at_s: float | None  # the last list, event or bookmark, on the monotonic clock; None: never
    trouble: ApiTrouble | None  # None: it is being followed
