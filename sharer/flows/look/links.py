"""How the GPUs are linked, for containers that ask for several whole ones. Read once, apart from everything else:
a link query can take 0.6 s (bug case P12), and until it is answered GPUs are given out in NVML's order.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from sharer.core.device_id import Strategy
from sharer.core.errors import NodeError
from sharer.core.inventory import Topology
from sharer.core.ports.driver import TopologySource
from sharer.flows.state import NodeState

log = logging.getLogger(__name__)


class LinkReader:
    """Reads the links of a set of GPUs on a thread of its own, again only if the set changes."""

    def __init__(self, source: TopologySource, done: Callable[[], None]) -> None:
        """`done` is called, on that thread, when an answer can be taken."""
        self._source = source
        self._done = done
        self._asked: frozenset[str] = frozenset()
        self._answer: Topology | None = None

    def ask(self, uuids: frozenset[str]) -> None:
        """Have the links of these GPUs read, unless they were asked for already."""
        if uuids != self._asked:
            self._asked = uuids
            threading.Thread(target=self._read, name="links", daemon=True).start()

    def take(self) -> Topology | None:
        """The answer, once; None while there is no new one."""
        answer, self._answer = self._answer, None
        return answer

    def _read(self) -> None:
        try:
            self._answer = self._source.topology()
        except NodeError as error:
            log.warning("how the GPUs are linked cannot be read: %s; whole GPUs are given out in NVML's order", error)
            self._asked = frozenset()  # the next cycle asks again
            return
        self._done()


def read_links(state: NodeState, reader: LinkReader) -> str | None:
    """Ask for the links where several whole GPUs are offered, and take the answer when it is there."""
    view = state.view
    whole = [
        one.gpu_uuid
        for resource in view.plan.resources
        if resource.strategy is Strategy.EXCLUSIVE
        for one in resource.slices
    ]
    if len(whole) > 1:
        reader.ask(frozenset(whole))
    topology = reader.take()
    if topology is None:
        return None
    state.change(topology=topology)
    return f"read {len(topology.links)} links between GPUs"
