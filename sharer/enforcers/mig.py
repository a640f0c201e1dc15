"""MIG: the hardware is partitioned. A container that is given the MIG device, and no other, is held by that alone."""

from __future__ import annotations

from sharer.core.edits import ContainerEdits, NodeFacts
from sharer.core.grant import Grant


class MigEnforcer:
    """Holds memory and SMs to the instance. No way out is known."""

    def edits(self, grant: Grant, facts: NodeFacts) -> ContainerEdits:
        """Nothing besides the device, which `core/injection` hands over whatever the strategy."""
        return ContainerEdits()
