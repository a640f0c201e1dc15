"""An agent's HTTP pages, as a probe or a scraper reads them."""

from __future__ import annotations

import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable

from tests.e2e.process import PATIENCE_S, Agent

HTTP = "--http=127.0.0.1:0"


def read(agent: Agent, path: str, method: str = "GET") -> tuple[int, str]:
    """Status and body of a page of this agent."""
    line = agent.wait_log("metrics and probes are served on 127.0.0.1 port")
    request = urllib.request.Request(f"http://127.0.0.1:{line.rsplit(' ', 1)[1]}{path}", method=method)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def metrics(agent: Agent) -> dict[str, float]:
    """Every series by its name and labels, as they are written."""
    status, text = read(agent, "/metrics")
    assert status == 200, text
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    found = {name: float(value) for name, _, value in lines}
    assert len(found) == len(lines), "a series is there twice"
    return found


def wait_page(agent: Agent, path: str, holds: Callable[[int, str], bool]) -> tuple[int, str]:
    """Ask until the page is as it should be; nobody tells when to ask again."""
    until_s = time.monotonic() + PATIENCE_S
    found = read(agent, path)
    while not holds(*found):
        assert time.monotonic() < until_s, found
        threading.Event().wait(0.05)
        found = read(agent, path)
    return found
