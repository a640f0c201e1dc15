"""What the agent wants of this node's MPS control daemons: `mps` in its report. The last one is kept in a file.

Without an agent the daemons go on as they were: an agent that restarts, or is upgraded, ends no client. The agent may
be of another version: fields that are not known are left out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from sharer.adapters.mps.files import read_bounded, write_whole
from sharer.core.errors import NodeError
from sharer.core.mps.state import MpsWanted

FILE_NAME = "wanted.json"

T = TypeVar("T")

log = logging.getLogger(__name__)


class _Wanted(msgspec.Struct, rename="camel", kw_only=True):
    resource: str
    slices: dict[str, tuple[str, ...]]
    limits_memory: bool
    user_id: int | None = None


class _Report(msgspec.Struct, rename="camel", kw_only=True):
    mps: list[_Wanted] | None = None  # None: the agent does not know yet


class WantedFromAgent:
    """Implements flows.supervise.supervisor.WantedSource."""

    def __init__(self, mps_dir: Path, ask: Callable[[], bytes]) -> None:
        """`ask` gives the agent's report. It raises NodeError while no agent answers."""
        self._path, self._ask = mps_dir / FILE_NAME, ask
        self._last: Mapping[str, MpsWanted] | None = None
        self._kept: bytes | None = None  # what is in the file
        self._silent: str | None = None

    def read(self) -> Mapping[str, MpsWanted] | None:
        """What the agent wants now, or wanted last; None: it never said. Raises NodeError if that cannot be kept."""
        try:
            found = _decode(self._ask(), _Report).mps
            self._hear(None)
        except NodeError as error:
            found = None
            self._hear(str(error))
        if found is not None:
            self._last = _by_resource(found)
            self._keep(msgspec.json.encode(found))
        elif self._last is None:
            self._last = self._remembered()
        return self._last

    def _hear(self, silent: str | None) -> None:
        """Log once that no agent answers, and once that one does again."""
        if silent is not None and self._silent is None:
            log.warning("%s; its last wishes stay in force", silent)
        elif silent is None and self._silent is not None:
            log.info("the agent answers")
        self._silent = silent

    def _keep(self, text: bytes) -> None:
        if text == self._kept:
            return
        try:
            self._path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            write_whole(self._path, text)
        except OSError as error:
            log.warning("%s cannot be written: %s; without an agent a restart will find nothing", self._path, error)
            return
        self._kept = text

    def _remembered(self) -> Mapping[str, MpsWanted] | None:
        try:
            text = read_bounded(self._path)
            return None if text is None else _by_resource(_decode(text, list[_Wanted]))
        except (OSError, NodeError) as error:
            log.warning("%s cannot be used: %s; waiting for the agent", self._path, error)
            return None


def _by_resource(found: list[_Wanted]) -> Mapping[str, MpsWanted]:
    return {
        one.resource: MpsWanted(
            resource=one.resource, slices=one.slices, limits_memory=one.limits_memory, user_id=one.user_id
        )
        for one in found
        if one.slices
    }


def _decode(text: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise NodeError(f"what the agent wants of MPS cannot be understood: {error}") from error
