"""Gathers what `sharer doctor --node` judges, with the paths that the node's agent uses. Changes nothing.

Every look is by itself: what fails is a fact like any other, and keeps nothing else from being seen.
"""

from __future__ import annotations

import contextlib
import os
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from sharer.adapters.cgroups import cgroup_version
from sharer.adapters.checkpoint import Checkpoint
from sharer.adapters.injection import HostPaths, InjectionFacts
from sharer.adapters.injection.facts import DEFAULT_CDI_DIRS
from sharer.adapters.kubelet.sockets import KUBELET_SOCKET, listening
from sharer.adapters.nvml import InstalledLibrary, NvmlDriver
from sharer.adapters.podresources import PodResources
from sharer.adapters.processes import ProcFs
from sharer.adapters.watch import DirectoryWatch
from sharer.cli.report.command import read_report
from sharer.core.doctor.survey import NodeSurvey, Right, Toolkit
from sharer.core.edits import Injection
from sharer.core.errors import NodeError, SharerError
from sharer.core.inventory import Inventory
from sharer.core.values import replace
from sharer.outside import checkpoint_path
from sharer.settings import Settings

if TYPE_CHECKING:
    from sharer.adapters.kube.client import KubeClient

TOOLKIT_CONFIGS = (
    "/usr/local/nvidia/toolkit/.config/nvidia-container-runtime/config.toml",  # the GPU Operator's
    "/etc/nvidia-container-runtime/config.toml",
)
NVIDIA_PLUGIN_SOCKETS = ("nvidia-gpu.sock", "nvidia.sock", "nvidiaGPU.sock", "nvidia-mig")
DRA_PLUGINS = ("gpu.nvidia.com", "compute-domain.nvidia.com")
MPS_COMMAND = "nvidia-cuda-mps"  # of control daemons and servers, in the 15 characters that the kernel keeps


def as_seen_here(settings: Settings) -> Settings:
    """The same with the host's places where this process sees them, if it is shown the host's whole tree.

    So that `--host-root` is enough in a `kubectl debug node/…`. What the agent was told otherwise stays.
    """
    usual = Settings(node_name="", policy=None)

    def here(place: Path, usual_place: Path) -> Path:
        below = settings.host_root / usual_place.relative_to("/")
        return below if place == usual_place and below.exists() else place

    return replace(
        settings,
        device_plugin_dir=here(settings.device_plugin_dir, usual.device_plugin_dir),
        pod_resources_socket=here(settings.pod_resources_socket, usual.pod_resources_socket),
        run_dir=here(settings.run_dir, usual.run_dir),
        dev_root=here(settings.dev_root, usual.dev_root),
        cgroup_root=here(settings.cgroup_root, usual.cgroup_root),
    )


def survey_node(settings: Settings, client: KubeClient | None) -> NodeSurvey:
    """Everything that can be seen from here. `client` None: the API server is not asked."""
    paths = HostPaths(host_root=settings.host_root, dev_root=settings.dev_root, proc_root=settings.proc_root)
    inventory, driver_problem = _inventory(settings)
    toolkit, toolkit_problem = _toolkit(paths)
    cdi_dirs = settings.cdi_dir or tuple(paths.below(directory) for directory in DEFAULT_CDI_DIRS)
    registered, checkpoint_problem = _checkpoint(settings)
    report, report_problem = None, None
    try:
        report = read_report(settings.run_dir)
    except NodeError as error:
        report_problem = str(error)
    rights, version, rights_problem = _api(settings, client)
    return NodeSurvey(
        inventory=inventory,
        driver_problem=driver_problem,
        module_version=_module_version(settings.proc_root),
        toolkit=toolkit,
        toolkit_problem=toolkit_problem,
        sees_host_etc=paths.below("/etc/os-release").exists(),  # every host has one; an agent's pod is shown less
        cdi_problems=_cdi_problems(paths, settings.cdi_kind, cdi_dirs, inventory),
        cdi_dirs=tuple(map(str, cdi_dirs)),
        unlinked_nodes=_unlinked_nodes(settings.cgroup_root, settings.dev_root),
        cgroup=cgroup_version(settings.cgroup_root),
        kernel=os.uname().release,
        controllers=_words(settings.cgroup_root / "cgroup.controllers"),
        pod_controllers=_pod_controllers(settings.cgroup_root),
        kubelet_problem=_kubelet_problem(settings.device_plugin_dir),
        plugin_dir_problem=_unwritable(settings.device_plugin_dir),
        list_problem=_list_problem(settings.pod_resources_socket),
        checkpoint_problem=checkpoint_problem,
        registered=registered,
        kubelet_version=version,
        rival_sockets=tuple(_rival_sockets(settings.device_plugin_dir)),
        dra_drivers=tuple(_dra_drivers(settings.device_plugin_dir.parent / "plugins")),
        mps_processes=_mps_processes(settings.proc_root),
        rights=rights,
        rights_problem=rights_problem,
        report=report,
        report_problem=report_problem,
    )


