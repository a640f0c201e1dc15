"""Every interval and deadline of the kubelet link, with its reason."""

from __future__ import annotations

import random

from sharer.core.values import dataclass

_JITTER = 1.25


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeletTimings:
    """All in seconds. The defaults are for real nodes; tests pass shorter ones."""

    register_deadline_s: float = 20.0  # the kubelet dials us for up to 10 s inside; below 15 s its reason is lost
    own_socket_deadline_s: float = 5.0  # from start to our own server's first answer, on a very busy node
    first_read_deadline_s: float = 5.0  # from Register's answer to ListAndWatch; usually milliseconds
    retry_first_s: float = 1.0  # each registration makes the kubelet drop the list for a moment: never faster
    retry_cap_s: float = 30.0
    settled_s: float = 10.0  # a registration that held for so long was good; failures are counted from zero again
    handover_s: float = 0.25  # for the kubelet to act on the old stream's end, which kills what is registered then
    probe_s: float = 0.25  # while nobody listens on kubelet.sock; one connection attempt costs some 50 µs
    away_s: float = 15.0  # a kubelet restarts in less; longer is worth a warning
    burst_s: float = 0.05  # changes so close together are one message: each makes the kubelet fsync its checkpoint
    others_told_s: float = 1.0  # a new name waits so long at most for lists in which its IDs may have changed
    others_look_s: float = 0.005  # between two looks whether they were sent
    grace_s: float = 1.0  # for calls in flight when a server ends
    stop_deadline_s: float = 5.0

    def retry_delay_s(self, failures: int) -> float:
        """How long to wait after so many failures in a row; 1 or more. Doubles, with jitter, between first and cap."""
        doubled = self.retry_first_s * 2.0 ** min(failures - 1, 16)
        return min(doubled, self.retry_cap_s / _JITTER) * random.uniform(1.0, _JITTER)
