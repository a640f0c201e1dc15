"""One MPS control daemon: what it is started with, what a look at it finds, and how it is reached.

A daemon sees its own GPUs only, in an order of ours, and is told limits by their place in that order: by UUID they
have no effect with some drivers, and a list of visible GPUs renumbers them (bug case P21).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Protocol

from sharer.core.device_id import DeviceId, recognise, slice_part
from sharer.core.mps.state import MpsInterface, MpsWanted
from sharer.core.values import dataclass

_NO_NAME_CHARACTER = re.compile(r"[^a-z0-9]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class MpsShare:
    """What one client process, or one namespace, may have of a GPU."""

    limit_mib: int | None = None  # of pinned device memory; None: no limit
    percent: int | None = None  # of the SMs; None: all


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What a daemon is to serve, in the words that it is told it in."""

    gpus: tuple[str, ...]  # UUIDs; the first is its device 0
    user_id: int | None  # the only user that is served; None: all, at the same time
    limits_mib: Mapping[str, int] = field(default_factory=dict)  # UUID -> default of each client process there
    percent: int | None = None  # default of each client process; None: all SMs
    namespaces: Mapping[str, tuple[str, MpsShare]] = field(default_factory=dict)  # device ID -> its name, its share
    warnings: tuple[str, ...] = ()


def launch_of(wanted: MpsWanted, present: Iterable[str] | None = None) -> Launch:
    """How a daemon is told what is wanted of it.

    `present` are the GPUs of a daemon that runs, in its order: they keep their numbers. One default a device is all
    that the legacy interface has; where slices of different shares are held together for a while, it is the largest,
    and the smaller ones are held by their containers' own variables alone.
    """
    kept = [uuid for uuid in present or () if uuid in wanted.slices]
    gpus = (*kept, *sorted(wanted.slices.keys() - set(kept)))
    ids = {uuid: [found for text in wanted.slices[uuid] if (found := recognise(text)) is not None] for uuid in gpus}
    limits = {} if not wanted.limits_memory else {uuid: _largest(one.limit_mib for one in ids[uuid]) for uuid in gpus}
    percents = {one.percent for found in ids.values() for one in found}
    warnings = [
        f"slices with different memory limits are held on {uuid}: a process that changes its own variables can have"
        f" the largest, {limits[uuid]} MiB, until the old slices have ended"
        for uuid in gpus
        if wanted.limits_memory and len({one.limit_mib for one in ids[uuid]}) > 1
    ]
    if len(percents) > 1:
        warnings.append(
            "slices with different shares of SMs are held: a process that changes its own variables can have the"
            " largest, until the old slices have ended"
        )
    return Launch(
        gpus=gpus,
        user_id=wanted.user_id,
        limits_mib={uuid: limit for uuid, limit in limits.items() if limit is not None},
        percent=_largest(percents),
        namespaces={
            str(one): (namespace_name(one), MpsShare(limit_mib=limit, percent=one.percent))
            for found in ids.values()
            for one in found
            for limit in (one.limit_mib if wanted.limits_memory else None,)
        },
        warnings=tuple(warnings),
    )


def namespace_name(device_id: DeviceId) -> str:
    """Of a slice's namespace: what MPS v3 allows (a-z, 0-9 and _, 64 characters), short enough for a socket's path.

    The end is a digest of the whole device ID, since that itself is too long, and has characters that are not allowed.

    >>> namespace_name(DeviceId.parse("GPU-5a3f::mps-3-20480-25"))
    'mps_3_20480_25_888f0021a5'
    """
    readable = _NO_NAME_CHARACTER.sub("_", slice_part(str(device_id)).lower()).strip("_")
    return f"{readable}_{hashlib.sha256(str(device_id).encode()).hexdigest()[:10]}"


def _largest(values: Iterable[int | None]) -> int | None:
    """The largest, where none is unlimited."""
    found = list(values)
    return None if not found or None in found else max(one for one in found if one is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Abilities:
    """What this node's control executable can do."""

    namespaces: bool  # it speaks MPS v3
    no_namespaces_reason: str | None  # why not; None: it does
    many_users: bool  # it has a mode in which users share a server


@dataclass(frozen=True, slots=True, kw_only=True)
class MpsClient:
    """A process that is connected to a daemon's server."""

    pid: int  # as the daemon sees it: the host's, or it is of no use
    gpus: tuple[str, ...]  # UUIDs of those it is on, as far as the daemon says
    server: int | None  # the server's PID; None: not told
    alive: bool  # whether there is such a process


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSigns:
    """What new lines of the logs say."""

    first_error: str | None = None  # since the daemon was started, or told to serve; None: none
    fatal: str | None = None  # since the last look: a fault that takes other clients of the GPU with it
    newcomers: tuple[int, ...] = ()  # PIDs that have asked to be let in, never were, and still live


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What one look at a daemon found."""

    running: bool  # its process is there
    silence: str | None = None  # why it did not answer; None: it did, or is not running
    interface: MpsInterface | None = None  # None: not running, or not known
    gpus: tuple[str, ...] = ()  # what it was started with, in its numbering
    user_id: int | None = None  # the only user it serves; None: all
    server: str | None = None  # how its server is, in the daemon's word; None: there is none
    ready: bool = False  # that word means: clients are served
    clients: tuple[MpsClient, ...] | None = None  # None: not told
    namespaces: Mapping[str, str] = field(default_factory=dict)  # device ID -> host directory, of those read back
    unlike: str | None = None  # what was read back and is not as it was set; None: nothing
    signs: LogSigns = LogSigns()


class MpsDaemon(Protocol):
    """One control daemon. For one thread. Every method returns within seconds, whatever the daemon does."""

    def abilities(self) -> Abilities:
        """What the executable can do. Raises NodeError if it cannot be run."""
        ...

    def look(self, launch: Launch) -> Look:
        """How it is now, compared with what it is to serve. Raises NodeError if its own files are out of reach."""
        ...

    def start(self, launch: Launch, interface: MpsInterface, *, many_users: bool) -> None:
        """Start its process, and wait for nothing. Raises NodeError."""
        ...

    def serve(self, launch: Launch) -> None:
        """Have the running daemon serve this: its limits, its namespaces, its server. Twice is once.

        Clients that are connected keep what they had. Raises NodeError.
        """
        ...

    def end_client(self, client: MpsClient) -> bool:
        """Have it end what is left of a client. False: it does not come back from that. Raises NodeError."""
        ...

    def stop(self, *, at_once: bool = False) -> None:
        """End it and its servers, and with them its clients; `at_once`: without asking it. Raises NodeError."""
        ...
