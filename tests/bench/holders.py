"""What it costs to know who holds what: 2,000 slices, 250 pods with 8 each, the real agent beside a fake kubelet."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sharer.adapters.documents import read_node_report
from sharer.adapters.kube.access import Kubeconfig
from sharer.adapters.kube.connect import connect
from sharer.adapters.kube.watches import watch_pods
from sharer.adapters.local_socket import ask
from sharer.simulation.apiserver import NODE, POD, ApiServer, node_object, pod_object
from sharer.simulation.cgroups import PodCgroups, write_host_pids
from tests.bench.figures import Figure, p
from tests.bench.node import NODE_NAME, RESOURCE, BenchNode, Plugin, open_node
from tests.bench.plugin import gpus, policy
from tests.bench.reconcile import PODS, SLICES, reconcile_ms

EACH = SLICES // PODS
IDLE_S = 20.0
LOADING = 1500  # calls of Allocate, some 3 s: until the API client is loaded
STORM = 100  # pods that end at the same time
ENDS = 8  # pods that end one after the other
REST_S = 7.0  # between two ends: `List` may be asked once a second on average, and bursts are saved up for
POD_CGROUPS = "cgroup/kubepods/burstable"
AGENTS = 200
_FREE = re.compile(r"(?P<shown>[^ ]+(?:, [^ ]+)*)(?: and (?P<more>\d+) more)? free again$")


def reconcile() -> list[Figure]:
    """Ledger, listing and lists, in this process."""
    return [
        Figure(f"reconcile, 250 pods, {ended} have ended: processor time", reconcile_ms(ended), "ms", None, 20)
        for ended in (0, 1, STORM)
    ]


def holders() -> list[Figure]:
    """The agent beside 250 pods: at rest, and when they end. First without the API server and with cgroups' hints."""
    figures = []
    for hints in (True, False):
        with full_node(hints=hints) as node:
            agent = node.start_agent()
            wait_held(node, SLICES)
            if hints:
                figures.append(Figure("250 pods: idle", idle_percent(agent), "%", None, 1))
            took_s = [freed(node, [f"pod-{number}"], number / ENDS).took_s for number in range(ENDS)]
            means, bound = ("with inotify", 400) if hints else ("without any hint", 1200)
            figures.append(Figure(f"250 pods: slice free, {means}, p50", 1000 * p(took_s, 50), "ms", None, bound))
            figures.append(Figure("  slowest", 1000 * max(took_s), "ms", None, None))
            storm = [f"pod-{number}" for number in range(ENDS, ENDS + STORM)]
            all_free = freed(node, storm)
            figures += [
                Figure(f"{STORM} pods end at once, {means}: all free", 1000 * all_free.took_s, "ms", None, None),
                Figure("  of it, until the kubelet had ended the last", 1000 * all_free.ending_s, "ms", None, None),
                Figure("  readings in which they became free", all_free.readings, "", None, None),
            ]
    return figures


def api_client() -> list[Figure]:
    """The agent while it loads the official client, and with it: what it weighs, and how long an Allocate takes."""
    with contextlib.ExitStack() as closing:
        node = closing.enter_context(full_node(hints=True))
        server = closing.enter_context(ApiServer().start())
        server.put(NODE, node_object(NODE_NAME, uid="node-uid"))
        for pod in node.kubelet.pods():
            limits = {RESOURCE: EACH}
            server.put(POD, pod_object(pod.name, uid=pod.uid, node=NODE_NAME, phase="Running", limits=limits))
        kubeconfig = str(write_kubeconfig(node.root, server))
        node.start_agent(kubeconfig)  # the first one to import the client compiles it: not what is to be measured
        server.wait_watches(2, timeout_s=60)
        node.stop()
        agent = node.start_agent(kubeconfig)
        bare = node.start_bare(agent.ids)
        loading = [(agent.allocate(agent.ids[-1]), bare.allocate(bare.ids[-1])) for _ in range(LOADING)]
        server.wait_watches(2, timeout_s=30)
        wait_held(node, SLICES)
        time.sleep(2)
        memory_mib, idle = agent.resident_mib(), idle_percent(agent)
        floor = node.start_bare(agent.ids, imported_with_api())
        for _ in range(LOADING):  # as often as the agent: gRPC's threads and buffers for it are half a MiB
            floor.allocate(floor.ids[-1])
        floor_mib = floor.resident_mib()
    ours_ms, theirs_ms = (1000 * max(times) for times in zip(*loading, strict=True))
    return [
        Figure("Allocate while the API client loads, worst", ours_ms, "ms", theirs_ms, 40),
        Figure("resident memory, with the API client", memory_mib, "MiB", floor_mib, floor_mib + 8),
        Figure("250 pods, with the API client: idle", idle, "%", None, 1),
    ]