def rights_of(settings: Settings) -> Iterator[Right]:
    """Everything that an agent with these settings asks of the API server."""
    for verb in ("list", "watch"):
        yield Right(verb=verb, resource="pods", purpose="which pods have ended")
    for verb in ("list", "watch"):
        yield Right(verb=verb, resource="nodes", purpose="labels of this node")
    if settings.policy_configmap is not None:
        namespace, name = settings.policy_configmap
        for verb in ("list", "watch"):
            yield Right(verb=verb, resource="configmaps", namespace=namespace, name=name, purpose="policies")
    for verb in ("create", "patch"):
        yield Right(verb=verb, resource="events", purpose="Events")
    yield Right(
        verb="create", resource="pods/eviction", purpose="evictions, where a policy says onExceed: evict", optional=True
    )
    if settings.publish:
        yield Right(verb="get", resource="nodes", name=settings.node_name, purpose="owner of the GpuNode")
        for verb in ("get", "create", "patch"):
            yield Right(verb=verb, resource="gpunodes", group="sharer.dev", purpose="GpuNode")
        yield Right(verb="patch", resource="gpunodes/status", group="sharer.dev", purpose="GpuNode")
        if settings.namespace is not None:
            for verb in ("create", "patch"):
                yield Right(
                    verb=verb, resource="leases", group="coordination.k8s.io", namespace=settings.namespace,
                    purpose="Lease",
                )  # fmt: skip
    if settings.node_labels:
        yield Right(verb="patch", resource="nodes", name=settings.node_name, purpose="the Node's labels")


def _inventory(settings: Settings) -> tuple[Inventory | None, str | None]:
    roots = tuple(dict.fromkeys((settings.host_root, Path("/"))))
    driver = NvmlDriver(InstalledLibrary(settings.driver_library, roots), settings.sys_root)
    try:
        return driver.discover(), None
    except NodeError as error:
        return None, str(error)
    finally:
        with contextlib.suppress(NodeError):
            driver.close()


def _module_version(proc_root: Path) -> str | None:
    """Of the loaded kernel module: the first word of its line that is a version."""
    words = (_text(proc_root / "driver/nvidia/version") or "").partition("\n")[0].split()
    return next((word for word in words if word[0].isdigit() and "." in word), None)


def _toolkit(paths: HostPaths) -> tuple[Toolkit | None, str | None]:
    for place in TOOLKIT_CONFIGS:
        file = paths.below(place)
        text = _text(file)
        if text is None:
            continue
        try:
            found = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            return None, f"{place} cannot be read: {error}"
        runtime = found.get("nvidia-container-runtime")
        mode = runtime.get("mode") if isinstance(runtime, dict) else None
        return Toolkit(
            path=place,
            mode=mode if isinstance(mode, str) else "auto",
            unprivileged_envvar=found.get("accept-nvidia-visible-devices-envvar-when-unprivileged") is not False,
            volume_mounts=found.get("accept-nvidia-visible-devices-as-volume-mounts") is True,
        ), None
    return None, None


def _cdi_problems(
    paths: HostPaths, kind: str, directories: tuple[Path, ...], inventory: Inventory | None
) -> Mapping[str, str | None]:
    """As the agent judges them."""
    if inventory is None:
        return {}
    facts = InjectionFacts(paths, (Injection.CDI,), cdi_dirs=directories, cdi_kind=kind).read(inventory)
    present = [gpu for gpu in inventory.gpus if gpu.lost is None]
    uuids = [one.uuid for gpu in present for one in (gpu.mig_devices or (gpu,))]
    return {uuid: facts.devices[uuid].unusable for uuid in uuids}


