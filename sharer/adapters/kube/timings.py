"""Every interval, deadline and limit of the API client, with its reason."""

from __future__ import annotations

import random

from sharer.core.values import dataclass

_JITTER = 0.5  # up to so much earlier or later: nodes that lost the API server together must not come back together


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeTimings:
    """All in seconds but `page_limit`. The defaults are for real clusters; tests pass shorter ones."""

    connect_timeout_s: float = 5.0
    answer_timeout_s: float = 30.0  # without a byte, in the middle of a whole answer
    watch_min_s: int = 240  # the server ends a watch after a random time between these two, in whole seconds
    watch_max_s: int = 300
    watch_slack_s: float = 15.0  # so much longer than the server's timeout the client waits for a byte (P34)
    settled_s: float = 10.0  # a watch that lasted so long was good; failures are counted from zero again
    retry_first_s: float = 1.0
    retry_cap_s: float = 30.0
    slow_retry_s: float = 60.0  # after a refusal that only a person can cure: 403, 404, 422
    retry_after_cap_s: float = 300.0  # a Retry-After beyond this is taken for a mistake
    resync_s: float = 3600.0  # everything is listed again so often, should an event ever have been lost (P29)
    page_limit: int = 100  # objects a page: most nodes' pods are one or two, and decoding stays a small piece of work

    def backoff_s(self, failures: int) -> float:
        """How long to wait after so many failures in a row; 1 or more. Doubles from first to cap, with jitter."""
        doubled = min(self.retry_first_s * 2.0 ** min(failures - 1, 16), self.retry_cap_s)
        return doubled * random.uniform(1.0 - _JITTER, 1.0 + _JITTER)

    def told_s(self, retry_after_s: float) -> float:
        """How long to wait when the server said how long: never less, and up to half as long again."""
        return min(retry_after_s, self.retry_after_cap_s) * random.uniform(1.0, 1.0 + _JITTER)

    def slow_s(self) -> float:
        """How long to wait when only a person can help."""
        return self.slow_retry_s * random.uniform(1.0, 1.0 + _JITTER)

    def watch_s(self) -> int:
        """How long the server is asked to keep a watch open."""
        return random.randint(self.watch_min_s, self.watch_max_s)
