"""The kubelet's questions about one resource, answered from memory.

Allocate is a pure function of the IDs and the node's facts. It refuses only what cannot run: an unknown ID, a GPU at
fault, an MPS slice whose daemon does not serve (core/mps/service says why). Anything else is granted, even if our view
says that the slice is in use: init containers, a lost checkpoint and a force delete make that legal
(kubelet-contract §17.32), and a refusal is a storm of failed pods.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field

from sharer.core.edits import ContainerEdits, NodeFacts
from sharer.core.enforcer import Editor
from sharer.core.errors import RequestError
from sharer.core.grant import make_grant
from sharer.core.injection import container_edits
from sharer.core.mps.service import MpsServices
from sharer.core.offers import Faults, Offer, fault_of
from sharer.core.slices.placement import prefer, prefer_linked
from sharer.core.values import dataclass
from sharer.flows.inbox import Allocated, Hint, News
from sharer.flows.state import NodeState, NodeView

MAX_REMEMBERED = 1024  # answers; a node's slices are fewer, and asked for in few combinations


@dataclass(slots=True)
class _Answered:
    """Answers that were given, as long as everything they follow from is the same object."""

    offer: Offer | None
    facts: NodeFacts | None
    faults: Faults
    mps: MpsServices
    edits: dict[tuple[str, ...], ContainerEdits] = field(default_factory=dict)  # by the IDs as they were asked for

    def hold(self, offer: Offer | None, view: NodeView) -> bool:
        """Whether these answers would be given again."""
        same = self.offer is offer and self.facts is view.facts and self.faults is view.faults
        return same and self.mps is view.mps


class Answers:
    """Implements core.ports.kubelet.ResourceAnswers for one resource."""

    def __init__(
        self,
        state: NodeState,
        resource: str,
        enforcers: Sequence[Editor],
        tell: Callable[[News], None],
        pre_start: Callable[[str, Sequence[str]], None],
    ) -> None:
        """`tell` hears of every answer that was given. It returns at once. `pre_start`: see `flows/hold/prestart`."""
        self._state = state
        self._resource = resource
        self._enforcers = enforcers
        self._tell = tell
        self._pre_start = pre_start
        # Replaced as a whole; only answers are added, by any thread.
        self._answered = _Answered(None, None, {}, MpsServices())

    def allocate(self, ids: Sequence[str]) -> ContainerEdits:
        """What a container holding these IDs is given. Raises RequestError."""
        view = self._state.view
        offer = view.offers.get(self._resource)
        answered = self._answered
        if not answered.hold(offer, view):
            answered = self._answered = _Answered(offer, view.facts, view.faults, view.mps)
        asked = tuple(ids)
        edits = answered.edits.get(asked)
        if edits is None:
            edits = self._edits(view, ids)
            if len(answered.edits) < MAX_REMEMBERED:
                answered.edits[asked] = edits
        self._tell(Allocated(resource=self._resource, ids=asked))
        return edits

    def _edits(self, view: NodeView, ids: Sequence[str]) -> ContainerEdits:
        offer = view.offers.get(self._resource)
        if offer is None or view.facts is None:
            raise RequestError(
                f"{self._resource} is not offered by this node any more; its policy has changed: delete the pod to have"
                " it scheduled anew, or ask for a resource that is offered now"
            )
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
                    f"device ID {text!r} cannot run: {one.gpu_uuid} is at fault: {fault}; delete the pod to get"
                    " another GPU"
                )
            unserved = view.mps.why_not(self._resource, one.id)
            if unserved is not None:
                raise RequestError(
                    f"device ID {text!r} cannot run as a client of MPS: {unserved}; delete the pod to get another one"
                )
            slices.append(one.id)
        return container_edits(make_grant(slices, view.facts.devices), view.facts, self._enforcers)

    def prefer(self, available: Sequence[str], must_include: Sequence[str], size: int) -> list[str]:
        """Which of the available IDs to take (core/slices/placement). Never fails."""
        offer = self._state.view.offers.get(self._resource)
        if offer is None:
            return list(dict.fromkeys([*must_include, *sorted(available)]))[: max(size, 0)]
        if offer.links is not None:
            return prefer_linked(offer.layout, offer.links, available, must_include, size)
        return prefer(offer.layout, offer.placement, available, must_include, size)

    def pre_start(self, ids: Sequence[str]) -> None:
        """Have the limits in force that the start waits for. Raises RequestError."""
        self._tell(Hint.START)
        self._pre_start(self._resource, ids)
