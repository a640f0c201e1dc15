"""Pods as the API server and the container runtime know them: they outlive any one kubelet process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from sharer.kubeletapi import deviceplugin_pb2 as pb
from sharer.simulation.kubelet.records import (
    ContainerKind,
    ContainerSpec,
    ContainerState,
    ContainerStatus,
    Given,
    Phase,
    PodStatus,
)

_Value = TypeVar("_Value")


@dataclass(slots=True, kw_only=True)
class Container:
    """One container, changed only under the kubelet's lock."""

    spec: ContainerSpec
    kind: ContainerKind
    state: ContainerState = ContainerState.WAITING
    reason: str = ""
    message: str = ""
    starts: int = 0
    given: Given | None = None
    ids: dict[str, tuple[str, ...]] = field(default_factory=dict)  # the latest allocation; stays after a release
    responses: dict[str, pb.ContainerAllocateResponse] = field(default_factory=dict)

    def status(self) -> ContainerStatus:
        """What it is like now."""
        return ContainerStatus(
            name=self.spec.name,
            kind=self.kind,
            state=self.state,
            reason=self.reason,
            message=self.message,
            starts=self.starts,
            ids=dict(self.ids),
            responses=dict(self.responses),
            given=self.given,
        )


@dataclass(slots=True, kw_only=True, eq=False)
class Pod:
    """One pod, changed only under the kubelet's lock."""

    name: str
    namespace: str
    uid: str
    containers: list[Container]
    phase: Phase = Phase.PENDING
    reason: str = ""
    message: str = ""
    in_api: bool = True  # False: deleted; the kubelet has forgotten it
    ended_as: Phase | None = None  # its containers exited while the kubelet was down
    deleting: bool = False  # deleted while the kubelet was down

    def status(self) -> PodStatus:
        """What it is like now."""
        return PodStatus(
            name=self.name,
            namespace=self.namespace,
            uid=self.uid,
            phase=self.phase,
            reason=self.reason,
            message=self.message,
            containers=tuple(container.status() for container in self.containers),
        )

    def container(self, name: str) -> Container:
        """One container. Raises KeyError if there is none of that name."""
        for container in self.containers:
            if container.spec.name == name:
                return container
        raise KeyError(f"pod {self.name} has no container {name!r}")

    def requests(self) -> dict[str, int]:
        """What scheduler and fit check count: app and sidecar containers, or the largest init container if more."""
        beside: dict[str, int] = {}  # sidecars started so far
        most: dict[str, int] = {}
        total: dict[str, int] = {}
        for container in self.containers:
            for resource, count in container.spec.limits.items():
                if container.kind is ContainerKind.INIT:
                    most[resource] = max(most.get(resource, 0), count + beside.get(resource, 0))
                else:
                    total[resource] = total.get(resource, 0) + count
                    if container.kind is ContainerKind.SIDECAR:
                        beside[resource] = beside.get(resource, 0) + count
        return {resource: max(total.get(resource, 0), most.get(resource, 0)) for resource in total.keys() | most.keys()}

    def stop(self, phase: Phase, reason: str = "", message: str = "") -> None:
        """End it for good: no container runs any more."""
        self.phase, self.reason, self.message = phase, reason, message
        for container in self.containers:
            container.state = ContainerState.TERMINATED


def make_containers(apps: Sequence[ContainerSpec], inits: Sequence[ContainerSpec]) -> list[Container]:
    """The containers of a pod in the order the kubelet goes through them."""
    containers = [
        Container(spec=spec, kind=ContainerKind.SIDECAR if spec.sidecar else ContainerKind.INIT) for spec in inits
    ] + [Container(spec=spec, kind=ContainerKind.APP) for spec in apps]
    names = [container.spec.name for container in containers]
    if len(set(names)) != len(names) or not apps or any(spec.sidecar for spec in apps):
        raise ValueError(f"containers {names}: names must differ, one must be an app, sidecars are init containers")
    return containers


def merge(responses: Sequence[pb.ContainerAllocateResponse]) -> Given:
    """The stored answers of a container's resources as one: the first with a name wins (§8), in the order given."""
    env: dict[str, str] = {}
    mounts: dict[str, pb.Mount] = {}
    devices: dict[str, pb.DeviceSpec] = {}
    annotations: dict[str, str] = {}
    cdi: dict[str, None] = {}
    conflicts: list[str] = []
    for response in responses:
        conflicts += _add_new("env", env, response.envs)
        conflicts += _add_new("mount", mounts, {mount.container_path: mount for mount in response.mounts})
        conflicts += _add_new("device", devices, {device.container_path: device for device in response.devices})
        conflicts += _add_new("annotation", annotations, response.annotations)
        cdi.update(dict.fromkeys(device.name for device in response.cdi_devices))
    return Given(
        env=env,
        mounts=tuple(mounts.values()),
        devices=tuple(devices.values()),
        annotations=annotations,
        cdi_names=tuple(cdi),
        conflicts=tuple(conflicts),
    )


def _add_new(kind: str, mine: dict[str, _Value], offered: Mapping[str, _Value]) -> list[str]:
    """Add what is new; return what was there with another value."""
    return [f"{kind} {name}" for name, value in offered.items() if mine.setdefault(name, value) != value]
