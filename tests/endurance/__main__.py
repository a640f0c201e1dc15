"""`python -m tests endurance`: a whole day, or a part of it."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from tests.endurance.day import Day, live_through
from tests.endurance.growth import Sample, grown


def main(arguments: Sequence[str]) -> int:
    """Prints each hour as it ends. Returns the exit status: 1 if something has grown."""
    whole = Day()
    parser = argparse.ArgumentParser(prog="python -m tests endurance", description=__doc__)
    for name, default in asdict(whole).items():
        parser.add_argument(f"--{name}", type=int, default=default, help=f"default {default}")
    parser.add_argument("--json", type=Path, help="write the figures to this file too")
    asked = parser.parse_args(arguments)
    began_s, samples = time.monotonic(), list[Sample]()
    day = Day(allocations=asked.allocations, recuts=asked.recuts, restarts=asked.restarts, hours=asked.hours)
    print("hour   pods refused   RSS MiB  threads  files  Allocate µs  pod start ms  agent's CPU ms a pod", flush=True)
    printed = sys.stdout
    with contextlib.redirect_stdout(io.StringIO()):  # what the node prints at its end
        for one in live_through(day):
            samples.append(one)
            print(_row(one), file=printed, flush=True)
    found = list(grown(samples))
    if asked.json is not None:
        document = {"day": asdict(day), "hours": [asdict(one) for one in samples], "grown": found}
        asked.json.write_text(json.dumps(document, indent=1) + "\n")
    print(*(found or ["nothing has grown"]), sep="\n")
    print(f"endurance: {sum(one.pods for one in samples)} pods in {time.monotonic() - began_s:.0f} s")
    return 1 if found else 0


def _row(one: Sample) -> str:
    return (
        f"{one.hour:4} {one.pods:6} {one.refused:7} {one.resident_mib:9.2f} {one.threads:8} {one.files:6}"
        f" {one.allocate_us:12.0f} {one.start_ms:13.2f} {one.busy_ms:21.2f}"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
