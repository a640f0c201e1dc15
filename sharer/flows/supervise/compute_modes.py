"""GPUs under MPS are in exclusive compute mode, and only those: whoever leaves MPS gets no context there.

It breaks every other way of sharing, so the mode that was there comes back when MPS goes, also after we were killed
(bug case P24): it is remembered in a file before it is changed. A mode that somebody else has set meanwhile stays.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Protocol

from sharer.core.errors import NodeError
from sharer.core.mps.compute_modes import EXCLUSIVE_PROCESS, ComputeModes, mode_name

log = logging.getLogger(__name__)


class ModeMemory(Protocol):
    """Which mode each GPU had before we changed it."""

    def read(self) -> dict[str, int]:
        """By UUID. Raises NodeError if it cannot be read."""
        ...

    def write(self, modes: Mapping[str, int]) -> None:
        """Remember these, and nothing else. Raises NodeError."""
        ...


class ModeKeeper:
    """Holds compute modes as they must be. For one thread."""

    def __init__(self, modes: ComputeModes, memory: ModeMemory) -> None:
        self._modes, self._memory = modes, memory

    def hold(self, exclusive: Collection[str]) -> dict[str, str]:
        """Have these GPUs, by UUID, and no other of ours, in exclusive mode. Returns why not, by UUID."""
        try:
            remembered = self._memory.read()
        except NodeError as error:
            return dict.fromkeys(exclusive, str(error))  # what was there before could not come back
        problems: dict[str, str] = {}
        for uuid in sorted(exclusive):
            try:
                self._make_exclusive(uuid, remembered)
            except NodeError as error:
                problems[uuid] = str(error)
        for uuid in sorted(remembered.keys() - set(exclusive)):
            try:
                self._put_back(uuid, remembered)
            except NodeError as error:
                problems[uuid] = str(error)
        return problems

    def _make_exclusive(self, uuid: str, remembered: dict[str, int]) -> None:
        mode = self._modes.compute_mode(uuid)
        if mode == EXCLUSIVE_PROCESS:
            return
        if remembered.get(uuid) != mode:
            remembered[uuid] = mode
            self._memory.write(remembered)
        self._modes.set_compute_mode(uuid, EXCLUSIVE_PROCESS)
        log.info("%s: set the compute mode to exclusive process, from %s", uuid, mode_name(mode))

    def _put_back(self, uuid: str, remembered: dict[str, int]) -> None:
        mode = remembered[uuid]
        if self._modes.compute_mode(uuid) == EXCLUSIVE_PROCESS:
            self._modes.set_compute_mode(uuid, mode)
            log.info("%s: put the compute mode back to %s", uuid, mode_name(mode))
        del remembered[uuid]
        self._memory.write(remembered)
