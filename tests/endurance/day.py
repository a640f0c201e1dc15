"""One accelerated day of a node: pods come and go, policies are edited, the kubelet restarts, in the same mixture.

Everything that an agent does in production is on: limits by the driver, the API server with pods, policies and GpuNode,
metrics. What is measured is measured at rest, when every pod has ended: there the node is as it was an hour ago, so
whatever has grown has leaked.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import random
import statistics
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from sharer.cli.report.command import read_report
from sharer.simulation.hardware import SimulatedProcess
from sharer.simulation.kubelet import ContainerSpec, KubeletSettings, Phase
from sharer.simulation.memory_limits import LimitBackend
from tests.e2e.api import Api, open_api
from tests.e2e.gpus import GPU, gpu, policy, shared
from tests.e2e.node import Node, open_node
from tests.e2e.pages import HTTP, metrics
from tests.e2e.process import Agent
from tests.endurance.growth import Sample

GPUS = tuple(gpu(number) for number in range(4))
CUTS = (4, 8, 2, 5)  # slices of each GPU, one policy after the other
MIB = 2**20
_ALIVE = 6  # pods at a time
_LOOK_S = 0.05  # between two looks at the report; nobody tells when to look again
_LOOKS = 5  # at what may last a moment
_PATIENCE_S = 60.0
_SUM = 'sharer_kubelet_request_seconds_sum{method="Allocate"}'
_COUNT = 'sharer_kubelet_request_seconds_count{method="Allocate"}'


@dataclass(frozen=True, slots=True, kw_only=True)
class Day:
    """How much happens. All of it is spread evenly over the hours."""

    allocations: int = 50_000
    recuts: int = 500
    restarts: int = 200
    hours: int = 24

    def turns(self) -> list[list[str]]:
        """By hour, what happens between two handfuls of pods: "re-cut" or "restart"."""
        turns = ["re-cut"] * self.recuts + ["restart"] * self.restarts
        random.Random(0).shuffle(turns)
        bounds = [len(turns) * hour // self.hours for hour in range(self.hours + 1)]
        return [turns[start:end] for start, end in itertools.pairwise(bounds)]


SHORT = Day(allocations=2_000, recuts=20, restarts=10, hours=5)


@dataclass(slots=True, kw_only=True)
class _Run:
    """What there is now."""

    node: Node
    api: Api
    agent: Agent
    alive: deque[str] = field(default_factory=deque)
    cut: int = 0  # place in CUTS
    pods: int = 0
    refused: int = 0  # of them
    took_s: list[float] = field(default_factory=list)  # to start each pod of this hour
    answered: tuple[float, float] = (0.0, 0.0)  # seconds and number of Allocate calls until this hour


def live_through(day: Day) -> Iterator[Sample]:
    """Live through it. Yields what the agent weighs at the end of every hour, the first being warm-up."""
    with _open() as run:
        _edit_policy(run)
        made = 0
        for hour, turns in enumerate(day.turns(), 1):
            before_s, goal = run.agent.cpu_s(), day.allocations * hour // day.hours
            for place, turn in enumerate(turns, 1):
                share = (goal - made) // (len(turns) - place + 1)
                for _ in range(share):
                    _start_pod(run)
                made += share
                _show_processes(run)
                if turn == "re-cut":
                    _edit_policy(run)
                else:
                    _restart_kubelet(run)
            busy_s = run.agent.cpu_s() - before_s
            _rest(run)
            yield _sample(run, hour, busy_s)
            run.took_s.clear()
            run.refused = 0
        run.node.check()


@contextlib.contextmanager
def _open() -> Iterator[_Run]:
    settings = KubeletSettings(podresources_lead_s=0.02, sources_ready_after_s=0.1, numa_nodes=(0, 1))
    with (
        open_node(*GPUS, settings=settings, limit_backend=LimitBackend.DMEM) as node,
        open_api(node.root, settings.node_name) as api,
    ):
        node.kubelet.start()
        api.put_policies(default=_text(0))
        with api.mirroring(node.kubelet):
            agent = node.start_agent(*api.flags, HTTP, "--namespace=sharer")
            node.wait_listed(CUTS[0] * len(GPUS))
            yield _Run(node=node, api=api, agent=agent)


def _text(cut: int) -> str:
    return policy(shared(CUTS[cut]))


def _edit_policy(run: _Run) -> None:
    """Another cut, until it is in force; its slices come as those of the old one are given back."""
    run.cut = (run.cut + 1) % len(CUTS)
    run.api.put_policies(default=_text(run.cut))
    wanted, until_s = hashlib.sha256(_text(run.cut).encode()).hexdigest(), time.monotonic() + _PATIENCE_S
    while read_report(run.node.run_dir).status.policy.hash != wanted:
        assert time.monotonic() < until_s, f"not in force: {_text(run.cut)}\n{run.agent.log[-2000:]}"
        threading.Event().wait(_LOOK_S)


def _restart_kubelet(run: _Run) -> None:
    run.node.kubelet.restart()
    run.node.wait(lambda: bool(run.node.kubelet.healthy(GPU)), "a list for the new kubelet", timeout_s=_PATIENCE_S)
    run.node.kubelet.forget_history()


def _start_pod(run: _Run) -> None:
    """One more pod; the oldest goes, in one of the ways in which pods go. As a scheduler would: only into room.

    What was free when the scheduler looked may be gone when the kubelet does; then a Deployment makes another pod.
    """
    kubelet = run.node.kubelet
    while True:
        run.pods += 1
        number, name = run.pods, f"p{run.pods}"
        while len(run.alive) >= _ALIVE or (run.alive and kubelet.unrequested(GPU) < 1):
            _end_pod(run, number)
        init = [ContainerSpec(name="init", limits={GPU: 1})] if number % 7 == 0 else []
        run.node.wait(lambda: kubelet.unrequested(GPU) > 0, "a free slice", timeout_s=_PATIENCE_S)
        began_s = time.perf_counter()
        pod = kubelet.start_pod(name, containers=[ContainerSpec(limits={GPU: 1})], init_containers=init)
        if pod.phase is Phase.RUNNING:
            run.took_s.append(time.perf_counter() - began_s)
            run.alive.append(name)
            return
        run.refused += 1
        assert "no healthy devices present" in pod.message or "unavailable" in pod.message, pod
        kubelet.delete_pod(name)


def _end_pod(run: _Run, number: int) -> None:
    kubelet, name = run.node.kubelet, run.alive.popleft()
    match number % 10:
        case 0:
            kubelet.force_delete_pod(name)
            for remnant in kubelet.remnants():
                kubelet.end_remnant(remnant.uid)
        case 1 | 2:
            kubelet.end_pod(name)
            kubelet.delete_pod(name)
        case _:
            kubelet.delete_pod(name)


def _show_processes(run: _Run) -> None:
    """On each GPU, the processes of the containers that hold slices of it."""
    node = run.node
    found: dict[str, list[SimulatedProcess]] = {}
    for pod in node.kubelet.pods():
        for one in pod.ids(GPU):
            with contextlib.suppress(OSError, ValueError):  # its cgroup is being made, or has gone
                pid = int((node.cgroup_of(pod.uid, "main") / "cgroup.procs").read_text())
                found.setdefault(one.partition("::")[0], []).append(SimulatedProcess(pid=pid, used_bytes=64 * MIB))
    for each in GPUS:
        node.gpus.put(replace(each, processes=tuple(found.get(each.uuid, ()))))


def _rest(run: _Run) -> None:
    """Every pod ends; wait until the agent has noticed. IDs of earlier cuts may still be listed for half a minute."""
    while run.alive:
        _end_pod(run, 3)
    _show_processes(run)
    until_s = time.monotonic() + _PATIENCE_S
    while not _is_at_rest(run):
        if time.monotonic() > until_s:
            states = {f"{row.id} {row.state} {row.listed}" for row in read_report(run.node.run_dir).slices}
            raise AssertionError("\n".join(["the node does not come to rest:", *sorted(states)]))
        threading.Event().wait(_LOOK_S)


def _is_at_rest(run: _Run) -> bool:
    """The Allocate of a pod that ended before anybody saw it is remembered for a minute."""
    return all(row.state in ("offered", "allocated") for row in read_report(run.node.run_dir).slices)


def _sample(run: _Run, hour: int, busy_s: float) -> Sample:
    found = metrics(run.agent)
    before, run.answered = run.answered, (found[_SUM], found[_COUNT])
    status = Path(f"/proc/{run.agent.pid}/status").read_text()
    threads, files = _lasting(run.agent)
    return Sample(
        hour=hour,
        pods=len(run.took_s),
        refused=run.refused,
        resident_mib=int(status.split("VmRSS:")[1].split()[0]) / 1024,
        threads=threads,
        files=files,
        allocate_us=1e6 * (run.answered[0] - before[0]) / (run.answered[1] - before[1]),
        start_ms=1e3 * statistics.median(run.took_s),
        busy_ms=1e3 * busy_s / len(run.took_s),
    )


def _lasting(agent: Agent) -> tuple[int, int]:
    """Threads and files, the fewest of some looks: a scrape's connection and a file being read last a moment."""
    threads, files = [], []
    for _ in range(_LOOKS):
        threads.append(agent.threads())
        files.append(len(agent.open_files()))
        threading.Event().wait(_LOOK_S)
    return min(threads), min(files)
