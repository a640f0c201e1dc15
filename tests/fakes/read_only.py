"""Folders that refuse to be written for processes of their own, and for a moment: EROFS, also for root (`read_only.c`).

No right to mount is needed, and nothing is left behind by whoever is killed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.fakes.compiling import shared_library

_MOST = 8  # folders, as in the library
_SOURCE = Path(__file__).with_name("read_only.c")


class ReadOnlyFolders:
    """Folders of processes that are started with `variables`. They can be written until they are told to refuse."""

    def __init__(self, file: Path, folders: Sequence[Path]) -> None:
        """`file` is made. Folders are named as the processes name them: no link is followed."""
        if len(folders) > _MOST:
            raise ValueError(f"{len(folders)} folders are more than {_MOST}")
        self._file, self._folders = file, tuple(folders)
        file.write_bytes(bytes(_MOST))

    @property
    def variables(self) -> dict[str, str]:
        """For a process of its own."""
        library = shared_library("read_only.so", [_SOURCE])
        return {"LD_PRELOAD": str(library), "SHARER_READ_ONLY": ":".join(map(str, (self._file, *self._folders)))}

    def refuse(self, folder: Path, *, refused: bool) -> None:
        """Let this folder, and all below it, be read-only from now on; or let it be written again."""
        with self._file.open("r+b") as file:  # in place: it is mapped
            file.seek(self._folders.index(folder))
            file.write(bytes([refused]))
