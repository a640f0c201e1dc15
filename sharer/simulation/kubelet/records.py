"""What the simulated kubelet tells whoever drives it: plain values, safe to keep and to compare."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import NamedTuple

from sharer.kubeletapi import deviceplugin_pb2 as pb


class KubeletPanic(Exception):  # noqa: N818 - the word the kubelet's users know
    """The real kubelet would have crashed here with a nil-pointer panic (kubelet-contract §3). It is dead now."""


class KubeletDown(Exception):  # noqa: N818
    """The kubelet died, or was not running, while it was needed for this."""


class TopologyPolicy(StrEnum):
    """The topology manager's policies (container scope)."""

    NONE = "none"
    BEST_EFFORT = "best-effort"
    RESTRICTED = "restricted"
    SINGLE_NUMA_NODE = "single-numa-node"


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeletSettings:
    """How this kubelet differs from a default 1.36. Times are the real ones unless a test shortens them."""

    dial_timeout_s: float = 10.0
    pre_start_timeout_s: float = 30.0
    stop_grace_s: float = 300.0
    podresources_lead_s: float = 0.1  # its socket is back that long before kubelet.sock (runtime-facts 58)
    sources_ready_after_s: float | None = 1.0  # restart to "all pods known"; None: only by `sources_become_ready`
    older: bool = False  # 1.33: `List` keeps finished pods with what they had, `Get` is not served
    topology_policy: TopologyPolicy = TopologyPolicy.NONE
    numa_nodes: tuple[int, ...] = (0,)  # those the machine has
    node_name: str = "node-1"  # suffix of static pods' names
    seed: int = 0  # of every random choice
    clock: Callable[[], float] = time.monotonic  # for the stop grace, the rate limit and every `at_s`


class Capacity(NamedTuple):
    """A resource's numbers on the Node object."""

    capacity: int
    allocatable: int


class SocketState(Enum):
    """What is found at a socket's path."""

    ABSENT = "absent"
    NOT_A_SOCKET = "not a socket"
    DEAD = "socket file that nobody listens on"
    SERVING = "accepts connections"


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterCall:
    """One `Register` call as it arrived, and how it ended."""

    at_s: float
    version: str
    endpoint: str
    resource: str
    options: pb.DevicePluginOptions  # in the request; the kubelet ignores them
    deadline_s: float | None  # time left at arrival; None: no deadline
    socket: SocketState  # at the endpoint's path, at arrival
    live_streams: int  # ListAndWatch streams of the resource open at arrival; anything but 0 is the trap of §2.4
    calls_in_progress: int  # other Register calls of the resource not answered yet
    answered_options: pb.DevicePluginOptions | None = None  # by GetDevicePluginOptions, before Register was answered
    took_s: float | None = None  # None: not answered yet
    error: str | None = None  # the text sent back; None: accepted, or not answered yet


class ListedDevice(NamedTuple):
    """One device of a list, as received."""

    id: str
    health: str
    numa_nodes: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListMessage:
    """One ListAndWatch message."""

    at_s: float
    size_bytes: int
    devices: tuple[ListedDevice, ...]

    @property
    def ids(self) -> tuple[str, ...]:
        """All IDs, in the order received."""
        return tuple(device.id for device in self.devices)

    @property
    def healthy_ids(self) -> frozenset[str]:
        """The IDs whose health is exactly "Healthy"."""
        return frozenset(device.id for device in self.devices if device.health == "Healthy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """One ListAndWatch stream from opening to end."""

    number: int  # counts all streams of this kubelet, over restarts
    resource: str
    endpoint: str  # as registered
    opened_at_s: float
    messages: tuple[ListMessage, ...] = ()
    ended_at_s: float | None = None  # None: live
    end_reason: str | None = None  # gRPC's, or "EOF"

    @property
    def live(self) -> bool:
        """Whether the stream is open."""
        return self.ended_at_s is None


class ContainerKind(Enum):
    """When a container runs within its pod. Not the core's own: what tests the core takes no word from it."""

    INIT = "init"
    SIDECAR = "sidecar"
    APP = "app"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerSpec:
    """A container to run. As an init container with `sidecar`, it keeps running beside the app containers."""

    name: str = "main"
    limits: Mapping[str, int] = field(default_factory=dict)  # resource name → count
    sidecar: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What a container was started with: its resources' stored answers merged, the first of a name winning (§8)."""

    env: Mapping[str, str]
    mounts: tuple[pb.Mount, ...]
    devices: tuple[pb.DeviceSpec, ...]
    annotations: Mapping[str, str]
    cdi_names: tuple[str, ...]
    conflicts: tuple[str, ...] = ()  # names for which two resources gave different values; the kubelet only logs them


class ContainerState(Enum):
    """As in the pod's status."""

    WAITING = "waiting"
    RUNNING = "running"
    TERMINATED = "terminated"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerStatus:
    """A container at one moment."""

    name: str
    kind: ContainerKind
    state: ContainerState
    reason: str = ""  # why it waits: "CreateContainerConfigError"
    message: str = ""
    starts: int = 0
    ids: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # resource → sorted IDs on record
    responses: Mapping[str, pb.ContainerAllocateResponse] = field(default_factory=dict)  # as stored, for ever
    given: Given | None = None  # at its latest start; None: never started


class Phase(StrEnum):
    """A pod's phase."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"

    @property
    def terminal(self) -> bool:
        """Whether the pod has ended for good."""
        return self in (Phase.SUCCEEDED, Phase.FAILED)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodStatus:
    """A pod at one moment."""

    name: str
    namespace: str
    uid: str
    phase: Phase
    reason: str = ""  # of a rejection: "UnexpectedAdmissionError", "TopologyAffinityError", "OutOf<resource>"
    message: str = ""
    containers: tuple[ContainerStatus, ...] = ()  # init containers first, then app containers, as in the spec

    def container(self, name: str = "main") -> ContainerStatus:
        """One container. Raises KeyError if the pod has none of that name."""
        for container in self.containers:
            if container.name == name:
                return container
        raise KeyError(f"pod {self.name} has no container {name!r}")

    def ids(self, resource: str, container: str = "main") -> tuple[str, ...]:
        """The IDs a container holds of a resource, sorted; empty if none."""
        return tuple(self.container(container).ids.get(resource, ()))

    def env(self, container: str = "main") -> Mapping[str, str]:
        """The environment that plugins gave the container at its latest start; empty if it never started."""
        given = self.container(container).given
        return {} if given is None else given.env


@dataclass(frozen=True, slots=True, kw_only=True)
class Remnant:
    """A pod that the kubelet has forgotten while its containers still run (force delete, §9)."""

    name: str
    namespace: str
    uid: str
    containers: tuple[ContainerStatus, ...]  # those that ran; what they hold stays as it was
