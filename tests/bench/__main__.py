"""Every figure of the issues, in one run, beside the bare plugin or a stated floor.

python -m tests bench [NAME…] [--json FILE]    NAME: one of BENCHES; without one, all of them
"""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from tests.bench.figures import Figure
from tests.bench.holders import api_client, api_load, holders, reconcile
from tests.bench.plugin import growth_of_gpus, growth_of_ids, largest_list, links, node_figures, preferred

BENCHES = (
    node_figures, preferred, largest_list, links, reconcile, holders, api_client, api_load, growth_of_ids,
    growth_of_gpus,
)  # fmt: skip


def main(arguments: Sequence[str]) -> int:
    """Measure everything, print a table. Returns 1 if a bound does not hold."""
    figures: list[Figure] = []
    only = [argument for argument in arguments if argument in {bench.__name__ for bench in BENCHES}]
    for bench in BENCHES if not only else [b for b in BENCHES if b.__name__ in only]:
        for figure in bench():
            figures.append(figure)
            print(_row(figure), flush=True)
    if "--json" in arguments:
        where = Path(arguments[list(arguments).index("--json") + 1])
        where.write_text(
            json.dumps(
                {"machine": platform.processor() or platform.machine(), "figures": [asdict(f) for f in figures]},
                indent=1,
            )
        )
    missed = [figure.name for figure in figures if not figure.holds]
    print(f"{len(figures) - len(missed)} of {len(figures)} figures within their bounds", *missed, sep="\n  missed: ")
    return 1 if missed else 0


def _row(figure: Figure) -> str:
    beside = "" if figure.beside is None else f"{figure.beside:10.1f}"
    bound = "" if figure.bound is None else f"{figure.bound:10.1f}  {'ok' if figure.holds else 'MISSED'}"
    return f"{figure.name:<52} {figure.measured:10.1f} {figure.unit:<4} {beside:>10} {bound}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
