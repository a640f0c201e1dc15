from __future__ import annotations

import json
import logging
import sys

from sharer.cli.logs import JsonLines, TextLines


def record(message: str, *, failed: bool = False) -> logging.LogRecord:
    error = None
    if failed:
        try:
            raise ValueError("broken")
        except ValueError:
            error = sys.exc_info()
    made = logging.LogRecord("sharer.daemon", logging.WARNING, "file.py", 1, "%s", (message,), error)
    made.created = 1767225600.1239
    return made


def test_a_text_line_begins_with_the_time_in_utc_to_the_millisecond() -> None:
    assert TextLines().format(record("found 2 × L4")) == "2026-01-01T00:00:00.123Z WARNING found 2 × L4"


def test_a_json_line_is_one_object_whatever_the_message_holds() -> None:
    line = JsonLines().format(record('two\nlines and "quotes" ×'))
    assert "\n" not in line
    assert json.loads(line) == {
        "time": "2026-01-01T00:00:00.123Z",
        "level": "warning",
        "logger": "sharer.daemon",
        "message": 'two\nlines and "quotes" ×',
    }


def test_a_traceback_stays_within_its_json_line() -> None:
    line = JsonLines().format(record("failed", failed=True))
    assert "\n" not in line
    assert json.loads(line)["traceback"].endswith("ValueError: broken")
