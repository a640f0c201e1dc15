"""What a container is given, and the facts of a node that decide it; `core/injection` makes the one of the other."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum

from sharer.core.values import dataclass


class Injection(StrEnum):
    """A way in which a GPU gets into a container."""

    CDI = "cdi"  # the container runtime resolves names in CDI specs
    VOLUME_MOUNTS = "volume-mounts"  # NVIDIA's runtime reads which paths are mounted
    DEVICE_NODES = "device-nodes"  # the container runtime makes the nodes; libraries must come from elsewhere
    ENVVAR = "envvar"  # NVIDIA's runtime reads NVIDIA_VISIBLE_DEVICES, which a pod may override


@dataclass(frozen=True, slots=True, order=True)
class Mount:
    """A host path seen inside the container. It must exist: a missing one is silently made, as an empty directory."""

    container_path: str
    host_path: str
    read_only: bool = True


@dataclass(frozen=True, slots=True, order=True)
class DeviceNode:
    """A device node of the host made inside the container."""

    container_path: str
    host_path: str
    permissions: str = "rw"  # letters of `rwm`; an empty string would fail every start (runtime-facts §2.23)


@dataclass(frozen=True, slots=True, kw_only=True)
class OptIns:
    """What every container with a GPU is given besides, since the operator asked for it. The words are NVIDIA's."""

    imex_channels: tuple[int, ...] = ()  # memory of other nodes over NVLink
    gds: bool = False  # GPUDirect Storage
    mofed: bool = False  # InfiniBand
    gdrcopy: bool = False  # copies driven by the CPU


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFacts:
    """How one physical GPU or MIG device is handed to a container on this node."""

    nodes: tuple[DeviceNode, ...] = ()  # empty unless `device-nodes` is in use
    cdi_name: str | None = None  # "nvidia.com/gpu=GPU-…"; None: `cdi` is not in use, or the name does not resolve
    slice_spec: bool = False  # the CDI spec of its slices, sharer's own, is in place
    driver_limit: bool = False  # the driver was seen to hold a memory limit on it
    mps_pipe: str | None = None  # host directory, there for good, of the MPS daemon that serves it; None: none does
    mps_namespaces: Mapping[str, str] = field(default_factory=dict)  # device ID -> that of its namespace alone
    mps_shm: str | None = None  # host directory that clients of its MPS daemon need as /dev/shm; None: their own
    unusable: str | None = None  # why no container can be given it ("/dev/nvidia0 does not exist")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """Everything besides the device IDs that an answer depends on. Frozen; replaced as a whole."""

    injection: tuple[Injection, ...]
    devices: Mapping[str, DeviceFacts] = field(default_factory=dict)  # by UUID, in the order a container sees them
    shared_nodes: tuple[DeviceNode, ...] = ()  # /dev/nvidiactl and its like, for every container
    opt_ins: OptIns = OptIns()
    cdi_kind: str = "nvidia.com/gpu"
    injection_reason: str = ""  # why this way of injection, and what about it was not verified
    warnings: tuple[str, ...] = ()

    def digest(self) -> str:
        """16 hexadecimal digits, equal wherever the same IDs get the same answer. Reasons and warnings do not count."""
        decisive = (self.injection, tuple(self.devices.items()), self.shared_nodes, self.opt_ins, self.cdi_kind)
        return hashlib.sha256(repr(decisive).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerEdits:
    """Everything one container is given. Equal grants give equal edits, to the order of each tuple."""

    env: tuple[tuple[str, str], ...] = ()  # by name
    mounts: tuple[Mount, ...] = ()  # sorted
    device_nodes: tuple[DeviceNode, ...] = ()  # sorted
    cdi_names: tuple[str, ...] = ()  # unique; a later one's variables win
