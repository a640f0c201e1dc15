"""`sharer report` and `sharer policy plan` about a large cluster: 5,000 nodes with 8 GPUs each and an agent on every
node, 50,000 pods.

The API server is a process that hands out pages made beforehand, so that what is measured is the report's own work; a
real one adds what it takes to make the pages (api-server-facts §4: 0.5 s for 5,000 pods).
"""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.bench.figures import Figure

NODES, GPUS, PODS, SLICES = 5000, 8, 50_000, 4
RESOURCE = "nvidia.com/gpu.shared"
RUNS = 3
_PADDING = {
    f"example.com/annotation-{number}": "x" * 200 for number in range(10)
}  # real objects are mostly other things


def cluster_report() -> Iterator[Figure]:
    """The report as a table, as JSON and as CSV, the plan of a policy, and what help costs."""
    with served() as kubeconfig:
        policy = kubeconfig.with_name("policy.yaml")
        policy.write_text(_FINER)
        for what, command, bound_s in (
            ("report", ["report"], 6.0),
            ("report -o json", ["report", "-o", "json"], None),
            ("report -o csv", ["report", "-o", "csv"], None),
            ("policy plan --cluster, all GPUs change", ["policy", "plan", str(policy), "--cluster"], 6.0),
        ):
            runs = [_run([*command, "--kubeconfig", str(kubeconfig)]) for _ in range(RUNS)]
            wall_s, memory_mib, first_s = (min(run[number] for run in runs) for number in range(3))
            yield Figure(f"{what}, {NODES} nodes, {PODS} pods: time", wall_s, "s", None, bound_s)
            yield Figure("  processor time", min(run[3] for run in runs), "s", None, None)
            yield Figure("  resident memory at most", memory_mib, "MiB", None, 150.0)
            yield Figure("  something is seen after", first_s, "s", None, 1.0)
    yield Figure("sharer --help", 1000 * min(_run(["--help"])[0] for _ in range(5)), "ms", None, 250)


_FINER = """
apiVersion: sharer.dev/v1alpha1
kind: SharingPolicy
rules:
  - match: {}
    strategy: time-slicing
    slices: 8
"""


def _run(arguments: list[str]) -> tuple[float, float, float, float]:
    """Seconds to the end, MiB at most, seconds to the first byte on either stream, seconds of processor time."""
    start_s = time.perf_counter()
    child = subprocess.Popen(
        [sys.executable, "-m", "sharer", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert child.stdout is not None
    assert child.stderr is not None
    first_s: float | None = None
    with selectors.DefaultSelector() as streams:
        for stream in (child.stdout, child.stderr):
            os.set_blocking(stream.fileno(), False)
            streams.register(stream, selectors.EVENT_READ)
        while streams.get_map():
            for key, _ in streams.select():
                data = key.fileobj.read(2**20)  # type: ignore[union-attr]  # as it was registered
                first_s = first_s or time.perf_counter() - start_s
                if not data:
                    streams.unregister(key.fileobj)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)  # it is not to be waited for again
    child.stdout.close()
    child.stderr.close()
    assert child.returncode == 0, arguments
    return time.perf_counter() - start_s, usage.ru_maxrss / 1024, first_s or 0.0, usage.ru_utime + usage.ru_stime


def report_figures(nodes: int) -> list[Figure]:
    """The table about a smaller cluster, with as many pods a node."""
    with served(nodes) as kubeconfig:
        wall_s, memory_mib, _, cpu_s = min(_run(["report", "--kubeconfig", str(kubeconfig)]) for _ in range(RUNS))
    return [
        Figure(f"{nodes} nodes: report, time", wall_s, "s", None, None),
        Figure(f"{nodes} nodes: report, processor time", cpu_s, "s", None, None),
        Figure(f"{nodes} nodes: report, resident memory at most", memory_mib, "MiB", None, None),
    ]


@contextlib.contextmanager
def served(nodes: int = NODES) -> Iterator[Path]:
    """A kubeconfig for a server of its own process, of so many nodes with ten pods each."""
    with tempfile.TemporaryDirectory(prefix="s-") as folder:
        command = [sys.executable, "-m", "tests.bench.cluster", str(nodes)]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            port = int(server.stdout.readline())
            path = Path(folder, "kubeconfig")
            path.write_text(kubeconfig_text(f"http://127.0.0.1:{port}"))
            yield path
        finally:
            server.kill()
            server.communicate()


def kubeconfig_text(url: str) -> str:
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "here",
            "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
            "clusters": [{"name": "here", "cluster": {"server": url}}],
            "users": [{"name": "me", "user": {"token": "t"}}],
        }
    )


# ---- the server


def node(number: int) -> dict[str, Any]:
    amounts = {"cpu": "96", "memory": "1Ti", "pods": "110", RESOURCE: str(GPUS * SLICES)}
    return {
        "metadata": {
            "name": f"node-{number:05}",
            "uid": f"uid-{number}",
            "labels": {"kubernetes.io/hostname": f"node-{number:05}", "nvidia.com/gpu.present": "true"},
            "annotations": _PADDING,
        },
        "spec": {"podCIDR": "10.0.0.0/24"},
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "posting ready"}],
        },
    }


