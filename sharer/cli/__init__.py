"""The command line: a module for each command, or a room where one takes several (`report`, `policy`, `doctor`).

`group` has the list of commands. What they share is beside them: `options`, `inputs`, `cluster_access`, `show`, and for
those that run for long `logs` and `signals`.

`sharer agent` takes a way of its own: it is measured, and must import neither click nor rich nor anything else of the
other commands. Those are imported when they are asked for, so that help is quick.
"""

from __future__ import annotations

import gc
import os
import sys


def main() -> None:
    """Run the command that this process was started with, and exit with its status.

    0 fine, 1 failed or a check found something, 2 wrong input, 3 partial data.
    """
    arguments = sys.argv[1:]
    if arguments[:1] == ["agent"]:
        # gRPC's core writes lines of its own to standard error whenever a kubelet dies; the log is one event a line.
        os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
        gc.disable()  # until the kubelet has registered us: looking for garbage took a tenth of the start (measured)
        from sharer.cli.agent import run_agent

        sys.exit(run_agent(arguments[1:], os.environ))

    from sharer.cli.group import sharer

    sharer.main(arguments, prog_name="sharer")


def main_of_kubectl() -> None:
    """The same as `kubectl sharer`: kubectl runs `kubectl-sharer` with the arguments that stand behind its name."""
    from sharer.cli.group import sharer

    sharer.main(sys.argv[1:], prog_name="kubectl sharer")