def _unlinked_nodes(cgroup_root: Path, dev_root: Path) -> tuple[str, ...] | None:
    """NVIDIA's device nodes without the link by which systemd finds them. None: who keeps the cgroups is not seen."""
    version = cgroup_version(cgroup_root)
    if version is None:
        return None
    by_systemd = cgroup_root if version == "v2" else cgroup_root / "systemd"
    if not any((by_systemd / name).is_dir() for name in ("kubepods.slice", "kubelet.slice")):
        return ()
    nodes = [path for path in sorted(dev_root.glob("nvidia*")) if path.is_char_device()]
    return tuple(path.name for path in nodes if not os.path.lexists(dev_root / "char" / _number(path)))


def _number(node: Path) -> str:
    number = node.stat().st_rdev
    return f"{os.major(number)}:{os.minor(number)}"


def _pod_controllers(root: Path) -> frozenset[str] | None:
    """What the cgroup that holds all pods hands on to them."""
    for name in ("kubepods.slice", "kubepods", "kubelet.slice/kubelet-kubepods.slice"):
        found = _words(root / name / "cgroup.subtree_control")
        if found is not None:
            return found
    return None


def _kubelet_problem(directory: Path) -> str | None:
    socket = directory / KUBELET_SOCKET
    if not directory.is_dir():
        return f"there is no {directory}"
    return None if listening(socket) else f"nobody listens on {socket}"


def _unwritable(directory: Path) -> str | None:
    if not directory.is_dir() or os.access(directory, os.W_OK):
        return None
    return f"{directory} cannot be written to"


def _list_problem(socket: Path) -> str | None:
    try:
        PodResources(socket).read()
    except NodeError as error:
        return str(error)
    return None


def _checkpoint(settings: Settings) -> tuple[Mapping[str, tuple[str, ...]], str | None]:
    folder = checkpoint_path(settings).parent
    if not folder.is_dir():  # the file itself may be missing: no device was ever given here
        return {}, f"there is no {folder}"
    with contextlib.closing(DirectoryWatch()) as watch:
        try:
            reading = Checkpoint(checkpoint_path(settings), watch).read()
        except NodeError as error:
            return {}, str(error)
    return ({} if reading is None else reading.registered), None


def _rival_sockets(directory: Path) -> Iterator[str]:
    with contextlib.suppress(OSError):
        for name in sorted(os.listdir(directory)):
            if name.startswith(NVIDIA_PLUGIN_SOCKETS):
                yield name


def _dra_drivers(plugins: Path) -> Iterator[str]:
    return (name for name in DRA_PLUGINS if (plugins / name).is_dir())


def _mps_processes(proc_root: Path) -> tuple[int, ...] | None:
    table = ProcFs(proc_root)
    if not table.sees_the_host():
        return None
    found = (int(name) for name in os.listdir(proc_root) if name.isdigit() and _is_mps(proc_root / name))
    return tuple(sorted(found))


def _is_mps(process: Path) -> bool:
    return _text(process / "comm") == f"{MPS_COMMAND}\n"


def _api(settings: Settings, client: KubeClient | None) -> tuple[tuple[Right, ...] | None, str | None, str | None]:
    """Rights, the kubelet's version, and why there are no rights."""
    if client is None and settings.kubernetes == "off":
        return (), None, None
    if client is None:
        return None, None, "no API server is named: this is no pod, and --kubernetes names no kubeconfig"
    from sharer.adapters.kube.survey import ask_rights, kubelet_version

    try:
        return ask_rights(client, rights_of(settings)), kubelet_version(client, settings.node_name), None
    except SharerError as error:
        return None, None, str(error)


def _words(file: Path) -> frozenset[str] | None:
    text = _text(file)
    return None if text is None else frozenset(text.split())


def _text(file: Path) -> str | None:
    """A small file's text; None: it is not there, or cannot be read."""
    try:
        return file.read_text(errors="replace")
    except OSError:
        return None
