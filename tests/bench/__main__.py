"""Every figure of the issues, in one run, beside the bare plugin or a stated floor; and how they grow.

python -m tests bench [NAME…] [--json FILE]    NAME: one of BENCHES; without one, all of them
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from tests.bench import limits as limit_figures
from tests.bench.cluster import cluster_report
from tests.bench.figures import Figure
from tests.bench.growth import growth_of_nodes, growth_of_pods, growths, table
from tests.bench.holders import api_client, api_load, holders, reconcile
from tests.bench.idle_fleet import idle_fleet
from tests.bench.plugin import growth_of_gpus, growth_of_ids, largest_list, links, node_figures, preferred


def limits() -> Iterator[Figure]:
    """What holding 250 containers costs."""
    for bench in (limit_figures.while_nothing_happens, limit_figures.before_a_start, limit_figures.after_a_cgroup):
        with limit_figures.busy_node() as node:
            for one in bench(node):
                yield Figure(one.name, one.value, one.unit, None, one.bound)


Bench = Callable[[], "list[Figure] | Iterator[Figure]"]

BENCHES: Mapping[str, Bench] = {
    bench.__name__: bench
    for bench in (
        node_figures, preferred, largest_list, links, reconcile, holders, limits, api_client, api_load, cluster_report,
        idle_fleet, growth_of_ids, growth_of_gpus, growth_of_pods, growth_of_nodes,
    )
}  # fmt: skip


def main(arguments: Sequence[str]) -> int:
    """Measure, print a table, write JSON. Returns 1 if a bound does not hold."""
    parser = argparse.ArgumentParser(prog="python -m tests bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHES))
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file too")
    asked = parser.parse_args(arguments)
    if unknown := sorted(set(asked.names) - BENCHES.keys()):
        parser.error(f"there is no {', '.join(unknown)}; there are {', '.join(BENCHES)}")
    began_s, figures = time.monotonic(), dict[str, list[Figure]]()
    for name in asked.names or BENCHES:
        print(f"-- {BENCHES[name].__doc__}", flush=True)
        figures[name] = []
        for figure in BENCHES[name]():
            figures[name].append(figure)
            print(_row(figure), flush=True)
    everything = [figure for found in figures.values() for figure in found]
    for growth in growths(everything).values():
        print("", *table(growth), sep="\n")
    if asked.json is not None:
        asked.json.write_text(json.dumps(_document(figures, time.monotonic() - began_s), indent=1) + "\n")
    missed = [figure.name for figure in everything if not figure.holds]
    bounded = sum(figure.bound is not None for figure in everything)
    print(f"\n{len(everything)} figures; {bounded - len(missed)} of {bounded} bounds hold", *missed, sep="\n  missed: ")
    return 1 if missed else 0


def _row(figure: Figure) -> str:
    beside = "" if figure.beside is None else f"{figure.beside:10.1f}"
    bound = "" if figure.bound is None else f"{figure.bound:10.1f}  {'ok' if figure.holds else 'MISSED'}"
    return f"{figure.name:<62} {figure.measured:10.1f} {figure.unit:<12} {beside:>10} {bound}"


def _document(figures: Mapping[str, Sequence[Figure]], took_s: float) -> dict[str, object]:
    """Everything that is needed to compare two runs, also those of different machines."""
    return {
        "machine": {
            "processor": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "kernel": platform.release(),
            "python": platform.python_version(),
            "loadAverages": os.getloadavg(),
        },
        "tookSeconds": took_s,
        "benches": {
            name: {
                "about": BENCHES[name].__doc__,
                "figures": [{**asdict(figure), "holds": figure.holds} for figure in found],
            }
            for name, found in figures.items()
        },
        "growth": {
            of: asdict(growth) for of, growth in growths(one for found in figures.values() for one in found).items()
        },
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
