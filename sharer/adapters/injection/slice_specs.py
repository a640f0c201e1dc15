"""Our own CDI specs, kind `sharer.dev/slice`: one file per GPU or MIG device, one device per slice in it.

A container that was given one of these names needs it at every start, also while we are away and after a reboot
(runtime-facts §1.8). So nothing is taken out of a file until the caller says which slices are still needed: a file is
only ever replaced by one that has more, by a temporary name and a rename, since the runtime reads it at any moment.

The files lie in the last of the spec directories that exists: its names win over those of the earlier ones, and a
directory that we made ourselves might be none of the host's.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path

from sharer.adapters.injection.spec_dirs import MAX_SPEC_BYTES, OWN_PREFIX, Signature, signature_of
from sharer.core.errors import NodeError
from sharer.core.injection import SLICE_KIND
from sharer.core.values import dataclass

Variables = Sequence[str]
"""What a slice sets in its container, each as "NAME=value"."""


@dataclass(frozen=True, slots=True)
class _Written:
    path: Path
    signature: Signature
    names: frozenset[str]


class SliceSpecFiles:
    """Writes only what changed. For one thread, and one process: the agent's lock sees to that."""

    def __init__(self, directories: Callable[[], Iterable[Path]]) -> None:
        self._directories = directories
        self._written: dict[str, _Written] = {}  # by UUID

    def in_place(self, uuid: str, names: Collection[str]) -> bool:
        """Whether this device's file is there as we wrote it last, with all these slices in it."""
        written = self._written.get(uuid)
        if written is None or not written.names.issuperset(names) or written.path != self._path(uuid):
            return False
        try:
            return signature_of(os.stat(written.path)) == written.signature
        except OSError:
            return False

    def add(self, uuid: str, slices: Mapping[str, Variables]) -> None:
        """Have these slices in the device's file, besides those that are there already. Raises NodeError."""
        path = self._path(uuid)
        if path is None:
            raise NodeError(f"none of the CDI directories {', '.join(map(str, self._directories()))} exists")
        try:
            self._replace(uuid, path, {**_slices_in(path), **slices})
        except OSError as error:
            raise NodeError(
                f"the CDI spec {path} cannot be written: {error.strerror}; the agent needs the directory writable"
            ) from error

    def keep_only(self, names: Collection[str]) -> None:
        """Take every other slice out of every file of ours; a file without slices goes.

        Raises NodeError if a file resists, after the others were cleared.
        """
        problem: NodeError | None = None
        for path in self._files():
            try:
                self._clear(path, names)
            except OSError as error:
                problem = NodeError(
                    f"the CDI spec {path} cannot be cleared of slices that are gone: {error.strerror}; the agent needs"
                    " the directory writable"
                )
        if problem is not None:
            raise problem

    def _clear(self, path: Path, names: Collection[str]) -> None:
        there = _slices_in(path)
        left = {name: variables for name, variables in there.items() if name in names}
        uuid = path.name.removeprefix(OWN_PREFIX).removesuffix(".json")
        if not left:
            self._written.pop(uuid, None)
            path.unlink(missing_ok=True)
        elif len(left) < len(there):
            self._replace(uuid, path, left)

    def _path(self, uuid: str) -> Path | None:
        existing = [directory for directory in self._directories() if directory.is_dir()]
        return existing[-1] / f"{OWN_PREFIX}{uuid}.json" if existing else None

    def _files(self) -> list[Path]:
        pattern = f"{OWN_PREFIX}*.json"
        try:
            return [path for directory in self._directories() for path in sorted(directory.glob(pattern))]
        except OSError as error:
            raise NodeError(f"the CDI directories cannot be cleared: {error.strerror}") from error

    def _replace(self, uuid: str, path: Path, slices: Mapping[str, Variables]) -> None:
        from sharer.adapters.injection.spec_format import write_spec  # as late as in spec_dirs

        text = write_spec(SLICE_KIND, slices)
        if not path.exists() or path.read_bytes() != text:
            temporary = path.with_suffix(".tmp")  # no runtime reads that ending
            try:
                with open(temporary, "wb", opener=_unfollowed) as file:
                    file.write(text)
                    file.flush()
                    os.fsync(file.fileno())
                temporary.chmod(0o644)
                temporary.replace(path)
            except OSError:
                with contextlib.suppress(OSError):
                    temporary.unlink()
                raise
        if path == self._path(uuid):
            self._written[uuid] = _Written(path, signature_of(os.stat(path)), frozenset(slices))


def _unfollowed(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)


def _slices_in(path: Path) -> dict[str, Variables]:
    """What a file of ours has. A damaged one has nothing: no runtime would have loaded it either."""
    from sharer.adapters.injection.spec_format import SpecRefused, read_spec

    try:
        with path.open("rb") as file:
            spec = read_spec(file.read(MAX_SPEC_BYTES))  # what is longer is damaged, and half of it is no JSON
    except (FileNotFoundError, SpecRefused):
        return {}
    return {
        device.name: device.container_edits.env or ()
        for device in spec.devices or ()
        if device.container_edits is not None
    }
