"""The process that the agent is compared with: `python -m tests.bench.bare_process FOLDER RESOURCE IDS-FILE [MODULE…]`.

A bare plugin: the same generated code, 8 threads, the same list, and answers made beforehand. With the agent's
third-party modules imported too, it weighs what the agent would weigh without product code.
"""

from __future__ import annotations

import importlib
import signal
import sys
from pathlib import Path

from tests.fakes.bare_plugin import BarePlugin, allocation, device_list, preference


def main(folder: str, resource: str, ids_file: str, *modules: str) -> None:
    """Serve, register, and stay."""
    for module in modules:
        importlib.import_module(module)
    ids = Path(ids_file).read_text().split()
    bare = BarePlugin(Path(folder), resource, device_list(ids))
    bare.options.get_preferred_allocation_available = True
    answer, choice = allocation(envs={"NVIDIA_VISIBLE_DEVICES": ids[0]}), preference(ids[:8])
    bare.on_allocate = lambda _: answer
    bare.on_prefer = lambda _: choice
    bare.serve()
    bare.register()
    signal.pause()


if __name__ == "__main__":
    main(*sys.argv[1:])
