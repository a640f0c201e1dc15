"""What the announcing thread has told the API server and asked of it: it writes that here, the daemon takes it over."""

from __future__ import annotations

from sharer.core.told import EventCounts, Evictions
from sharer.core.values import replace
from sharer.flows.state import NodeState

WITHOUT_API = (
    "the policy says onExceed: evict, and no pod can be evicted: the agent runs with --kubernetes off; containers above"
    " their promise are only reported"
)


class Told:
    """Frozen values, replaced whole: `evictions` by the step that evicts, `events` by the one that tells."""

    def __init__(self, *, has_api: bool) -> None:
        """`has_api`: there is an API server to talk to, connected or not."""
        self._has_api = has_api
        self.evictions = Evictions()
        self.events = EventCounts()

    def take_over(self, state: NodeState) -> str | None:
        """Bring it into the view. Returns why nobody can be evicted although the policy says so; None: otherwise.

        What the API server answers to an eviction is told by the step itself.
        """
        policy = state.view.policy.policy
        wanted = policy is not None and policy.evicts
        problem = self.evictions.problem if self._has_api else WITHOUT_API
        evictions = replace(self.evictions, problem=problem if wanted else None)
        if evictions == state.view.evictions:
            evictions = state.view.evictions
        state.change(evictions=evictions, events=self.events)
        return WITHOUT_API if wanted and not self._has_api else None
