"""Whether this node can be given GPU pods, and whether the agent is alive at all: what probes ask.

*Alive* is who goes round. A round can take as long as NVML takes to open, so only a long silence is the end. *Ready* is
who has done all that a pod needs: the policy is read, the driver answers, the kubelet reads our lists, and what we know
is recent. The API server is not needed for that; but one that was followed and is lost for long means that releases
and policies are old (bug case P34).
"""

from __future__ import annotations

from collections.abc import Mapping

from sharer.core.known import Known

ALIVE_S = 150.0  # NVML may take 90 s to open on a large node without persistence, and a call 10 s
SYNC_S = 60.0  # the kubelet is asked every 10 s at the latest
API_SYNC_S = 600.0  # a healthy watch tells every minute; the API server's own troubles should not flap a fleet
_FOLLOWED = "pods"


def why_not_alive(went_round_s: float, now_s: float) -> str | None:
    """Why the agent should be restarted; None: it goes round."""
    silent_s = now_s - went_round_s
    return None if silent_s < ALIVE_S else f"the agent has not gone round for {silent_s:.0f} s"


def why_not_ready(known: Known, registered: Mapping[str, bool] | None, now_s: float) -> str | None:
    """Why no pod should count on this node's slices, in one sentence; None: it may.

    `registered`: by resource, whether the kubelet reads our list; None: no list was made yet.
    """
    policy = known.policy
    if policy.policy is None:
        return f"no policy is in force: {policy.refused or policy.unread or 'it has not been read yet'}"
    if known.paused is not None:
        return known.paused
    if known.inventory is None or known.driver_problem is not None:
        return f"the driver is not known to work: {known.driver_problem or 'it has not been asked yet'}"
    if registered is None:
        return "nothing has been offered yet"
    if missing := sorted(name for name in known.offers if not registered.get(name, False)):
        return f"not registered with the kubelet: {', '.join(missing)}"
    return _what_is_old(known, now_s)


def _what_is_old(known: Known, now_s: float) -> str | None:
    for name in ("checkpoint", "list"):
        status = known.sources.get(name)
        if status is None or status.read_s is None:
            why = None if status is None else status.problem
            return f"the kubelet's {name} has not been read yet" + ("" if why is None else f": {why}")
        if now_s - status.read_s > SYNC_S:
            return f"the kubelet's {name} was last read {now_s - status.read_s:.0f} s ago: {status.problem}"
    followed = known.sources.get(_FOLLOWED)
    if followed is not None and followed.read_s is not None and now_s - followed.read_s > API_SYNC_S:
        return f"the API server was last heard of {now_s - followed.read_s:.0f} s ago: {followed.problem}"
    return None
