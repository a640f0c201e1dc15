"""Notice that another plugin has registered under the name of one of our resources, and register again.

A kubelet takes whoever registers last, and goes on reading our list: nothing ends by which we could tell. When the
other one leaves, the name has no plugin any more, and every Allocate fails (kubelet-contract §2.4, bug case P11). The
checkpoint names the healthy IDs of whoever has listed last; so a name that had ours and has only others' is lost.
Others' are ours as well as long as we list them: what a pod still holds of the plugin before us (DESIGN §2).

A file that the kubelet cannot write any more would say so for ever: it counts only after it had ours.
"""

from __future__ import annotations

from collections.abc import Collection

from sharer.core.device_id import recognise
from sharer.core.offers import Offer
from sharer.core.ports.kubelet import KubeletLink
from sharer.flows.state import NodeState


class Displaced:
    """Remembers under which names the kubelet was seen to have our IDs. For one thread."""

    def __init__(self) -> None:
        self._ours: set[str] = set()

    def __call__(self, state: NodeState, kubelet: KubeletLink) -> None:
        """Have each resource that was displaced registered again. Returns nothing: the link tells why it does."""
        view = state.view
        checkpoint = view.ledger.evidence.checkpoint
        self._ours.intersection_update(view.offers)
        if checkpoint is None or not checkpoint.is_current:
            return
        for name, offer in view.offers.items():
            ids = checkpoint.registered.get(name, ())
            if not offer.slices.keys().isdisjoint(ids):
                self._ours.add(name)
            elif name in self._ours and _are_others(ids, offer):
                self._ours.remove(name)
                kubelet.renew(name)


def _are_others(ids: Collection[str], offer: Offer) -> bool:
    """Whether these are IDs, none in our form, that cannot all come from our own list."""
    return not any(map(recognise, ids)) and not {one.id for one in offer.devices}.issuperset(ids)
