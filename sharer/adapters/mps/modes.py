"""`--mps-dir/compute-modes.json`: which compute mode each GPU had before MPS."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from sharer.adapters.mps.files import read_bounded, write_whole
from sharer.core.errors import NodeError

FILE_NAME = "compute-modes.json"


class ModeFile:
    """Implements flows.supervise.compute_modes.ModeMemory."""

    def __init__(self, mps_dir: Path) -> None:
        self._path = mps_dir / FILE_NAME

    def read(self) -> dict[str, int]:
        """By UUID; none if there is no file. Raises NodeError if it is damaged, or cannot be read."""
        try:
            text = read_bounded(self._path)
            return {} if text is None else msgspec.json.decode(text, type=dict[str, int])
        except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise NodeError(
                f"{self._path} does not tell which compute modes the GPUs had before MPS ({error}): put those back with"
                " nvidia-smi -c, and remove the file"
            ) from error

    def write(self, modes: Mapping[str, int]) -> None:
        """Remember these, and nothing else. Raises NodeError."""
        try:
            self._path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            write_whole(self._path, msgspec.json.encode(dict(modes)))
        except OSError as error:
            raise NodeError(
                f"{self._path} cannot be written: {error.strerror}; compute modes stay as they are"
            ) from error