def pod(number: int) -> dict[str, Any]:
    limits = {"cpu": "1", "memory": "4Gi", RESOURCE: "1"}
    main = {"name": "main", "image": "registry.example/train:1", "resources": {"limits": limits, "requests": limits}}
    return {
        "metadata": {
            "name": f"train-{number:06}",
            "namespace": f"team-{number % 20}",
            "uid": _uid(number),
            "labels": {"app": "train"},
            "annotations": _PADDING,
        },
        "spec": {"nodeName": f"node-{number % NODES:05}", "containers": [main]},
        "status": {
            "phase": "Running",
            "containerStatuses": [{"name": "main", "containerID": f"containerd://{number:064x}"}],
        },
    }


def _uid(number: int) -> str:
    return f"{number:08x}-0000-4000-8000-000000000000"


def gpu_node(number: int) -> dict[str, Any]:
    uuids = [f"GPU-{number:08x}-0000-4000-8000-{gpu:012x}" for gpu in range(GPUS)]
    mine = range(number, PODS, NODES)
    holders = [
        {
            "resource": RESOURCE,
            "id": f"{uuids[place % GPUS]}::ts-{place // GPUS}-20480",
            "state": "held",
            "namespace": f"team-{one % 20}",
            "pod": f"train-{one:06}",
            "uid": _uid(one),
            "container": "main",
            "promiseBytes": 20 * 2**30,
            "heldBy": "driver",
            "verifiedAt": f"2026-01-01T00:{number % 60:02}:00Z",
            "reason": "the kubelet says so",
        }
        for place, one in enumerate(mine)
    ]
    held = [sum(place % GPUS == gpu for place in range(len(mine))) for gpu in range(GPUS)]
    gpus = [
        {
            "uuid": uuid, "gpuUuid": uuid, "index": gpu, "product": "NVIDIA A100-SXM4-80GB", "migIndex": None,
            "migProfile": None, "memoryBytes": 80 * 2**30, "computeCapability": "8.0", "migEnabled": False,
            "health": "healthy", "reason": None,
            "strategy": "time-slicing", "resource": RESOURCE, "slices": SLICES, "held": held[gpu],
            "free": SLICES - held[gpu], "quarantined": 0, "draining": 0, "promisedBytes": 80 * 2**30,
            "largestFreeBytes": 20 * 2**30, "verified": held[gpu], "notVerified": 0, "offersNothing": None,
            "waiting": None,
        }
        for gpu, uuid in enumerate(uuids)
    ]  # fmt: skip
    policy = {
        "wanted": "default",
        "wantedHash": "a" * 64,
        "inForce": "configmap gpu/policies key default",
        "hash": "a" * 64,
    }
    total = {"slices": GPUS * SLICES, "held": len(mine), "free": GPUS * SLICES - len(mine)}
    return {
        "metadata": {
            "name": f"node-{number:05}",
            "uid": f"gpu-node-{number}",
            "annotations": {"sharer.dev/lease": f"sharer/node-{number:05}"},
        },
        "status": {
            "observedAt": "2026-01-01T00:00:00Z",
            "agent": "1.0.0",
            "factsHash": "b" * 64,
            "node": {"driver": "615.1", "kernel": "6.12", "cgroup": "v2", "injection": "cdi", "injectionReason": None},
            "policy": policy,
            "resources": [{"name": RESOURCE, "strategy": "time-slicing", "overBy": 0, **total}],
            "gpus": gpus,
            "gpusOmitted": 0,
            "holders": holders,
            "holdersOmitted": 0,
            "warnings": [],
        },
    }  # fmt: skip


def lease(number: int) -> dict[str, Any]:
    return {
        "metadata": {"name": f"node-{number:05}", "namespace": "sharer", "uid": f"lease-{number}"},
        "spec": {"leaseDurationSeconds": 40, "renewTime": "2999-01-01T00:00:00.000000Z"},
    }


def _pages(make: Any, total: int, limit: int) -> list[bytes]:
    pages: list[bytes] = []
    for start in range(0, total, limit):
        end = min(total, start + limit)
        metadata = {"resourceVersion": "1", **({"continue": str(len(pages) + 1)} if end < total else {})}
        pages.append(
            json.dumps({"metadata": metadata, "items": [make(number) for number in range(start, end)]}).encode()
        )
    return pages


def serve() -> None:
    """Hand out pages for ever. The port is written once they are made."""
    from sharer.adapters.kube.cluster import GPU_NODES_PAGE, PAGE

    lists = {
        "nodes": _pages(node, NODES, PAGE),
        "pods": _pages(pod, PODS, PAGE),
        "gpunodes": _pages(gpu_node, NODES, GPU_NODES_PAGE),
        "leases": _pages(lease, NODES, PAGE),
    }

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = 2**16

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            page = int(parse_qs(parts.query).get("continue", ["0"])[0])
            body = lists[parts.path.rpartition("/")[2]][page]
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    NODES = int(sys.argv[1])
    PODS = 10 * NODES
    serve()
