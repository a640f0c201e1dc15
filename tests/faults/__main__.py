"""`python -m tests faults`: many seeds, or one of them again, or only what of it makes it fail."""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
import time
from collections.abc import Sequence as ListOf

from tests.faults.run import Outcome, run, run_many
from tests.faults.sequence import BURSTS, Sequence, sequence
from tests.faults.shrink import shrink

SEEDS = 20
JOBS = 8  # seeds at a time: nearly all of a seed is waiting


def main(arguments: ListOf[str]) -> int:
    """Returns the exit status: 1 if a seed failed."""
    parser = argparse.ArgumentParser(prog="python -m tests faults", description=__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"how many; default {SEEDS}")
    parser.add_argument("--first", type=int, default=0, help="the first of them; default 0")
    parser.add_argument("--seed", type=int, help="only this one, told step by step")
    parser.add_argument("--steps", type=int, default=BURSTS, help=f"bursts of steps in a seed; default {BURSTS}")
    parser.add_argument("--jobs", type=int, default=JOBS, help=f"seeds at a time; default {JOBS}")
    parser.add_argument("--only", type=numbers, help="of that one only these steps: 3,7,8")
    parser.add_argument("--shrink", action="store_true", help="drop steps of that one for as long as it fails")
    parser.add_argument("--seconds", type=float, help="begin no further seed after so long")
    asked = parser.parse_args(arguments)
    if asked.seed is None and (asked.only is not None or asked.shrink):
        parser.error("--only and --shrink need --seed")
    if asked.seed is not None:
        wanted = sequence(asked.seed, asked.steps)
        kept = asked.only
        if asked.shrink and still_fails(wanted, frozenset(range(1, wanted.steps + 1))):
            kept = shrink(wanted.steps, lambda left: still_fails(wanted, left))
        outcome = run_loudly(wanted if kept is None else wanted.only(kept))
        show(outcome, asked.steps, kept)
        return 0 if outcome.problem is None else 1
    began_s = time.monotonic()
    outcomes = []
    seeds = range(asked.first, asked.first + asked.seeds)
    for outcome in run_many(seeds, asked.steps, asked.jobs, until_s=began_s + (asked.seconds or float("inf"))):
        outcomes.append(outcome)
        show(outcome, asked.steps)
    lags_s = sorted(lag_s for one in outcomes for lag_s in one.lags_s)
    failed = sorted(one.seed for one in outcomes if one.problem is not None)
    if lags_s:
        median_s, late_s = lags_s[len(lags_s) // 2], lags_s[len(lags_s) * 95 // 100]
        print(f"settled {len(lags_s)} times: median {median_s:.2f} s, 95% {late_s:.2f} s, slowest {lags_s[-1]:.2f} s")
    print(
        f"faults: {len(outcomes) - len(failed)} of {len(outcomes)} seeds passed in {time.monotonic() - began_s:.0f} s"
    )
    if failed:
        print(f"faults: failed: {', '.join(map(str, failed))}")
    return 1 if failed else 0


def numbers(text: str) -> frozenset[int]:
    """From a comma list."""
    return frozenset(map(int, text.split(",")))


def run_loudly(wanted: Sequence) -> Outcome:
    """A sequence whose steps are told as they come. The logs that the node prints at its end are left out."""
    with contextlib.redirect_stdout(io.StringIO()):
        return run(wanted, lambda line: print(line, file=sys.stderr, flush=True))


def still_fails(wanted: Sequence, kept: frozenset[int]) -> bool:
    """Whether a sequence fails with only these steps too; says so."""
    with contextlib.redirect_stdout(io.StringIO()):
        outcome = run(wanted.only(kept))
    said = "passes"
    if outcome.problem is not None:
        said = "fails: " + " ".join(outcome.problem.split("\n\n")[0].split())[:120]
    print(f"{len(kept):3} of {wanted.steps} steps, {outcome.took_s:3.0f} s: {said}", file=sys.stderr, flush=True)
    return outcome.problem is not None


def show(outcome: Outcome, bursts: int, kept: frozenset[int] | None = None) -> None:
    """One line; of a failure everything that helps to find out why, and the command that shows it again."""
    if outcome.problem is None:
        print(
            f"seed {outcome.seed} passed in {outcome.took_s:.0f} s, slowest to settle {outcome.slowest_s:.1f} s",
            flush=True,
        )
        return
    more = "" if bursts == BURSTS else f" --steps {bursts}"
    if kept is not None:
        more += f" --only {','.join(map(str, sorted(kept)))}"
    print(f"== seed {outcome.seed} FAILED", *outcome.lines, outcome.problem, sep="\n")
    print(f"== again: python -m tests faults --seed {outcome.seed}{more}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
