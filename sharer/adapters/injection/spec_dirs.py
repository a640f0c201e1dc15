"""Which CDI names the container runtime would find: the spec directories read as it reads them (runtime-facts §1).

Files are read again only when their size, times or inode changed: this runs every few seconds.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING

from sharer.core.values import dataclass

if TYPE_CHECKING:  # imported when the first spec is read or written: 5 ms that a node without CDI need not wait for
    from sharer.adapters.injection.spec_format import Spec, SpecDevice, SpecEdits

MAX_SPEC_BYTES = 4 * 2**20  # the toolkit's largest are some 100 KiB
OWN_PREFIX = "sharer.dev-slice_"  # our files: `slice_specs` knows what is in them

Signature = tuple[int, int, int, int]
"""Of a file: inode, size, time of its content, time of its inode."""


def signature_of(status: os.stat_result) -> Signature:
    """Equal signatures: the same content, as far as one can tell without reading."""
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """What resolves, and why the rest does not."""

    directories: tuple[Path, ...] = ()
    nodes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # resolvable name -> host device nodes it needs
    edits: Mapping[str, tuple[SpecEdits, ...]] = field(default_factory=dict)  # resolvable name -> what it gives
    conflicts: Mapping[str, str] = field(default_factory=dict)  # name in two files of one directory -> those files
    refused: Mapping[Path, str] = field(default_factory=dict)  # file that no runtime would load -> why

    def problem(self, name: str) -> str | None:
        """Why this name does not resolve; None: it does."""
        if name in self.nodes:
            return None
        if name in self.conflicts:
            return (
                f"{name} is in {self.conflicts[name]}, and a name that is there twice resolves to neither; remove one"
            )
        where = ", ".join(map(str, self.directories))
        reasons = [f"no CDI spec in {where} names {name}"]
        kind = name.partition("=")[0]
        if others := sorted(other.partition("=")[2] for other in self.nodes if other.startswith(f"{kind}=")):
            shown = ", ".join(others[:4]) + (", …" if len(others) > 4 else "")
            reasons.append(
                f"those of its kind are called {shown}; write the spec again after every change of the devices,"
                " with nvidia-ctk cdi generate --device-name-strategy=uuid"
            )
        reasons += [f"{path} is refused: {reason}" for path, reason in self.refused.items()]
        return "; ".join(reasons)


class SpecDirs:
    """Looks at the directories each time it is asked, at files only when they changed."""

    def __init__(self, directories: Callable[[], Iterable[Path]]) -> None:
        """`directories` in the order of the runtime's configuration: of one name in two of them the later counts."""
        self._directories = directories
        self._signatures: tuple[tuple[Path, Signature | None], ...] | None = None
        self._read: dict[Path, tuple[Signature, Spec | str]] = {}
        self._names = Names()

    def look(self) -> Names:
        """What resolves now. A directory that is missing has nothing."""
        directories = tuple(self._directories())
        files = {directory: list(_spec_files(directory)) for directory in directories}
        signatures = tuple(
            (path, status and signature_of(status)) for found in files.values() for path, status in found
        )
        if signatures != self._signatures or directories != self._names.directories:
            self._names = self._resolve(files)
            self._signatures = signatures
        return self._names

    def _resolve(self, files: Mapping[Path, list[tuple[Path, os.stat_result | None]]]) -> Names:
        nodes: dict[str, tuple[str, ...]] = {}
        edits: dict[str, tuple[SpecEdits, ...]] = {}
        conflicts: dict[str, str] = {}
        refused: dict[Path, str] = {}
        before, self._read = self._read, {}
        for found in files.values():
            owners: dict[str, Path] = {}
            for path, status in found:
                content = self._content(path, status, before)
                if isinstance(content, str):
                    refused[path] = content
                    continue
                for device in content.devices or ():
                    name = f"{content.kind}={device.name}"
                    if name in owners:
                        conflicts[name] = f"{owners[name]} and {path}"
                    owners.setdefault(name, path)
                    nodes[name], edits[name] = _needed(content, device), content.edits(device)
        for name in conflicts:  # also where a later directory has it once more
            del nodes[name], edits[name]
        return Names(directories=tuple(files), nodes=nodes, edits=edits, conflicts=conflicts, refused=refused)

    def _content(
        self, path: Path, status: os.stat_result | None, before: Mapping[Path, tuple[Signature, Spec | str]]
    ) -> Spec | str:
        """The file's spec, or why it is refused."""
        if status is None:
            return "it cannot be looked at"
        signature = signature_of(status)
        known = before.get(path)
        content = known[1] if known is not None and known[0] == signature else _load(path, status)
        self._read[path] = (signature, content)
        return content


def _spec_files(directory: Path) -> list[tuple[Path, os.stat_result | None]]:
    """What a runtime would read: .json and .yaml right here, dot files and linked files too, by name.

    Nothing where the directory itself is a link: the runtime's walk does not follow it.
    """
    try:
        if not stat.S_ISDIR(os.lstat(directory).st_mode):
            return []
        with os.scandir(directory) as entries:
            names = sorted(entry.name for entry in entries if entry.name.endswith((".json", ".yaml")))
    except OSError:
        return []
    files: list[tuple[Path, os.stat_result | None]] = []
    for name in names:
        if name.startswith(OWN_PREFIX):
            continue
        try:
            status = os.stat(directory / name)
        except OSError:
            files.append((directory / name, None))
            continue
        if not stat.S_ISDIR(status.st_mode):
            files.append((directory / name, status))
    return files


def _load(path: Path, status: os.stat_result) -> Spec | str:
    from sharer.adapters.injection.spec_format import SpecRefused, read_spec

    if not stat.S_ISREG(status.st_mode):
        return "it is not a file"  # and reading it could wait for ever
    try:
        with path.open("rb") as file:
            text = file.read(MAX_SPEC_BYTES + 1)
        return read_spec(text) if len(text) <= MAX_SPEC_BYTES else f"it is larger than {MAX_SPEC_BYTES} bytes"
    except OSError as error:
        return os.strerror(error.errno or 0)
    except SpecRefused as error:
        return str(error)


def _needed(spec: Spec, device: SpecDevice) -> tuple[str, ...]:
    return tuple(dict.fromkeys(spec.needed_nodes(device)))
