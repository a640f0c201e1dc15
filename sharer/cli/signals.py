"""How a process that runs for long is told to stop."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType

SAME_WISH_S = 1.0
"""What comes within this time of the first signal is the same wish: timeout(1) tells a process, and then its group."""

_SIGNALS = (signal.SIGTERM, signal.SIGINT)

log = logging.getLogger(__name__)


def forget_interrupt() -> None:
    """Let Python exit with a status of ours after a KeyboardInterrupt that was caught.

    It ends a process by SIGINT if the interrupt went through an `exec`, as that of a dataclass in a module that is just
    being imported, though it was caught then; an `exec` that goes well takes that back (CPython's `run_eval_code_obj`).
    """
    exec("")


def stop_on_signals(stop: threading.Event, same_wish_s: float = SAME_WISH_S) -> None:
    """Set `stop` at the first signal; one that comes later ends the process at once. Call it before any thread starts.

    A thread waits for it: a handler would run in the main thread, which may just then hold the lock inside `stop`. So
    the signals are blocked in every thread, and after `same_wish_s` let through to their default action. Children
    inherit the mask.
    """
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)

    def wait() -> None:
        number = signal.sigwait(_SIGNALS)
        log.info("stopping: received %s", signal.Signals(number).name)
        stop.set()
        threading.Event().wait(same_wish_s)
        while signal.sigtimedwait(_SIGNALS, 0) is not None:
            pass
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        threading.Event().wait()

    threading.Thread(target=wait, name="sharer-signals", daemon=True).start()


@contextlib.contextmanager
def exit_on_sigterm(same_wish_s: float = SAME_WISH_S) -> Iterator[None]:
    """Let SIGTERM end the program as Ctrl-C does, so that nothing is left; one that comes later ends it at once."""
    first_s: float | None = None

    def end(number: int, _frame: FrameType | None) -> None:
        nonlocal first_s
        if first_s is None:
            first_s = time.monotonic()
            raise SystemExit(128 + number)
        if time.monotonic() - first_s >= same_wish_s:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
