"""A running agent's report, as `sharer report` reads it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from sharer.cli.report.command import read_report
from sharer.core.errors import NodeError
from sharer.core.report.node import NodeReport
from tests.e2e.node import Node
from tests.e2e.process import PATIENCE_S


def wait_report(node: Node, holds: Callable[[NodeReport], bool], what: str) -> NodeReport:
    """Ask until the report is as it should be; nobody tells when to ask again."""
    until_s = time.monotonic() + PATIENCE_S
    found: NodeReport | NodeError | None = None
    while time.monotonic() < until_s:
        try:
            found = read_report(node.run_dir)
        except NodeError as error:
            found = error
        else:
            if holds(found):
                return found
        threading.Event().wait(0.05)
    raise AssertionError(f"not reported: {what}\n{found}")
