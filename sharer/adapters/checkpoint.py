"""The kubelet's checkpoint file: which container was given which IDs, with the pod's UID (kubelet-contract §11).

Read, never written. It is the only local source of UIDs, names init containers too, is written 1 to 9 ms after each
Allocate, and keeps entries of pods that are long gone (runtime-facts §8). Each write is a new file under the old name.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import msgspec

from sharer.core.errors import NodeError
from sharer.core.evidence import CheckpointEntry, CheckpointReading
from sharer.core.ports import Watcher

FILE_NAME = "kubelet_internal_checkpoint"
MAX_BYTES = 64 * 2**20  # 65,535 IDs of 47 characters make 3.3 MB


class _Entry(msgspec.Struct):
    PodUID: str
    ContainerName: str
    ResourceName: str
    DeviceIDs: dict[str, list[str] | None] | list[str] | None = None  # a plain list before Kubernetes 1.20


class _Data(msgspec.Struct):
    PodDeviceEntries: list[_Entry] | None = None
    RegisteredDevices: dict[str, list[str] | None] | None = None


class _File(msgspec.Struct):
    Data: _Data


_decoder = msgspec.json.Decoder(_File)

Signature = tuple[int, ...]


class Checkpoint:
    """Reads the file again only if it changed. `read` is for one thread. Implements core.ports.CheckpointSource."""

    def __init__(self, path: Path, watcher: Watcher) -> None:
        self._path = path
        self._watcher = watcher
        self._signature: Signature | None = None
        self._last = CheckpointReading(serial=0)
        self._serials = itertools.count(1)

    def read(self) -> CheckpointReading | None:
        """What the file says now; None: there is none.

        Raises NodeError if it is damaged or cannot be read: then nothing is known, and a kubelet that starts with it
        knows nothing either. Its checksum is not checked: it covers a memory dump of a Go program.
        """
        try:
            with self._path.open("rb") as file:
                signature = _signature(os.fstat(file.fileno()))
                if signature != self._signature:
                    self._signature = None
                    self._last = _parse(file.read(MAX_BYTES + 1), self._path)
                    self._signature = signature
        except FileNotFoundError:
            self._signature = None
            return None
        except OSError as error:
            self._signature = None
            cure = "; the agent must run as root" if isinstance(error, PermissionError) else ""
            raise NodeError(
                f"the kubelet's checkpoint {self._path} cannot be read: {os.strerror(error.errno or 0)}{cure}"
            ) from error
        return replace(self._last, serial=next(self._serials))

    def follow(self, changed: Callable[[], None]) -> None:
        """Call `changed`, on the watcher's thread, soon after the file was written. Once; ends with the watcher."""
        known = self._look()

        def compare() -> None:
            nonlocal known
            before, known = known, self._look()
            if known != before:
                changed()

        self._watcher.subscribe(str(self._path.parent), compare)

    def _look(self) -> Signature | None:
        try:
            return _signature(os.stat(self._path))
        except OSError:
            return None


def _signature(status: os.stat_result) -> Signature:
    return (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size)


def _parse(text: bytes, path: Path) -> CheckpointReading:
    if len(text) > MAX_BYTES:
        raise NodeError(f"the kubelet's checkpoint {path} is larger than {MAX_BYTES} bytes and is not read")
    try:
        data = _decoder.decode(text).Data
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise NodeError(
            f"the kubelet's checkpoint {path} is damaged ({error}): containers are known by the kubelet's list alone"
            " until it is written again, at the next start of a pod with devices"
        ) from error
    entries = tuple(
        CheckpointEntry(uid=one.PodUID, container=one.ContainerName, resource=one.ResourceName, ids=_ids(one.DeviceIDs))
        for one in data.PodDeviceEntries or ()
    )
    registered = {name: tuple(ids or ()) for name, ids in (data.RegisteredDevices or {}).items()}
    return CheckpointReading(serial=0, entries=entries, registered=registered)


def _ids(found: Mapping[str, list[str] | None] | list[str] | None) -> tuple[str, ...]:
    """The IDs, once each: a device on two NUMA nodes is named under both."""
    rows = found.values() if isinstance(found, Mapping) else [found]
    return tuple(dict.fromkeys(device_id for ids in rows for device_id in ids or ()))
