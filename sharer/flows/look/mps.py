"""Follow the MPS control daemons of this node by what their supervisor says of them.

Next to nothing is done where no policy asks for MPS. Else the files are looked at in each cycle of the daemon's loop,
and read where they changed; the view changes only if something else is true of a daemon.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping

from sharer.core.errors import NodeError
from sharer.core.mps.service import MpsServices, after_reading, with_mps
from sharer.core.mps.state import MpsPlaces, MpsStates
from sharer.core.mps.wanted import mps_gpus, serving
from sharer.core.unchanged import are_same
from sharer.flows.state import NodeState, NodeView


class MpsWatch:
    """Remembers which GPUs are whose. For one thread."""

    def __init__(
        self, open_mps: Callable[[], tuple[MpsStates, MpsPlaces]], *, wall_s: Callable[[], float] = time.time
    ) -> None:
        """`open_mps` is called where a policy asks for MPS. `wall_s` is Unix time, by which the states are dated."""
        self._open, self._wall_s = open_mps, wall_s
        self._basis: tuple[object, ...] = ()
        self._gpus: Mapping[str, Mapping[str, None]] = {}  # of each MPS resource
        self._serving: Mapping[str, str] = {}

    def __call__(self, state: NodeState, now_s: float) -> str | None:
        """Bring up to date what the daemons serve, and the way to them. Returns what changed; None: nothing did.

        Never raises: a directory that cannot be made is why its slices are not offered.
        """
        before = state.view
        self._look(before)
        if not self._gpus and not before.mps.daemons:
            return None
        states, places = self._open()
        pipes, unplaced = self._make_places(places)
        found, wall_s = states.read(), self._wall_s()
        services = after_reading(before.mps, self._gpus, found, unplaced, places.is_there, now_s=now_s, wall_s=wall_s)
        facts = before.facts
        if facts is not None:
            facts = with_mps(facts, services, self._serving, pipes)
        if services is not before.mps or facts is not before.facts:
            state.change(mps=services, facts=facts)
        return "; ".join(_news(before.mps, services)) or None

    def _look(self, view: NodeView) -> None:
        basis = (view.listing, view.inventory, view.policy.policy)
        if are_same(self._basis, basis):
            return
        self._basis = basis
        self._gpus, self._serving = mps_gpus(*basis), serving(*basis)

    def _make_places(self, places: MpsPlaces) -> tuple[dict[str, str], dict[str, str]]:
        """The directory of each resource, or why there is none. Also for daemons that were never heard of.

        Containers of an earlier run may mount theirs, and the runtime would make a missing one by itself.
        """
        pipes, unplaced = {}, {}
        for resource in self._gpus:
            try:
                pipes[resource] = places.pipe(resource)
            except NodeError as error:
                unplaced[resource] = str(error)
        return pipes, unplaced


def _news(before: MpsServices, after: MpsServices) -> Iterator[str]:
    """What is new of each daemon; GPUs of which the same is true together."""
    for resource, daemon in after.daemons.items():
        known = before.daemons.get(resource)
        said: dict[str | None, list[str]] = {}
        for uuid, gpu in daemon.gpus.items():
            old = None if known is None else known.gpus.get(uuid)
            if old is None or old.problem != gpu.problem:
                said.setdefault(gpu.problem, []).append(uuid)
        for problem, uuids in said.items():
            which = "" if len(uuids) == len(daemon.gpus) else f" on {', '.join(uuids)}"
            yield f"{resource} is served{which}" if problem is None else f"{resource} is not served{which}: {problem}"
        if daemon.interface is not None and (known is None or known.interface is not daemon.interface):
            why = "" if daemon.interface_reason is None else f" ({daemon.interface_reason})"
            speaks = f"the daemon of {resource} speaks {daemon.interface}{why}"
            yield f"{speaks}, with limits per process and not per container"
        for warning in daemon.warnings:
            if known is None or warning not in known.warnings:
                yield f"warning: {resource}: {warning}"
    for resource in before.daemons.keys() - after.daemons.keys():
        yield f"{resource} needs no MPS control daemon any more"
