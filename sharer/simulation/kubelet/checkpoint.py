"""`kubelet_internal_checkpoint`: what the kubelet remembers over a restart (kubelet-contract §11, runtime-facts §8).

Same JSON as the real file. Only the checksum differs: the real one is FNV-1a over a dump of Go structs, which nothing
but Go can make; ours is CRC-32 over the text of `Data`, and a file whose checksum is another is "corrupt" here too.
"""

from __future__ import annotations

import base64
import json
import os
import random
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from google.protobuf.message import DecodeError

from sharer.kubeletapi import deviceplugin_pb2 as pb

FILE_NAME = "kubelet_internal_checkpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointEntry:
    """One container's devices of one resource."""

    pod_uid: str
    container: str
    resource: str
    ids_by_numa: Mapping[int, tuple[str, ...]]  # -1: devices without topology
    response: pb.ContainerAllocateResponse


class CorruptCheckpoint(Exception):  # noqa: N818
    """The file is there and cannot be used. The kubelet logs that and knows no allocations."""


def write_checkpoint(path: Path, entries: Iterable[CheckpointEntry], registered: Mapping[str, Iterable[str]]) -> None:
    """Replace the file: dot-temp in the same folder, then rename, mode 0600. (No fsync: nothing here loses power.)

    `registered`: the healthy IDs of each resource.
    """
    data = {
        "PodDeviceEntries": [
            {
                "PodUID": entry.pod_uid,
                "ContainerName": entry.container,
                "ResourceName": entry.resource,
                "DeviceIDs": {str(node): list(ids) for node, ids in entry.ids_by_numa.items()},
                "AllocResp": base64.b64encode(entry.response.SerializeToString()).decode(),
            }
            for entry in entries
        ]
        or None,
        "RegisteredDevices": {resource: list(ids) for resource, ids in registered.items()},
    }
    text = json.dumps(data, separators=(",", ":"))
    temporary = path.with_name(f".{random.getrandbits(31)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(f'{{"Data":{text},"Checksum":{zlib.crc32(text.encode())}}}')
    temporary.rename(path)


def read_checkpoint(path: Path) -> tuple[list[CheckpointEntry], dict[str, list[str]]]:
    """The entries and, per resource, the healthy IDs; empty if there is no file. Raises CorruptCheckpoint."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return [], {}
    except (OSError, UnicodeDecodeError) as error:
        raise CorruptCheckpoint(f"{path}: {error}") from error
    try:
        document = json.loads(text)
        data = document["Data"]
        entries = [_entry(raw) for raw in data["PodDeviceEntries"] or ()]
        registered = {str(resource): list(ids or ()) for resource, ids in (data["RegisteredDevices"] or {}).items()}
        checksum = document["Checksum"]
    except (ValueError, KeyError, TypeError, AttributeError, DecodeError) as error:
        raise CorruptCheckpoint(f"{path}: {error!r}") from error
    if checksum != zlib.crc32(json.dumps(data, separators=(",", ":")).encode()):
        raise CorruptCheckpoint(f"{path}: checkpoint is corrupted: the checksum is not that of the data")
    return entries, registered


def _entry(raw: dict[str, object]) -> CheckpointEntry:
    ids = raw["DeviceIDs"]
    if not isinstance(ids, dict):
        raise TypeError(f"DeviceIDs is {ids!r}")
    return CheckpointEntry(
        pod_uid=str(raw["PodUID"]),
        container=str(raw["ContainerName"]),
        resource=str(raw["ResourceName"]),
        ids_by_numa={int(node): tuple(members) for node, members in ids.items()},
        response=pb.ContainerAllocateResponse.FromString(base64.b64decode(str(raw["AllocResp"]), validate=True)),
    )
