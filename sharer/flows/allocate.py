"""The kubelet's questions about one resource, answered from memory.

Allocate is a pure function of the IDs and the node's facts. It refuses only what cannot run: an unknown ID, a GPU at
fault. Anything else is granted, even if our view says that the slice is in use: init containers, a lost checkpoint
and a force delete make that legal (kubelet-contract §17.32), and a refusal is a storm of failed pods.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sharer.core.edits import ContainerEdits
from sharer.core.enforcer import Editor
from sharer.core.errors import RequestError
from sharer.core.grant import make_grant
from sharer.core.injection import container_edits
from sharer.core.listing import fault_of
from sharer.core.placement import prefer, prefer_linked
from sharer.flows.inbox import Allocated, Hint, News
from sharer.flows.state import NodeState


class Answers:
    """Implements core.ports.ResourceAnswers for one resource."""

    def __init__(
        self, state: NodeState, resource: str, enforcers: Sequence[Editor], tell: Callable[[News], None]
    ) -> None:
        """`tell` hears of every answer that was given. It returns at once."""
        self._state = state
        self._resource = resource
        self._enforcers = enforcers
        self._tell = tell

    def allocate(self, ids: Sequence[str]) -> ContainerEdits:
        """What a container holding these IDs is given. Raises RequestError."""
        view = self._state.view
        offer = view.offers.get(self._resource)
        if offer is None or view.facts is None:
            raise RequestError(f"{self._resource} is not offered by this node any more; its policy has changed")
        if not ids:
            raise RequestError(
                f"a request for {self._resource} names no device ID; the kubelet should name at least one"
            )
        slices = []
        for text in ids:
            one = offer.slices.get(text)
            if one is None:
                raise RequestError(
                    f"device ID {text!r} is not one that sharer offers as {self._resource} on this node; if another"
                    " device plugin serves the same resource name, remove one of them"
                )
            fault = fault_of(one, view.faults)
            if fault is not None:
                raise RequestError(
                    f"device ID {text!r} cannot run: GPU {one.gpu_uuid} is at fault: {fault}; delete the pod to get"
                    " another GPU"
                )
            slices.append(one.id)
        edits = container_edits(make_grant(slices, view.facts.devices), view.facts, self._enforcers)
        self._tell(Allocated(resource=self._resource, ids=tuple(ids)))
        return edits

    def prefer(self, available: Sequence[str], must_include: Sequence[str], size: int) -> list[str]:
        """Which of the available IDs to take (core/placement). Never fails."""
        offer = self._state.view.offers.get(self._resource)
        if offer is None:
            return list(dict.fromkeys([*must_include, *sorted(available)]))[: max(size, 0)]
        if offer.links is not None:
            return prefer_linked(offer.places, offer.links, available, must_include, size)
        return prefer(offer.places, offer.totals, offer.placement, available, must_include, size)

    def pre_start(self, ids: Sequence[str]) -> None:
        """Nothing has to be done before a start; that there is one is worth a look."""
        self._tell(Hint.START)
