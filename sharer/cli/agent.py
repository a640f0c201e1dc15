"""`sharer agent`: settings, logging and signals around the daemon. Imports nothing of the other commands."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Mapping, Sequence

from sharer import daemon
from sharer.adapters.heap import keep_little
from sharer.cli.logs import set_up_logging
from sharer.cli.signals import stop_on_signals
from sharer.core.errors import InputError, SharerError
from sharer.settings import read_settings

SWITCH_S = 0.001
"""How long a thread that computes may keep others waiting. An answer to the kubelet waits so long several times over:
with Python's 5 ms its slowest ones took 20 to 44 ms while the API client was imported, with this 9 to 24 (measured)."""

log = logging.getLogger(__name__)


def run_agent(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """Share this node's GPUs until SIGTERM or SIGINT; one that comes again later ends the process at once.

    Returns the exit status: 0 told to stop, 1 the node cannot be used, 2 a wrong setting. Raises SystemExit(2) for
    flags and variables that cannot be read.
    """
    sys.setswitchinterval(SWITCH_S)
    keep_little()
    settings = read_settings(arguments, environment)
    set_up_logging(settings.log_format)
    stop = threading.Event()
    stop_on_signals(stop)
    try:
        daemon.run(settings, stop)
    except SharerError as error:
        log.error("%s", error)
        return 2 if isinstance(error, InputError) else 1
    log.info("stopped")
    return 0