def api_load() -> list[Figure]:
    """What 200 agents ask the API server for, with 5,000 pods of which 1,000 start meanwhile."""
    with contextlib.ExitStack() as closing:
        folder = Path(closing.enter_context(tempfile.TemporaryDirectory(prefix="s-")))
        server = closing.enter_context(ApiServer().start())
        for number in range(25 * AGENTS):
            server.put(POD, pod_object(f"p{number}", node=f"node-{number % AGENTS}"))
        access = Kubeconfig(path=write_kubeconfig(folder, server))
        for number in range(AGENTS):
            client = connect(access)
            closing.callback(client.close)
            watch = watch_pods(client, f"node-{number}", lambda _: None)
            closing.callback(watch.stop)
            watch.start()
        server.wait_watches(AGENTS, timeout_s=60)
        for number in range(1000):
            server.put(POD, pod_object(f"p{number}", node=f"node-{number % AGENTS}", phase="Running"))
        requests = sum(server.counts().values())
    return [Figure("API requests of an agent, of 200: a list and a watch", requests / AGENTS, "", None, 2)]


@contextlib.contextmanager
def full_node(*, hints: bool) -> Iterator[BenchNode]:
    """A node on which 250 pods run. Their slices were given by an agent that has ended. `hints`: cgroups are seen."""
    with open_node(gpus(8), policy(SLICES // 8, "none")) as node:
        write_host_pids(node.root / "proc")
        os.utime(node.kubelet.podresources_socket, (0, 0))  # a young kubelet's list is not taken at its word
        node.start_agent()
        for number in range(PODS):
            node.kubelet.start_pod(f"pod-{number}", {RESOURCE: EACH})
        if hints:
            with contextlib.closing(PodCgroups(node.kubelet, node.root / "cgroup", node.root / "proc")) as cgroups:
                cgroups.start()
                node.kubelet.wait_for(lambda: len(list(node.root.glob(f"{POD_CGROUPS}/pod*"))) == PODS, 60, "cgroups")
        wait_held(node, SLICES)
        node.stop()
        yield node


def wait_held(node: BenchNode, slices: int) -> None:
    """Until the report says that so many slices are held."""
    end_s = time.monotonic() + 60
    while True:
        report = read_node_report(ask(node.root / "run"), "the agent").status
        if sum(one.held for one in report.resources) == slices:
            return
        assert time.monotonic() < end_s, [(one.held, one.slices) for one in report.resources]
        time.sleep(0.2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Freed:
    """Pods that ended, and when their slices were free."""

    ending_s: float  # from the first deletion to the end of the last
    took_s: float  # from the first deletion until every slice is free
    readings: int  # in which some became free


def freed(node: BenchNode, pods: list[str], later_s: float = 0.0) -> Freed:
    """Delete these pods, and wait until all their slices are free.

    The log tells in the moment in which the report begins to. They end `later_s` later than else: without a hint the
    agent looks once a second, and ends must not all fall on the same part of it.
    """
    time.sleep(REST_S + later_s)
    uids = [node.kubelet.pod(pod).uid for pod in pods]
    with node.log.open() as log:
        log.seek(0, os.SEEK_END)
        start_s = time.perf_counter()
        for pod, uid in zip(pods, uids, strict=True):
            node.kubelet.delete_pod(pod)
            shutil.rmtree(node.root / POD_CGROUPS / f"pod{uid}", ignore_errors=True)
        ending_s = time.perf_counter() - start_s
        free = readings = 0
        while free < EACH * len(pods):
            assert time.perf_counter() - start_s < 60, "the slices do not become free"
            time.sleep(0.005)
            told = [_FREE.search(line) for line in log if line.endswith("free again\n")]
            readings += len(told)
            free += sum(len(one["shown"].split(", ")) + int(one["more"] or 0) for one in told if one is not None)
    return Freed(ending_s=ending_s, took_s=time.perf_counter() - start_s, readings=readings)


def idle_percent(agent: Plugin) -> float:
    """Of one core, while nothing happens."""
    return 100 * idle_cpu_s(agent, IDLE_S) / IDLE_S


def idle_cpu_s(agent: Plugin, for_s: float) -> float:
    """The processor time of so long in which nothing happens."""
    time.sleep(6)  # what has just happened is looked after for some seconds
    before_s = agent.cpu_s()
    time.sleep(for_s)
    return agent.cpu_s() - before_s


def write_kubeconfig(folder: Path, server: ApiServer) -> Path:
    """For the agent."""
    path = folder / "kubeconfig"
    (folder / "token").write_text("t1")
    path.write_text(
        "{apiVersion: v1, kind: Config, current-context: here,"
        " contexts: [{name: here, context: {cluster: here, user: me}}],"
        f' clusters: [{{name: here, cluster: {{server: "{server.url}"}}}}],'
        f' users: [{{name: me, user: {{tokenFile: "{folder / "token"}"}}}}]}}'
    )
    return path


def imported_with_api() -> list[str]:
    """Everything that the agent has imported when it follows the API server, but its own code."""
    importlib.import_module("sharer.adapters.kube.transport")  # so that a renamed module fails here, with its name
    parts = "sharer.cli.agent, sharer.adapters.kube.transport, sharer.adapters.kube.watches, sharer.adapters.documents"
    listing = f"import sys, {parts}; print(*(m for m in sys.modules if m.split('.')[0] not in ('sharer', '__main__')))"
    result = subprocess.run([sys.executable, "-c", listing], check=True, capture_output=True, text=True)
    return result.stdout.split()
