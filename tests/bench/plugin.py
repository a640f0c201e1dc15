"""The plugin's own figures: how fast it starts and answers, what it weighs, how it grows."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from functools import partial

from sharer.core.policy.list_size import most_numbered_ids
from sharer.core.slices.linked import best_linked
from sharer.simulation.hardware import SimulatedGpu
from sharer.simulation.products import parse_gpus
from tests.bench.figures import Figure, in_turn, p, timed
from tests.bench.node import BenchNode, Plugin, open_node

IDLE_S = 30.0
CALLS = 2000
STARTS = 9


def policy(slices: int, limit: str = "auto") -> str:
    return (
        "apiVersion: sharer.dev/v1alpha1\nkind: SharingPolicy\nrules:\n"
        f"  - {{match: {{}}, strategy: time-slicing, slices: {slices}, memory: {{limit: {limit}}},"
        " request: {max: none}}\n"
    )


def node_figures() -> list[Figure]:
    """Allocate, start, memory and idle processor time, 8 GPUs × 16 slices."""
    with open_node(gpus(8), policy(16)) as node:
        agent = node.start_agent()
        bare = node.start_bare(agent.ids)
        ours, theirs = in_turn(lambda: agent.allocate(agent.ids[7]), lambda: bare.allocate(bare.ids[7]), CALLS)
        starts = [restarted(node, agent, bare) for _ in range(STARTS)]
        node.stop()
        node.kubelet.restart()
        (node.root / "cgroup").mkdir()  # every node has one; an agent looks for a missing folder every second
        agent, bare = node.start_agent(), node.start_bare(agent.ids, third_party_modules())
        time.sleep(4)  # the first seconds are start-up, not idleness
        before_s = agent.cpu_s()
        time.sleep(IDLE_S)
        idle_ms = 1000 * (agent.cpu_s() - before_s)
        memory_mib, floor_mib = agent.resident_mib(), bare.resident_mib()
    start_s = statistics.median(one.started_to_registered_s for one, _ in starts)
    bare_start_s = statistics.median(other.started_to_registered_s for _, other in starts)
    return [
        Figure("Allocate p50", 1e6 * p(ours, 50), "µs", 1e6 * p(theirs, 50), 1.15 * 1e6 * p(theirs, 50)),
        Figure("Allocate p99", 1e6 * p(ours, 99), "µs", 1e6 * p(theirs, 99), 1.3 * 1e6 * p(theirs, 99)),
        Figure("process start to registered", 1000 * start_s, "ms", 1000 * bare_start_s, 1.6 * 1000 * bare_start_s),
        Figure("resident memory", memory_mib, "MiB", floor_mib, floor_mib + 6),
        Figure(f"idle processor time in {IDLE_S:.0f} s", idle_ms, "ms", None, 60),
    ]


def preferred() -> list[Figure]:
    """The choice of 8 among 1,024 free slices."""
    with open_node(gpus(8), policy(128)) as node:
        agent = node.start_agent()
        bare = node.start_bare(agent.ids)
        ours, theirs = in_turn(lambda: agent.prefer(agent.ids, 8), lambda: bare.prefer(bare.ids, 8), 400)
    mine, other = 1000 * p(ours, 50), 1000 * p(theirs, 50)
    return [Figure("preferred, 8 of 1,024, p50", mine, "ms", other, other * 3.2 / 2.8)]


def largest_list() -> list[Figure]:
    """The largest list that the rule accepts is taken by the kubelet; one slice more is refused."""
    uuid = gpus(1)[0].uuid
    most = most_numbered_ids(len(f"{uuid}::ts-"))
    with open_node(gpus(1), policy(most, "none")) as node:
        agent = node.start_agent()
        assert len(agent.ids) == most
        available = [*agent.ids, *(f"unknown-{n}" for n in range(65_000 - most))]
        took = [agent.prefer(available, 8) for _ in range(5)]
        start_ms, memory_mib = 1000 * agent.started_to_registered_s, agent.resident_mib()
    command = [sys.executable, "-m", "sharer", "policy", "plan", "-", "--gpus", "1xA100-80GB"]
    check = subprocess.run(command, check=False, input=policy(most + 1, "none"), text=True, capture_output=True)
    return [
        Figure(f"largest list, {most} IDs: start to registered", start_ms, "ms", None, None),
        Figure(f"largest list, {most} IDs: resident memory", memory_mib, "MiB", None, None),
        Figure("largest list and one: exit status of policy plan", check.returncode, "", 2, 2),
        Figure("preferred, 8 of 65,000, p50", 1000 * p(took, 50), "ms", None, 2000),
    ]


def links() -> list[Figure]:
    """Linked whole GPUs, in this process."""
    figures = []
    for count, size in ((16, 4), (16, 8), (64, 8)):
        closeness = [
            [0 if a == b else 400 if a // 4 == b // 4 else 10 + (a * b) % 40 for b in range(count)]
            for a in range(count)
        ]
        took = [timed(partial(best_linked, closeness, range(count), [], size)) for _ in range(9)]
        figures.append(
            Figure(
                f"linked choice, {size} of {count} GPUs, p50",
                1000 * p(took, 50),
                "ms",
                None,
                5 if (count, size) == (16, 4) else None,
            )
        )
    return figures


def growth_of_ids() -> list[Figure]:
    """More slices on one GPU."""
    figures = []
    for count in (64, 1024, 8192, 50_000):
        with open_node(gpus(1), policy(count, "none")) as node:
            agent = node.start_agent()
            took = [agent.allocate(agent.ids[-1]) for _ in range(300)]
            chosen = [agent.prefer(agent.ids, 8) for _ in range(5)]
            figures += [
                Figure(f"{count} IDs: Allocate p50", 1e6 * p(took, 50), "µs", None, None),
                Figure(f"{count} IDs: preferred, 8 of all, p50", 1000 * p(chosen, 50), "ms", None, None),
                Figure(f"{count} IDs: start to registered", 1000 * agent.started_to_registered_s, "ms", None, None),
                Figure(f"{count} IDs: resident memory", agent.resident_mib(), "MiB", None, None),
            ]
    return figures


def growth_of_gpus() -> list[Figure]:
    """More GPUs, 16 slices each."""
    figures = []
    for count in (1, 8, 64):
        with open_node(gpus(count), policy(16)) as node:
            agent = node.start_agent()
            took = [agent.allocate(agent.ids[-1]) for _ in range(300)]
            figures += [
                Figure(f"{count} GPUs: Allocate p50", 1e6 * p(took, 50), "µs", None, None),
                Figure(f"{count} GPUs: start to registered", 1000 * agent.started_to_registered_s, "ms", None, None),
                Figure(f"{count} GPUs: resident memory", agent.resident_mib(), "MiB", None, None),
            ]
    return figures


def gpus(count: int) -> list[SimulatedGpu]:
    return list(parse_gpus(f"{count}xA100-80GB"))


def restarted(node: BenchNode, agent: Plugin, bare: Plugin) -> tuple[Plugin, Plugin]:
    """Both plugins again, from nothing: the kubelet is restarted too, so that both register anew."""
    node.stop()
    node.kubelet.restart()
    return node.start_agent(), node.start_bare(bare.ids)


def third_party_modules() -> list[str]:
    """Everything that the agent imports but its own code."""
    ours = "('sharer', '__main__')"
    listing = f"import sys, sharer.cli.agent; print(*(m for m in sys.modules if m.split('.')[0] not in {ours}))"
    result = subprocess.run([sys.executable, "-c", listing], check=True, capture_output=True, text=True)
    return result.stdout.split()
