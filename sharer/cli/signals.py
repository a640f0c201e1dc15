"""How a process that runs for long is told to stop."""

from __future__ import annotations

import logging
import signal
import threading

_SIGNALS = (signal.SIGTERM, signal.SIGINT)

log = logging.getLogger(__name__)


def forget_interrupt() -> None:
    """Let Python exit with a status of ours after a KeyboardInterrupt that was caught.

    It ends a process by SIGINT if the interrupt went through an `exec`, as that of a dataclass in a module that is just
    being imported, though it was caught then; an `exec` that goes well takes that back (CPython's `run_eval_code_obj`).
    """
    exec("")


def stop_on_signals(stop: threading.Event) -> None:
    """Set `stop` at the first signal; a second one ends the process at once. Call it before any thread is started.

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
