"""The device nodes of this host: which ones a container needs for a GPU or a MIG device, and which are missing."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from sharer.adapters.injection.paths import HostPaths
from sharer.core.edits import DeviceFacts, DeviceNode, OptIns
from sharer.core.inventory import MigDevice, PhysicalGpu

_REQUIRED = ("nvidiactl", "nvidia-uvm")  # CUDA opens both in every process
_OPTIONAL = ("nvidia-uvm-tools", "nvidia-modeset")
_MODPROBE = "nvidia-modprobe -u -c=0 makes it"


class DeviceNodes:
    """Looks at /dev and /proc/driver/nvidia each time it is asked."""

    def __init__(self, paths: HostPaths, opt_ins: OptIns) -> None:
        self._paths = paths
        self._opt_ins = opt_ins

    def shared(self) -> tuple[tuple[DeviceNode, ...], str | None]:
        """The nodes that every container with a GPU needs, and why they are not enough (None: they are)."""
        names = [name for name in _OPTIONAL if self.problem(name) is None]
        problems = [problem for name in _REQUIRED if (problem := self.problem(name, _MODPROBE))]
        names += [name for name in _REQUIRED if self.problem(name) is None]
        for flag, pattern, cure in _opted_in(self._opt_ins):
            found = list(self._matching(pattern))
            names += found
            if not found:
                where = self._paths.dev_root / pattern
                problems.append(f"{flag} asks for {where}, and there is no such device node; {cure}, or drop the flag")
        return tuple(self._node(name) for name in sorted(names)), "; ".join(problems) or None

    def of_gpu(self, gpu: PhysicalGpu) -> DeviceFacts:
        """The nodes of a physical GPU."""
        if gpu.minor_number is None:
            return DeviceFacts(unusable="the driver does not report its minor number, so its device node is unknown")
        name = f"nvidia{gpu.minor_number}"
        return DeviceFacts(nodes=(self._node(name),), unusable=self.problem(name, _MODPROBE))

    def of_mig(self, gpu: PhysicalGpu, mig: MigDevice) -> DeviceFacts:
        """The nodes of a MIG device: its GPU's, and the two that give access to its instances."""
        whole = self.of_gpu(gpu)
        if whole.unusable is not None:
            return whole
        if mig.gpu_instance_id is None or mig.compute_instance_id is None:
            return DeviceFacts(
                unusable="the driver does not report its instance numbers, so its device nodes are unknown"
            )
        nodes = list(whole.nodes)
        for path, minor in self._accesses(gpu, mig):
            if minor is None:
                return DeviceFacts(unusable=f"{path} does not name a device file; is the kernel module nvidia loaded?")
            name = _cap(minor)
            if (problem := self.problem(name, f"nvidia-modprobe -f {path} makes it")) is not None:
                return DeviceFacts(unusable=problem)
            nodes.append(self._node(name))
        return DeviceFacts(nodes=tuple(nodes))

    def beside(self, gpu: PhysicalGpu, mig: MigDevice | None) -> list[str]:
        """The paths of the nodes besides the GPU's own that CUDA opens for a device, as far as they are there."""
        accesses = () if mig is None else self._accesses(gpu, mig)
        names = [*_REQUIRED, *(_cap(minor) for _, minor in accesses if minor is not None)]
        return [f"/dev/{name}" for name in names if self.problem(name) is None]

    def number(self, path: str) -> tuple[int, int] | None:
        """The major and minor number of a host's device node below /dev; None: it is not there, or not in our sight."""
        if not path.startswith("/dev/"):
            return None
        try:
            found = os.stat(self._paths.dev_root / path.removeprefix("/dev/"))
        except OSError:
            return None
        return (os.major(found.st_rdev), os.minor(found.st_rdev)) if stat.S_ISCHR(found.st_mode) else None

    def problem(self, name: str, cure: str = "") -> str | None:
        """Why this node, named below /dev, cannot be given: the runtime would retry a missing one for ever."""
        path = self._paths.dev_root / name
        try:
            mode = os.stat(path).st_mode
        except OSError as error:
            return f"device node {path}: {os.strerror(error.errno or 0)}" + (f"; {cure}" if cure else "")
        return None if stat.S_ISCHR(mode) else f"{path} is not a character device"

    def _accesses(self, gpu: PhysicalGpu, mig: MigDevice) -> Iterator[tuple[Path, int | None]]:
        """The files that tell the minor numbers of a MIG device's two nodes, and what they tell; None: they do not."""
        instance = f"gpu{gpu.minor_number}/mig/gi{mig.gpu_instance_id}"
        for access in (f"{instance}/access", f"{instance}/ci{mig.compute_instance_id}/access"):
            path = self._paths.proc_root / "driver/nvidia/capabilities" / access
            yield path, _device_file_minor(path)

    def _node(self, name: str) -> DeviceNode:
        return DeviceNode(container_path=f"/dev/{name}", host_path=self._paths.on_host(self._paths.dev_root / name))

    def _matching(self, pattern: str) -> Iterator[str]:
        folder, _, last = pattern.rpartition("/")
        try:
            entries = sorted(os.listdir(self._paths.dev_root / folder))
        except OSError:
            return
        for entry in entries:
            name = f"{folder}/{entry}" if folder else entry
            if fnmatchcase(entry, last) and self.problem(name) is None:
                yield name


def _opted_in(opt_ins: OptIns) -> Iterator[tuple[str, str, str]]:
    """For each thing asked for: the flag, the nodes that NVIDIA's toolkit hands over for it, and what makes them."""
    for channel in opt_ins.imex_channels:
        yield "--imex-channels", f"nvidia-caps-imex-channels/channel{channel}", "nvidia-modprobe -i makes channels"
    if opt_ins.gds:
        yield "--gds", "nvidia-fs*", "load the kernel module nvidia_fs"
    if opt_ins.mofed:
        yield "--mofed", "infiniband/uverbs*", "install the InfiniBand driver"
        yield "--mofed", "infiniband/rdma_cm", "load the kernel module rdma_ucm"
    if opt_ins.gdrcopy:
        yield "--gdrcopy", "gdrdrv", "load the kernel module gdrdrv"


def _cap(minor: int) -> str:
    return f"nvidia-caps/nvidia-cap{minor}"


def _device_file_minor(access: Path) -> int | None:
    try:
        found = re.search(r"^DeviceFileMinor:\s*([0-9]+)\s*$", access.read_text(errors="replace"), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) if found else None
