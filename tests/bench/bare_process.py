"""The process that the agent is compared with:
`python -m tests.bench.bare_process FOLDER RESOURCE IDS-FILE [DRIVER MODULE…]`.

A bare plugin: the same generated code, 8 threads, the same list, and answers made beforehand. With the driver's library
open and the agent's third-party modules imported too, it weighs what the agent would weigh without product code: the
library has memory of its own, whoever opens it (DESIGN §10: 14 MiB of the real one, 0.6 of the fake).
"""

from __future__ import annotations

import importlib
import signal
import sys
from pathlib import Path

from tests.fakes.bare_plugin import BarePlugin, allocation, device_list, preference


def main(folder: str, resource: str, ids_file: str, driver: str | None = None, *modules: str) -> None:
    """Serve, register, and stay."""
    if driver is not None:
        import ctypes  # a bare plugin is not to start later for it

        assert ctypes.CDLL(driver).nvmlInit_v2() == 0
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
