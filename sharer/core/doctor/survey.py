"""What was seen on a node, for `sharer doctor`: plain facts, gathered by the command line, judged in `node_checks`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from sharer.core.inventory import Inventory
from sharer.core.report.node import NodeReport
from sharer.core.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolkit:
    """NVIDIA's container toolkit, as its configuration says."""

    path: str
    mode: str = "auto"
    unprivileged_envvar: bool = True  # a container without privileges may ask by NVIDIA_VISIBLE_DEVICES; the default
    volume_mounts: bool = False  # it takes mounted paths for a list of GPUs, as the injection `volume-mounts` needs


@dataclass(frozen=True, slots=True, kw_only=True)
class Right:
    """One thing that the agent asks of the API server."""

    verb: str
    resource: str  # "gpunodes/status"
    group: str = ""
    namespace: str | None = None  # None: cluster-wide
    name: str | None = None  # of the only object; None: any
    purpose: str = ""  # in a few words
    optional: bool = False  # only some policies need it
    allowed: bool | None = None  # None: it could not be asked


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSurvey:
    """What was seen on a node. None: it could not be looked at; where there is a `_problem`, that says why."""

    inventory: Inventory | None = None
    driver_problem: str | None = None
    module_version: str | None = None  # of the kernel module that is loaded; None: none is
    toolkit: Toolkit | None = None  # None: no configuration was found
    toolkit_problem: str | None = None  # why one that was found cannot be read
    sees_host_etc: bool = True  # where it would be
    cdi_problems: Mapping[str, str | None] = field(default_factory=dict)  # by UUID; None: its name resolves
    cdi_dirs: tuple[str, ...] = ()
    unlinked_nodes: tuple[str, ...] | None = None  # device nodes that systemd, which keeps the cgroups, cannot find
    cgroup: str | None = None  # "v2", "v1", "hybrid"
    kernel: str | None = None
    controllers: frozenset[str] | None = None  # of the root cgroup
    pod_controllers: frozenset[str] | None = None  # that pods' cgroups can use
    kubelet_problem: str | None = None  # why its socket does not answer; None: somebody listens
    plugin_dir_problem: str | None = None  # why we cannot make a socket there
    list_problem: str | None = None
    checkpoint_problem: str | None = None
    registered: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # resource -> IDs, as the kubelet remembers
    kubelet_version: str | None = None
    rival_sockets: tuple[str, ...] = ()  # of NVIDIA's plugin, where the kubelet listens for plugins
    dra_drivers: tuple[str, ...] = ()  # of NVIDIA, below the kubelet's plugins
    mps_processes: tuple[int, ...] | None = None  # of MPS on the host, by PID
    rights: tuple[Right, ...] | None = None  # none at all: the API server is not used
    rights_problem: str | None = None
    report: NodeReport | None = None
    report_problem: str | None = None
