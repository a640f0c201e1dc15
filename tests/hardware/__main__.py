"""Asks the questions, prints the answers. `--library` and `--cgroup-root` name other places than the usual."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from tests.hardware.node import Node, Skipped
from tests.hardware.questions import QUESTIONS

WITHIN_S = 540.0  # then no further question is asked: all of it is to take less than ten minutes


def main() -> int:
    """Returns 0 also where nothing could be asked: then it says why."""
    parser = argparse.ArgumentParser(prog="python -m tests.hardware", description=__doc__)
    parser.add_argument("--library", type=Path, help="libnvidia-ml.so.1 (default: as the loader finds it)")
    parser.add_argument("--cgroup-root", type=Path, default=Path("/sys/fs/cgroup"))
    arguments = parser.parse_args()
    try:
        node = Node(arguments.library, arguments.cgroup_root)
    except Skipped as why:
        print(f"skipped: {why}")
        return 0
    node.open()
    begun_s = time.monotonic()
    try:
        for number, question in enumerate(QUESTIONS, 1):
            print(f"{number:2}. {(question.__doc__ or '').strip()}")
            try:
                answer = "not asked: the time is over" if time.monotonic() - begun_s > WITHIN_S else question(node)
            except Skipped as why:
                answer = f"skipped: {why}"
            except (OSError, ValueError) as error:
                answer = f"failed: {error}"
            print(f"    {answer}", flush=True)
    finally:
        node.close()
    print(f"{time.monotonic() - begun_s:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
