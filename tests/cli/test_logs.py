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
from pathlib import Path

from sharer.cli.logs import MOST_BYTES, MOST_LINES, JsonLines, PatientHandler, TextLines
from tests.fakes.full_disk import full_disk


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
    missing = sum(int(line.split()[2]) for line in said if "events are missing here" in line)
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
        written(handler)
        os.read(reading, 4096)
        handler.handle(record("there is room again"))
        written(handler)
        missing, last = os.read(reading, 4096).decode().splitlines()
    assert "WARNING 3 events are missing here" in missing
    assert last.endswith("there is room again")


def test_long_events_that_wait_take_no_more_memory_than_short_ones_and_the_last_one_is_kept() -> None:
    """Neighbour of P12: a policy's refusal names each of its mistakes."""
    longest = f"the longest {'x' * MOST_BYTES}"
    with full_pipe() as (reading, writing):
        handler = PatientHandler(writing)
        handler.setFormatter(TextLines())
        for number in range(2 * MOST_BYTES // 10_000):
            handler.handle(record(f"event {number} {'x' * 10_000}"))
        handler.handle(record("the next to last"))
        with os.fdopen(os.dup(reading), errors="replace") as log:
            said = [log.readline()]
            while "the next to last" not in said[-1]:
                said.append(log.readline())
            handler.handle(record(longest))
            assert log.readline().endswith(f"{longest}\n")
    kept = [line for line in said if " event " in line]
    missing = sum(int(line.split()[2]) for line in said if "events are missing here" in line)
    assert missing + len(kept) == 2 * MOST_BYTES // 10_000
    assert MOST_BYTES - 20_000 < sum(map(len, kept)) < MOST_BYTES + 20_000, "and the one that was being written"


def test_a_line_that_was_cut_off_by_a_full_disk_spoils_no_other(tmp_path: Path) -> None:
    file = tmp_path / "agent.log"
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    handler = PatientHandler(descriptor)
    handler.setFormatter(TextLines())
    with full_disk(left_bytes=38):
        for number in range(3):
            handler.handle(record(f"event {number}"))
        written(handler)
    handler.handle(record("there is room again"))
    written(handler)
    os.close(descriptor)
    torn, missing, last = file.read_text().splitlines()
    assert torn == "2026-01-01T00:00:00.123Z WARNING event 0"[:38]
    assert "WARNING 3 events are missing here" in missing
    assert last == "2026-01-01T00:00:00.123Z WARNING there is room again"


def written(handler: PatientHandler) -> None:
    """Wait until it has done what it could with every event."""
    for _ in range(30):  # seconds, at most
        handler.flush()


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
    written(handler)
    os.close(writing)
    assert [one.name for one in threading.enumerate()].count("sharer-log") >= 1, "and it goes on"
