from __future__ import annotations

import fcntl
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from sharer.cli.logs import MOST_LINES, JsonLines, PatientHandler, TextLines


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


@contextmanager
def full_pipe() -> Iterator[tuple[int, int]]:
    """Both ends of a pipe that takes not one byte more until somebody reads."""
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    os.write(writing, b"x" * 4095 + b"\n")
    try:
        yield reading, writing
    finally:
        os.close(writing)
        os.close(reading)


def test_nobody_waits_for_a_log_that_is_not_read_and_what_is_missing_is_counted() -> None:
    """Neighbour of P12: a refused Allocate is logged before it is answered; the kubelet would wait with every pod."""
    with full_pipe() as (reading, writing):
        handler = PatientHandler(writing)
        handler.setFormatter(TextLines())
        for number in range(MOST_LINES + 11):
            handler.handle(record(f"event {number}"))
        with os.fdopen(os.dup(reading), errors="replace") as log:
            said: list[str] = []
            while not said or not said[-1].endswith(f"event {MOST_LINES + 10}\n"):
                said.append(log.readline())
    [missing] = [int(line.split()[2]) for line in said if "events are missing here" in line]
    assert missing in (10, 11)  # the first event may have been taken up before the others came
    assert sum(" event " in line for line in said) == MOST_LINES + 11 - missing


def test_what_could_not_be_written_is_counted_as_well() -> None:
    """Neighbour of P12: a log in a file on a full disk, or in a pipe that does not wait, fails at once."""
    with full_pipe() as (reading, writing):
        os.set_blocking(writing, False)
        handler = PatientHandler(writing)
        handler.setFormatter(TextLines())
        for number in range(3):
            handler.handle(record(f"event {number}"))
        handler.flush()
        os.read(reading, 4096)
        handler.handle(record("there is room again"))
        handler.flush()
        missing, last = os.read(reading, 4096).decode().splitlines()
    assert "WARNING 3 events are missing here" in missing
    assert last.endswith("there is room again")


def test_a_process_without_standard_error_logs_nothing_and_goes_on() -> None:
    """What it opens next would have that number, and is no place for a log."""
    program = "import logging, sharer.cli.logs as logs; logs.set_up_logging('text'); logging.info('said'); print('on')"
    closed = ["sh", "-c", 'exec "$@" 2>&-', "sh", sys.executable, "-c", program]
    assert subprocess.run(closed, capture_output=True, text=True, check=True, timeout=60).stdout == "on\n"


def test_what_was_logged_is_written_before_the_end_and_a_reader_that_is_gone_is_no_failure() -> None:
    reading, writing = os.pipe()
    handler = PatientHandler(writing)
    handler.handle(record("the last word"))
    handler.flush()
    assert os.read(reading, 100) == b"the last word\n"
    os.close(reading)
    handler.handle(record("to nobody"))
    handler.flush()
    os.close(writing)
    assert [one.name for one in threading.enumerate()].count("sharer-log") >= 1, "and it goes on"
