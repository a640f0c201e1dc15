"""`python -m tests TASK [ARGUMENT…]`, from the repository's root."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tests.tasks import TASKS


def main(arguments: Sequence[str]) -> int:
    """Run the task that the first argument names. Returns the exit status: 2 for a task that does not exist."""
    match arguments:
        case [name, *rest] if name in TASKS:
            return TASKS[name](rest)
        case ["-h" | "--help"]:
            print(usage())
            return 0
        case _:
            print(usage(), file=sys.stderr)
            return 2


def usage() -> str:
    lines = [f"  {name:<9} {task.__doc__}" for name, task in TASKS.items()]
    return "\n".join(("usage: python -m tests TASK [ARGUMENT…]", "", *lines))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
