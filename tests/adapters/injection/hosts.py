"""A host's files for tests of injection: /dev, /proc, CDI specs, as real files below a temporary root."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from sharer.adapters.injection import HostPaths, InjectionFacts
from sharer.core.edits import Injection, OptIns
from sharer.core.enforcer import Editor
from sharer.core.inventory import Inventory
from tests.core.builders import gpu, gpu_uuid, node

A, B = gpu_uuid(0), gpu_uuid(1)
CONTROL_NODES = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")


class Host:
    """A node with two GPUs, seen below a root as from inside a pod. /var/run is a link to /run, as on most hosts."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.paths = HostPaths(host_root=root, dev_root=root / "dev", proc_root=root / "proc")
        self.etc_cdi, self.run_cdi = root / "etc/cdi", root / "run/cdi"
        for folder in ("dev", "proc", "etc/cdi", "run/cdi", "var"):
            (root / folder).mkdir(parents=True)
        (root / "var/run").symlink_to("/run")
        for name in (*CONTROL_NODES, "nvidia0", "nvidia1"):
            self.make_node(name)

    def make_node(self, name: str) -> None:
        """A link to a real character device: making one needs more rights than a test has."""
        path = self.root / "dev" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to("/dev/null")

    def remove_node(self, name: str) -> None:
        (self.root / "dev" / name).unlink()

    def facts(
        self,
        *injection: Injection,
        enforcers: Sequence[Editor] = (),
        cdi_dirs: Sequence[Path] | None = None,
        cdi_kind: str = "nvidia.com/gpu",
        opt_ins: OptIns | None = None,
    ) -> InjectionFacts:
        """A reader of this host; without ways it chooses for itself."""
        return InjectionFacts(
            self.paths,
            injection or None,
            enforcers=enforcers,
            cdi_dirs=cdi_dirs,
            cdi_kind=cdi_kind,
            opt_ins=opt_ins,
        )

    def write_driver_spec(self, *uuids: str, directory: Path | None = None, name: str = "nvidia.yaml") -> Path:
        """The spec that NVIDIA's toolkit would write for these devices."""
        devices = "".join(
            f"- name: {uuid}\n  containerEdits:\n    deviceNodes:\n    - path: /dev/nvidia{number}\n"
            for number, uuid in enumerate(uuids)
        )
        path = (directory or self.etc_cdi) / name
        path.write_text(
            f"---\ncdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n{devices}"
            "containerEdits:\n  env:\n  - NVIDIA_VISIBLE_DEVICES=void\n"
            "  deviceNodes:\n  - path: /dev/nvidiactl\n  - path: /dev/nvidia-uvm\n"
        )
        return path


def two_gpus() -> Inventory:
    return node(gpu(0), gpu(1))


def spec_text(
    *names: str, kind: str = "nvidia.com/gpu", version: str = "0.5.0", edits: object = None, **more: object
) -> str:
    """A small spec in JSON."""
    given = {"env": ["X=1"]} if edits is None else edits
    devices = [{"name": name, "containerEdits": given} for name in names]
    return json.dumps({"cdiVersion": version, "kind": kind, "devices": devices, **more})
