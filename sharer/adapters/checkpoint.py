"""The kubelet's checkpoint file: which container was given which IDs, with the pod's UID (kubelet-contract §11).

Read, never written. It is the only local source of UIDs, names init containers too, is written 1 to 9 ms after each
Allocate, and keeps entries of pods that are long gone (runtime-facts §8). Each write is a new file under the old name.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import cast

from sharer.core.errors import NodeError
from sharer.core.holders.evidence import CheckpointEntry, CheckpointReading
from sharer.core.ports.watch import Watcher
from sharer.core.values import replace

FILE_NAME = "kubelet_internal_checkpoint"
MAX_BYTES = 64 * 2**20  # 65,535 IDs of 47 characters make 3.3 MB


Signature = tuple[int, ...]


class Checkpoint:
    """Reads the file again only if it changed, once for everybody. Implements core.ports.holders.CheckpointSource."""

    def __init__(self, path: Path, watcher: Watcher) -> None:
        self._path = path
        self._watcher = watcher
        self._lock = threading.Lock()  # of what follows; held for some milliseconds, while thousands of IDs are read
        self._signature: Signature | None = None
        self._last = CheckpointReading(serial=0)
        self._serials = itertools.count(1)

    def read(self) -> CheckpointReading | None:
        """What the file says now; None: there is none.

        Raises NodeError if it is damaged or cannot be read: then nothing is known, and a kubelet that starts with it
        knows nothing either. Its checksum is not checked: it covers a memory dump of a Go program.
        """
        with self._lock:
            return self._read()

    def _read(self) -> CheckpointReading | None:
        try:
            with open(self._path, "rb", opener=_at_once) as file:
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


def _at_once(path: str, flags: int) -> int:
    """Never wait, as a pipe in the place of a file would have us do."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def _signature(status: os.stat_result) -> Signature:
    return (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size)


def _parse(text: bytes, path: Path) -> CheckpointReading:
    if len(text) > MAX_BYTES:
        raise NodeError(f"the kubelet's checkpoint {path} is larger than {MAX_BYTES} bytes and is not read")
    try:
        data = _mapping(_mapping(json.loads(text))["Data"])
        entries = tuple(_entry(_mapping(one)) for one in _rows(data.get("PodDeviceEntries")))
        registered = {name: _texts(ids) for name, ids in _mapping(data.get("RegisteredDevices") or {}).items()}
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise NodeError(
            f"the kubelet's checkpoint {path} is damaged ({error}): containers are known by the kubelet's list alone"
            " until it is written again, at the next start of a pod with devices"
        ) from error
    return CheckpointReading(serial=0, entries=entries, registered=registered)


# By hand, since a library that reads JSON into types is not imported before the kubelet has registered us: 4 ms.


def _entry(found: Mapping[str, object]) -> CheckpointEntry:
    uid, container, resource = _texts([found[name] for name in ("PodUID", "ContainerName", "ResourceName")])
    ids = found.get("DeviceIDs")  # by NUMA node; a plain list before Kubernetes 1.20
    rows = ids.values() if isinstance(ids, dict) else [ids]
    # Once each: a device on two NUMA nodes is named under both.
    once = tuple(dict.fromkeys(device_id for row in rows for device_id in _texts(row)))
    return CheckpointEntry(uid=uid, container=container, resource=resource, ids=once)


def _mapping(found: object) -> Mapping[str, object]:
    if not isinstance(found, dict):
        raise TypeError(f"{found!r:.40} is not an object")
    return found


def _rows(found: object) -> Iterable[object]:
    if not isinstance(found, list | None):
        raise TypeError(f"{found!r:.40} is not a list")
    return found or ()


def _texts(found: object) -> tuple[str, ...]:
    texts = cast(tuple[str, ...], tuple(_rows(found)))
    "".join(texts).encode()  # raises TypeError for what is no text, UnicodeError for half a character
    return tuple(map(sys.intern, texts))  # several readers keep thousands of them
