"""Everything that the flows talk to, made for this node: the one place that knows which adapter serves which port."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sharer.adapters.cgroups import Cgroups, CgroupTree
from sharer.adapters.checkpoint import FILE_NAME as CHECKPOINT_NAME
from sharer.adapters.checkpoint import Checkpoint
from sharer.adapters.injection import HostPaths, InjectionFacts
from sharer.adapters.kube.access import choose_access, own_namespace
from sharer.adapters.kubelet import GrpcKubeletLink, KubeletCounters
from sharer.adapters.nvml import InstalledLibrary, LibrarySource, NvmlDriver
from sharer.adapters.podresources import PodResources
from sharer.adapters.policy_memory import LastGoodPolicy
from sharer.adapters.policy_source import ConfigMapPolicies, MountedPolicies, NoPolicy
from sharer.adapters.processes import ProcFs
from sharer.adapters.watch import DirectoryWatch
from sharer.core.change.choice import NodeLabels, labels_of
from sharer.core.enforcer import ContainerCgroups, Enforcer, Reach
from sharer.core.errors import NodeError
from sharer.core.mps.state import MpsPlaces, MpsState, MpsStates
from sharer.core.ports.driver import GpuDriver, HealthSource, Interruptible, Pausable, TopologySource
from sharer.core.ports.injection import FactsReader, SliceSpecs
from sharer.core.ports.kubelet import KubeletLink
from sharer.core.ports.policy import PolicyMemory, PolicySource
from sharer.core.values import dataclass
from sharer.enforcers import ENFORCERS, make_enforcers
from sharer.flows.holders.observe import Sources
from sharer.settings import Settings

if TYPE_CHECKING:
    from sharer.adapters.kube.follow import FollowedApi

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """Everything that the flows talk to."""

    node_name: str
    pause_label: Collection[str]  # keys of the node's labels by which others pause us
    policy_source: PolicySource
    policy_memory: PolicyMemory
    driver: GpuDriver
    health: HealthSource
    topology: TopologySource
    slow: Interruptible  # the driver, as what may hang
    pausable: Pausable  # the driver, as what can be let go of
    facts: FactsReader
    specs: SliceSpecs
    kubelet: KubeletLink
    kubelet_counters: Callable[[], KubeletCounters]
    sources: Sources
    enforcers: Sequence[Enforcer]
    containers: ContainerCgroups
    open_mps: Callable[[], tuple[MpsStates, MpsPlaces]]  # what the host has of MPS control daemons
    api: FollowedApi | None  # None: the API server is not asked
    namespace: str | None  # of this agent; None: not known, so that it has no Lease

    def labels(self) -> NodeLabels:
        """What this node's labels say, as far as they are known."""
        if self.api is None:
            return labels_of(None, None, self.node_name)
        return labels_of(self.api.node, self.api.sync_of("node"), self.node_name, self.pause_label)

    def all_labels(self) -> Mapping[str, str] | None:
        """Every label of this node; None: not known."""
        node = None if self.api is None else self.api.node
        return None if node is None else node.labels

    def annotations(self) -> Mapping[str, str]:
        """This node's annotations of ours; none as long as they are not known."""
        node = None if self.api is None else self.api.node
        return {} if node is None else node.annotations


