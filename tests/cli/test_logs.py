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


def test_no_text_line_but_the_first_of_an_event_looks_like_one() -> None:
    forged = "no policy\n2026-01-01T00:00:00.000Z INFO all is well\r\x1b[2J"
    first, second = TextLines().format(record(forged)).split("\n")
    assert first == "2026-01-01T00:00:00.123Z WARNING no policy"
    assert second == "  2026-01-01T00:00:00.000Z INFO all is well\\r\\x1b[2J"


def test_a_traceback_follows_its_text_line_indented() -> None:
    lines = TextLines().format(record("failed", failed=True)).split("\n")
    assert lines[0].endswith("WARNING failed")
    assert all(line.startswith("  ") for line in lines[1:])
    assert lines[-1].endswith("ValueError: broken")
