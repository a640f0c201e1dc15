"""What the agents of 5,000 nodes ask of the API server while nothing happens (bug case P33)."""

from __future__ import annotations

import contextlib
import heapq
import random
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from sharer.adapters.kube.access import Kubeconfig
from sharer.adapters.kube.client import KubeClient
from sharer.adapters.kube.connect import connect
from sharer.core.holders.observations import NodeSeen
from sharer.core.inventory import Inventory
from sharer.core.known import About
from sharer.flows.state import NodeView
from sharer.flows.tell.announce import Step
from sharer.flows.tell.publish import Living, Publishing
from sharer.flows.tell.report import stamper
from sharer.simulation.apiserver import NODE, ApiServer, node_object
from tests.bench.cluster import NODES, kubeconfig_text
from tests.bench.figures import Figure
from tests.deploy.crd import gpu_node_crd

AGENTS = 200  # that are simulated


def idle_fleet() -> Iterator[Figure]:
    """What 5,000 agents ask of the API server in an hour without news: 200 of them, each at its times."""
    with ApiServer().start() as server:
        server.define(gpu_node_crd())
        with tempfile.TemporaryDirectory(prefix="s-") as folder:
            access = Path(folder, "kubeconfig")
            access.write_text(kubeconfig_text(server.url))
            with contextlib.closing(connect(Kubeconfig(path=access))) as client:
                asked = _an_idle_hour(client, server)
    yield Figure("GpuNode writes of idle agents in an hour", asked["writes"], "", None, 0)
    yield Figure("  reads of GpuNodes, 5,000 nodes", asked["reads"] * NODES / AGENTS / 3600, "/s", None, 7.0)
    yield Figure("  writes of Leases, 5,000 nodes", asked["leases"] * NODES / AGENTS / 3600, "/s", None, 63.0)


def _an_idle_hour(client: KubeClient, server: ApiServer) -> dict[str, int]:
    view = NodeView(inventory=Inventory(driver_version="615.1", gpus=()))
    dues: list[tuple[float, int, Step]] = []
    for number in range(AGENTS):
        name, uniform = f"node-{number:05}", random.Random(number).uniform
        server.put(NODE, node_object(name))
        about = About(node_name=name, version="1.0.0")
        link = _Link(client)
        publishing = Publishing(link, about, stamper(0.0, 1_800_000_000.0), lease=f"gpu/{name}", uniform=uniform)
        publishing.publish(view, 0.0)
        steps = (publishing.publish, publishing.check, Living(link, name, "gpu", uniform=uniform).renew)
        dues += [(60.0, number * len(steps) + place, step) for place, step in enumerate(steps)]
    before = dict(server.counts())
    heapq.heapify(dues)
    while dues and dues[0][0] < 3660.0:
        at_s, number, step = heapq.heappop(dues)
        again_s = step(replace(view), at_s)  # equal, and another object: as after each look that finds nothing new
        if again_s is not None:
            heapq.heappush(dues, (again_s, number, step))
    asked = {key: count - before.get(key, 0) for key, count in server.counts().items()}
    of_gpu_nodes = {verb: count for (verb, what), count in asked.items() if (what or "").startswith("gpunodes")}
    return {
        "reads": of_gpu_nodes.pop("get", 0),
        "writes": sum(of_gpu_nodes.values()),
        "leases": asked.get(("patch", "leases"), 0),
    }


class _Link:
    """The API server, for `Publishing`."""

    def __init__(self, client: KubeClient) -> None:
        self.client: KubeClient | None = client
        self.node: NodeSeen | None = None
