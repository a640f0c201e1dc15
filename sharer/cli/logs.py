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
    """`2026-01-31T12:00:00.123Z INFO found 2 × NVIDIA A100`, and a traceback below where there is one."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")

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


def _utc(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
