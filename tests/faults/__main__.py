"""`python -m tests faults [--seeds N] [--seed S] [--steps K] [--jobs J]`: many seeds, or one of them again."""

from __future__ import annotations

import argparse
import contextlib
import io
import multiprocessing
import sys
import time
from collections.abc import Sequence as ListOf
from concurrent.futures import ProcessPoolExecutor, as_completed

from tests.faults.run import Outcome, run, run_quietly
from tests.faults.sequence import BURSTS, sequence

SEEDS = 20
JOBS = 6  # seeds at a time: most of a seed is waiting


def main(arguments: ListOf[str]) -> int:
    """Returns the exit status: 1 if a seed failed."""
    parser = argparse.ArgumentParser(prog="python -m tests faults", description=__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"how many seeds, from 0; default {SEEDS}")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--seed", type=int, help="only this one, told step by step")
    parser.add_argument("--steps", type=int, default=BURSTS, help=f"bursts of steps a seed; default {BURSTS}")
    parser.add_argument("--jobs", type=int, default=JOBS, help=f"seeds at a time; default {JOBS}")
    asked = parser.parse_args(arguments)
    if asked.seed is not None:
        with contextlib.redirect_stdout(io.StringIO()):  # the node shows all logs at its end
            outcome = run(sequence(asked.seed, asked.steps), lambda line: print(line, file=sys.stderr, flush=True))
        print(*(line for part in outcome.slow for line in part), sep="\n")
        return _show([outcome], asked.steps)
    began_s = time.monotonic()
    outcomes = []
    context = multiprocessing.get_context("spawn")  # gRPC does not survive a fork
    with ProcessPoolExecutor(asked.jobs, mp_context=context) as pool:
        seeds = range(asked.first, asked.first + asked.seeds)
        for done in as_completed([pool.submit(run_quietly, seed, asked.steps) for seed in seeds]):
            outcome = done.result()
            outcomes.append(outcome)
            verdict = "FAILED" if outcome.problem else "passed"
            print(
                f"seed {outcome.seed} {verdict} in {outcome.took_s:.1f} s, slowest to settle {outcome.slowest_s:.1f} s",
                flush=True,
            )
    for one in outcomes:
        if one.slowest_s > 12:
            print(*one.lines, *(line for part in one.slow for line in part), sep="\n")
    status = _show([one for one in outcomes if one.problem is not None], asked.steps)
    lags_s = sorted(lag_s for one in outcomes for lag_s in one.lags_s)
    if lags_s:
        median_s, late_s = lags_s[len(lags_s) // 2], lags_s[len(lags_s) * 95 // 100]
        print(f"settled {len(lags_s)} times: median {median_s:.2f} s, 95% {late_s:.2f} s, slowest {lags_s[-1]:.2f} s")
    failed = sorted(one.seed for one in outcomes if one.problem is not None)
    print(f"faults: {len(outcomes) - len(failed)} of {len(outcomes)} seeds passed in {time.monotonic() - began_s:.0f} s")
    if failed:
        print(f"failed: {', '.join(map(str, failed))}")
    return status


def _show(outcomes: ListOf[Outcome], bursts: int) -> int:
    for outcome in sorted(outcomes, key=lambda one: one.seed):
        if outcome.problem is None:
            print(f"seed {outcome.seed} passed in {outcome.took_s:.1f} s")
            continue
        print(f"\n== seed {outcome.seed} FAILED", *outcome.lines, outcome.problem, sep="\n")
        more = "" if bursts == BURSTS else f" --steps {bursts}"
        print(f"-- again: python -m tests faults --seed {outcome.seed}{more}")
    return 1 if any(outcome.problem is not None for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
