"""`sharer agent`: settings, logging and signals around the daemon. Imports nothing of the other commands."""

from __future__ import annotations

import logging
import signal
import sys
import threading
from collections.abc import Mapping, Sequence

from sharer import daemon
from sharer.cli.logs import set_up_logging
from sharer.core.errors import InputError, SharerError
from sharer.settings import read_settings

_SIGNALS = (signal.SIGTERM, signal.SIGINT)

SWITCH_S = 0.001
"""How long a thread that computes may keep others waiting. An answer to the kubelet waits so long several times over:
with Python's 5 ms its slowest ones took 20 to 44 ms while the API client was imported, with this 9 to 24 (measured)."""

log = logging.getLogger(__name__)


def run_agent(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """Share this node's GPUs until SIGTERM or SIGINT; a second signal ends the process at once.

    Returns the exit status: 0 told to stop, 1 the node cannot be used, 2 a wrong setting. Raises SystemExit(2) for
    flags and variables that cannot be read.
    """
    sys.setswitchinterval(SWITCH_S)
    settings = read_settings(arguments, environment)
    set_up_logging(settings.log_format)
    stop = threading.Event()
    _stop_on_signals(stop)
    try:
        daemon.run(settings, stop)
    except SharerError as error:
        log.error("%s", error)
        return 2 if isinstance(error, InputError) else 1
    log.info("stopped")
    return 0


def _stop_on_signals(stop: threading.Event) -> None:
    """Set `stop` at the first signal.

    A thread waits for it: a handler would run in the main thread, which may just then hold the lock inside `stop`. So
    the signals are blocked in every thread, and the second one is let through to its default action. Children inherit
    the mask.
    """
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)

    def wait() -> None:
        number = signal.sigwait(_SIGNALS)
        log.info("stopping: received %s", signal.Signals(number).name)
        stop.set()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        threading.Event().wait()

    threading.Thread(target=wait, name="sharer-signals", daemon=True).start()
