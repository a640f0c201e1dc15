"""What a container is given: environment, mounts, device nodes, CDI names. The answer to Allocate, before it is gRPC."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Mount:
    """A host directory seen inside the container."""

    container_path: str
    host_path: str
    read_only: bool = True


@dataclass(frozen=True, slots=True, order=True)
class DeviceNode:
    """A device node of the host made inside the container. The permissions are letters of `rwm`, never empty."""

    container_path: str
    host_path: str
    permissions: str = "rw"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerEdits:
    """Everything one container is given. Tuples are sorted, so that equal grants give equal answers."""

    env: tuple[tuple[str, str], ...] = ()
    mounts: tuple[Mount, ...] = ()
    device_nodes: tuple[DeviceNode, ...] = ()
    cdi_names: tuple[str, ...] = ()  # "nvidia.com/gpu=GPU-…", unique
