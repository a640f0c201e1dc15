"""How figures grow with pods and nodes; with IDs and GPUs: see `plugin`. And the tables that all of these make."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from sharer.adapters.local_socket import ask
from sharer.simulation.cgroups import PodCgroups, write_host_pids
from tests.bench.cluster import report_figures
from tests.bench.figures import Figure, p, timed
from tests.bench.holders import POD_CGROUPS, idle_cpu_s, wait_held
from tests.bench.node import RESOURCE, open_node
from tests.bench.plugin import gpus, policy

PODS = (10, 50, 250)
NODES = (50, 500, 5000)
IDLE_S = 10.0
_NAME = re.compile(r"(?P<size>\d+) (?P<of>IDs|GPUs|pods|nodes): (?P<what>.+)")


def growth_of_pods() -> list[Figure]:
    """More pods that hold a slice each, on 8 GPUs in 32 slices, with cgroups and limits looked after."""
    figures = []
    with open_node(gpus(1), policy(4)) as node:
        node.start_agent()  # the first one compiles its sources: not what is to be measured
    for count in PODS:
        with open_node(gpus(8), policy(32)) as node:
            write_host_pids(node.root / "proc")
            cgroups = PodCgroups(node.kubelet, node.root / "cgroup", node.root / "proc")
            cgroups.start()
            try:
                agent = node.start_agent()
                for number in range(count):
                    node.kubelet.start_pod(f"pod-{number}", {RESOURCE: 1})
                node.kubelet.wait_for(lambda: len(list(node.root.glob(f"{POD_CGROUPS}/pod*"))) == count, 60)  # noqa: B023
                wait_held(node, count)
                took = [agent.allocate(agent.ids[-1]) for _ in range(300)]
                reports = [timed(lambda: ask(node.root / "run")) for _ in range(9)]
                idle_ms = 1000 * idle_cpu_s(agent, IDLE_S)
            finally:
                cgroups.close()
            figures += [
                Figure(f"{count} pods: Allocate p50", 1e6 * p(took, 50), "µs", None, None),
                Figure(f"{count} pods: report p50", 1000 * p(reports, 50), "ms", None, None),
                Figure(f"{count} pods: idle, in {IDLE_S:.0f} s", idle_ms, "ms", None, None),
                Figure(f"{count} pods: resident memory", agent.resident_mib(), "MiB", None, None),
            ]
    return figures


def growth_of_nodes() -> list[Figure]:
    """More nodes of a fleet, with ten pods each, in `sharer report`."""
    return [figure for count in NODES for figure in report_figures(count)]


@dataclass(slots=True)
class Growth:
    """Figures of the same kind by what grows."""

    of: str  # "IDs"
    sizes: list[int] = field(default_factory=list)
    rows: dict[str, dict[int, float]] = field(default_factory=dict)  # "Allocate p50, µs" -> by size


def growths(figures: Iterable[Figure]) -> Mapping[str, Growth]:
    """The figures that are about so many of something, by that."""
    found: dict[str, Growth] = {}
    for figure in figures:
        named = _NAME.fullmatch(figure.name)
        if named is not None:
            size, growth = int(named["size"]), found.setdefault(named["of"], Growth(named["of"]))
            if size not in growth.sizes:
                growth.sizes.append(size)
            growth.rows.setdefault(f"{named['what']}, {figure.unit}", {})[size] = figure.measured
    return {of: growth for of, growth in found.items() if len(growth.sizes) > 1}


def table(growth: Growth) -> list[str]:
    """A growth for people, one line a figure."""
    lines = [f"{growth.of:<40}" + "".join(f"{size:>12,}" for size in growth.sizes)]
    for what, values in growth.rows.items():
        shown = (f"{values[size]:12.1f}" if size in values else f"{'–':>12}" for size in growth.sizes)
        lines.append(f"  {what:<38}" + "".join(shown))
    return lines
