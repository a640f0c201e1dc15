"""A fleet on a simulated API server: agents' GpuNodes as they really publish them, and nodes without an agent."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from sharer.core.known import Known
from sharer.core.quantities import GIB
from sharer.core.report.gpu_node import make_gpu_node
from sharer.simulation.apiserver import (
    CONFIG_MAP,
    GPU_NODE,
    LEASE,
    NODE,
    POD,
    ApiServer,
    config_map_object,
    container_object,
    node_object,
    pod_object,
)
from tests.cli.running import Ran, run
from tests.core.builders import gpu, gpu_uuid, node, policy, time_slicing
from tests.core.evidence import SHARED, held, key, process, reading
from tests.core.nodes import ABOUT, known

GOLDEN = Path(__file__).parent / "golden"
_CHANGING = ((r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$", "NOW"), (r"have \w+ ago", "have N ago"))
_PROGRESS = re.compile(r"^reading .* …\n", re.MULTILINE)
NVIDIA = "nvidia.com/gpu"
NEVER = "2999-01-01T00:00:00.000000Z"
LONG_AGO = "2020-01-01T00:00:00.000000Z"


def shared_node(slices: int = 4, held_slices: int = 1, **parts: object) -> Known:
    """A node with two GPUs of 80 GiB, time-sliced, whose first slices are held."""
    promise_mib = 81920 // slices
    entries = held(*(key(replica, promise_mib) for replica in range(held_slices)))
    return known(node(gpu(0), gpu(1)), policy(time_slicing(slices)), entries=entries, **parts)  # type: ignore[arg-type]


class FleetServer:
    """What is in the cluster, and the command line that looks at it."""

    def __init__(self, server: ApiServer, folder: Path) -> None:
        self.server = server
        self.kubeconfig = folder / "kubeconfig"
        self.kubeconfig.write_text(
            f"""
            {{apiVersion: v1, kind: Config, current-context: here,
             contexts: [{{name: here, context: {{cluster: here, user: me}}}},
                        {{name: nowhere, context: {{cluster: nowhere, user: me}}}}],
             clusters: [{{name: here, cluster: {{server: "{server.url}"}}}},
                        {{name: nowhere, cluster: {{server: "http://127.0.0.1:1"}}}}],
             users: [{{name: me, user: {{token: t}}}}]}}
            """
        )

    def add_node(
        self,
        name: str,
        allocatable: Mapping[str, int | str],
        *,
        labels: Mapping[str, str] | None = None,
        ready: bool = True,
        cordoned: bool = False,
        capacity: Mapping[str, str] | None = None,
    ) -> None:
        made = node_object(name, labels=labels, allocatable=allocatable)
        made["spec"] = {"unschedulable": True} if cordoned else {}
        if capacity is not None:
            made["status"]["capacity"] = dict(capacity)
        if not ready:
            silent = {"reason": "NodeStatusUnknown", "message": "Kubelet stopped posting node status."}
            made["status"]["conditions"] = [{"type": "Ready", "status": "Unknown", **silent}]
        self.server.put(NODE, made)

    def add_agent(self, name: str, what: Known, *, renewed: str | None = NEVER, **status: Any) -> None:
        """What the agent of a node publishes; `renewed`: its Lease, None for none at all."""
        published = make_gpu_node(what, replace(ABOUT, node_name=name), None, 1000.0, lambda _: "2026-01-01T00:00:00Z")
        metadata = {"name": name, "annotations": {"sharer.dev/lease": f"sharer/{name}"}}
        self.server.put(GPU_NODE, {"metadata": metadata, "status": {**published.status_fields(), **status}})
        if renewed is not None:
            spec = {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": renewed}
            self.server.put(LEASE, {"metadata": {"name": name, "namespace": "sharer"}, "spec": spec})

    def add_pod(self, name: str, node: str | None, resource: str, amount: int = 1, **more: Any) -> None:
        self.server.put(POD, pod_object(name, node=node, **{"phase": "Running", "limits": {resource: amount}, **more}))

    def add_policies(self, **texts: str) -> None:
        self.server.put(CONFIG_MAP, config_map_object("policies", texts, namespace="gpu"))

    def run(self, *arguments: str | Path, stdin: str | None = None) -> Ran:
        """A command about this cluster. That it takes a moment, which a busy machine makes it say, is not in `err`."""
        ran = run(*arguments, "--kubeconfig", self.kubeconfig, stdin=stdin)
        return ran._replace(err=_PROGRESS.sub("", ran.err))

    def report(self, *arguments: str) -> Ran:
        return self.run("report", *arguments)

    def golden(self, name: str, text: str) -> None:
        """The text is the one in the file, whenever and wherever it was made."""
        text = text.replace(self.server.url, "SERVER")
        for changing, word in _CHANGING:
            text = re.sub(changing, word, text, flags=re.MULTILINE)
        if os.environ.get("SHARER_GOLDEN") == "write":
            (GOLDEN / name).write_text(text)
        assert text == (GOLDEN / name).read_text()


def mixed(fleet: FleetServer) -> FleetServer:
    """One of everything: agents alive and silent, a cordoned and a lost node, NVIDIA's plugin, a node without any."""
    shared = {SHARED: 8}
    fleet.add_node("a100-1", shared)
    fleet.add_node("a100-2", shared, cordoned=True)
    fleet.add_node("a100-3", {SHARED: 0}, ready=False)
    fleet.add_node("a100-10", shared)
    fleet.add_agent(
        "a100-1",
        shared_node(held_slices=2, processes=reading(process("uid-1", 3 * GIB), asked=[gpu_uuid(0), gpu_uuid(1)])),
    )
    fleet.add_agent("a100-2", shared_node(held_slices=1))
    fleet.add_agent("a100-3", shared_node(held_slices=0), renewed=LONG_AGO)
    fleet.add_agent("a100-10", shared_node(faults={gpu_uuid(1): "XID 79"}), renewed=LONG_AGO)
    fleet.add_node("t4-1", {NVIDIA: 7}, labels={"nvidia.com/gpu.product": "Tesla-T4"}, capacity={NVIDIA: "8"})
    fleet.add_node("t4-2", {}, labels={"nvidia.com/gpu.present": "true"})
    fleet.add_node("cpu-1", {"cpu": 8})
    for number, its_node in enumerate(("a100-1", "a100-1", "a100-2", "a100-10"), start=1):
        fleet.add_pod(f"train-{number}", its_node, SHARED)
    for number in range(8):
        fleet.add_pod(f"old-{number}", "t4-1", NVIDIA, namespace="team-b")
    setup = [container_object("setup", {SHARED: 1})]
    fleet.add_pod("prepare", "a100-1", SHARED, containers=[container_object("c", {})], init_containers=setup)
    fleet.add_pod("lost", "cpu-1", NVIDIA, namespace="team-b")
    fleet.add_pod("finished", "a100-1", SHARED, phase="Succeeded")
    fleet.add_pod("waiting", None, SHARED)
    return fleet
