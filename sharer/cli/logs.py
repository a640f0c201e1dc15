"""The agent's log on standard error: one line an event, as text or as JSON."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime


def set_up_logging(log_format: str) -> None:
    """Log from INFO on, as "text" or as "json"."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if log_format == "json" else TextLines())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)


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
