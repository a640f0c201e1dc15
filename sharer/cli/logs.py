"""The agent's log on standard error: one line an event, as text or as JSON.

Nobody waits until a line is written. Who reads the log may stop (a disk that is full, a runtime that hangs), and then
an answer to the kubelet, and with it every pod of the node, would wait for that (bug case P12).
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections import deque
from datetime import UTC, datetime

MOST_LINES = 1000  # that wait to be written; the oldest ones go, and how many is told
MOST_BYTES = 2**20  # … of all these lines: a report's or a traceback's may be long
END_S = 1.0  # at the end, for what still waits


def set_up_logging(log_format: str) -> None:
    """Log from INFO on, as "text" or as "json". Whoever has closed standard error gets no log."""
    stream = sys.__stderr__
    handler = logging.NullHandler() if stream is None else PatientHandler(stream.fileno())
    handler.setFormatter(JsonLines() if log_format == "json" else TextLines())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)


class PatientHandler(logging.Handler):
    """Writes to a file descriptor on a thread of its own, which begins with the first event."""

    def __init__(self, descriptor: int) -> None:
        """`descriptor`, and no stream: a thread that hangs in one would keep its lock from the end of the process."""
        super().__init__()
        self._descriptor = descriptor
        self._changed = threading.Condition()
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._lost = 0
        self._is_writing = False
        self._is_torn = False  # only a part of the last line was written
        self._thread: threading.Thread | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler`. Never waits."""
        try:
            line = f"{self.format(record)}\n".encode(errors="backslashreplace")
        except Exception:  # noqa: BLE001 - as in every handler: a wrong log call must not end its caller
            self.handleError(record)
            return
        with self._changed:
            self._waiting.append(line)
            self._waiting_bytes += len(line)
            while len(self._waiting) > MOST_LINES or (self._waiting_bytes > MOST_BYTES and len(self._waiting) > 1):
                self._waiting_bytes -= len(self._waiting.popleft())
                self._lost += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._write, name="sharer-log", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def flush(self) -> None:
        """Wait for what was logged before, but not for long."""
        with self._changed:
            self._changed.wait_for(lambda: not (self._waiting or self._is_writing), END_S)

    def _write(self) -> None:
        while True:
            with self._changed:
                self._is_writing = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._waiting)
                lost, self._lost = self._lost, 0
                line, self._is_writing = self._waiting.popleft(), True
                self._waiting_bytes -= len(line)
            if lost and self._put(self._line(f"{lost} events are missing here: nobody read the log")):
                lost = 0
            if lost or not self._put(line):  # told with the next line that can be written
                with self._changed:
                    self._lost += lost + 1

    def _put(self, line: bytes) -> bool:
        """Write a line, on a line of its own. False: not the whole of it: a full disk, or nobody reads it any more."""
        left = line = b"\n" + line if self._is_torn else line
        try:
            while left:
                left = left[os.write(self._descriptor, left) :]
        except OSError:
            pass  # what is left says so
        if written := line[: len(line) - len(left)]:
            self._is_torn = not written.endswith(b"\n")
        return not left

    def _line(self, said: str) -> bytes:
        record = logging.LogRecord(__name__, logging.WARNING, "", 0, said, None, None)
        return f"{self.format(record)}\n".encode()


class TextLines(logging.Formatter):
    """`2026-01-31T12:00:00.123Z INFO found 2 × NVIDIA A100`; what is longer than a line goes on below, indented.

    So a line that begins with a time is the agent's own, whatever people write into names, labels and policies.
    """

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """The line, or lines."""
        return "\n  ".join(_printable(line) for line in super().format(record).split("\n"))

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802 - logging's
        """The time in UTC, to the millisecond."""
        return _utc(record)


class JsonLines(logging.Formatter):
    """The same as one JSON object a line: time, level, logger, message, and the traceback where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        import json  # text is the default

        fields = {
            "time": _utc(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False)


def _printable(line: str) -> str:
    """The line without what would move a terminal's cursor, or end it."""
    if line.isprintable():
        return line
    return "".join(letter if letter.isprintable() or letter == "\t" else ascii(letter)[1:-1] for letter in line)


def _utc(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