@contextlib.contextmanager
def open_outside(settings: Settings, library: LibrarySource | None) -> Iterator[Outside]:
    """The adapters of this node; closed in the reverse order."""
    with contextlib.ExitStack() as closing:
        watch = closing.enter_context(contextlib.closing(DirectoryWatch()))
        roots = tuple(dict.fromkeys((settings.host_root, Path("/"))))  # the toolkit may have put it beside us
        driver = NvmlDriver(library or InstalledLibrary(settings.driver_library, roots), settings.sys_root)
        closing.callback(close_driver, driver)
        kubelet = GrpcKubeletLink(settings.device_plugin_dir, watch)
        closing.callback(kubelet.stop)
        facts = InjectionFacts(
            HostPaths(host_root=settings.host_root, dev_root=settings.dev_root, proc_root=settings.proc_root),
            settings.injection,
            enforcers=ENFORCERS,
            cdi_dirs=settings.cdi_dir,
            cdi_kind=settings.cdi_kind,
            opt_ins=settings.opt_ins,
        )
        api = open_api(settings, closing)
        mps = MpsFiles(settings.mps_dir)
        containers = CgroupTree(settings.cgroup_root, settings.proc_root, watch)
        yield Outside(
            node_name=settings.node_name,
            pause_label=settings.pause_label,
            policy_source=policy_source(settings, api),
            policy_memory=LastGoodPolicy(settings.run_dir),
            driver=driver,
            health=driver,
            topology=driver,
            slow=driver,
            pausable=driver,
            facts=facts,
            specs=facts,
            kubelet=kubelet,
            kubelet_counters=kubelet.counters,
            sources=open_sources(settings, watch, driver, api),
            enforcers=make_enforcers(Reach(limits=driver, cgroups=containers, mps=mps.states)),
            open_mps=mps.open,
            containers=containers,
            api=api,
            namespace=settings.namespace or own_namespace(choose_access(settings.kubernetes, os.environ)),
        )


class MpsFiles:
    """What the host has of MPS control daemons. Its code is imported when a policy first asks for MPS; few do."""

    def __init__(self, mps_dir: Path) -> None:
        self._dir = mps_dir
        self._opened: tuple[MpsStates, MpsPlaces] | None = None

    def open(self) -> tuple[MpsStates, MpsPlaces]:
        """The daemons' states and directories."""
        if self._opened is None:
            from sharer.adapters.mps import MpsDirectories, MpsStateFiles

            self._opened = MpsStateFiles(self._dir), MpsDirectories(self._dir)
        return self._opened

    def states(self) -> Mapping[str, MpsState]:
        """The last state of each daemon; none as long as nothing was opened. For any thread."""
        return {} if self._opened is None else self._opened[0].read()


def checkpoint_path(settings: Settings) -> Path:
    """Where the kubelet keeps who was given what."""
    return settings.checkpoint or settings.device_plugin_dir / CHECKPOINT_NAME


def open_sources(
    settings: Settings,
    watch: DirectoryWatch,
    driver: NvmlDriver,
    api: FollowedApi | None,
) -> Sources:
    """Who is asked who holds what."""
    return Sources(
        checkpoint=Checkpoint(checkpoint_path(settings), watch),
        cgroups=Cgroups(settings.cgroup_root, watch),
        processes=driver,
        table=ProcFs(settings.proc_root),
        listed=PodResources(settings.pod_resources_socket),
        pods=api,
    )


def open_api(settings: Settings, closing: contextlib.ExitStack) -> FollowedApi | None:
    """The API server, not connected yet: its client is imported after the kubelet has registered us (DESIGN §10)."""
    access = choose_access(settings.kubernetes, os.environ)
    if access is None:
        return None
    from sharer.adapters.kube.follow import FollowedApi

    return closing.enter_context(contextlib.closing(FollowedApi(access, settings.node_name, settings.policy_configmap)))


def close_driver(driver: NvmlDriver) -> None:
    """Let go of NVML; one that hangs must not keep us."""
    try:
        driver.close()
    except NodeError as error:
        log.warning("NVML is not closed: %s", error)


def policy_source(settings: Settings, api: FollowedApi | None) -> PolicySource:
    """Where this node's policy comes from."""
    mounted = None if settings.policy is None else MountedPolicies(settings.policy)
    if settings.policy_configmap is None:
        return mounted or NoPolicy()
    return ConfigMapPolicies(
        *settings.policy_configmap,
        seen=lambda: None if api is None else api.policies,
        sync=lambda: None if api is None else api.sync_of("policies"),
        mounted=mounted,
    )
