"""Sources of the ledger that say what a test tells them, and remember in which order they were asked."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import TypeVar

from sharer.core.errors import NodeError
from sharer.core.holders.evidence import (
    CgroupReading,
    CheckpointReading,
    ListReading,
)
from sharer.core.holders.observations import ApiSync
from sharer.core.ports.holders import ProcessIdentity, RawProcess, RawProcesses
from sharer.flows.holders.observe import Sources
from tests.core.builders import gpu_uuid
from tests.core.evidence import key

T = TypeVar("T")
UUID = gpu_uuid(0)
A, B = key(0, 20480), key(1, 20480)


@dataclass
class SaidBy:
    """What every source says now; an error is raised."""

    checkpoint: CheckpointReading | NodeError | None = field(default_factory=lambda: CheckpointReading(serial=1))
    cgroups: CgroupReading | NodeError = field(default_factory=CgroupReading)
    processes: RawProcesses | NodeError = field(default_factory=lambda: RawProcesses(asked=frozenset({UUID})))
    listed: ListReading | NodeError = field(default_factory=lambda: ListReading(serial=1))
    sync: ApiSync | None = None
    identities: dict[int, ProcessIdentity | NodeError] = field(default_factory=dict)
    host_pids: bool = True
    asked: list[str] = field(default_factory=list)
    followed: set[str] = field(default_factory=set)
    checkpoint_changed: Callable[[], None] | None = None
    cgroups_changed: Callable[[], None] | None = None

    def sources(self) -> Sources:
        """For the flow."""
        return Sources(
            checkpoint=_Checkpoint(self),
            cgroups=_Cgroups(self),
            processes=_Processes(self),
            table=_Table(self),
            listed=_List(self),
            pods=None if self.sync is None else _Pods(self.sync),
        )

    def take_asked(self) -> list[str]:
        """Who was asked since the last time, in order."""
        asked, self.asked = self.asked, []
        return asked

    def answer(self, source: str, said: T | NodeError) -> T:
        self.asked.append(source)
        if isinstance(said, NodeError):
            raise said
        return said


@dataclass
class _Checkpoint:
    said: SaidBy

    def read(self) -> CheckpointReading | None:
        return self.said.answer("checkpoint", self.said.checkpoint)

    def follow(self, changed: Callable[[], None]) -> None:
        self.said.checkpoint_changed = changed


@dataclass
class _Cgroups:
    said: SaidBy

    def read(self) -> CgroupReading:
        return self.said.answer("cgroups", self.said.cgroups)

    def follow(self, uids: Collection[str], changed: Callable[[], None]) -> None:
        self.said.followed, self.said.cgroups_changed = set(uids), changed


@dataclass
class _Processes:
    said: SaidBy

    def processes(self) -> RawProcesses:
        return self.said.answer("processes", self.said.processes)


@dataclass
class _Table:
    said: SaidBy

    def sees_the_host(self) -> bool:
        return self.said.host_pids

    def identify(self, pid: int) -> ProcessIdentity | None:
        found = self.said.identities.get(pid)
        if isinstance(found, NodeError):
            raise found
        return found


@dataclass
class _List:
    said: SaidBy

    def read(self) -> ListReading:
        return self.said.answer("list", self.said.listed)


@dataclass
class _Pods:
    sync: ApiSync


def running(*pids: int, on: str = UUID) -> RawProcesses:
    found = tuple(RawProcess(pid=pid, gpu_uuid=on, used_bytes=2**30) for pid in pids)
    return RawProcesses(processes=found, asked=frozenset({UUID}))


def of_pod(uid: str | None, command: str = "python") -> ProcessIdentity:
    return ProcessIdentity(pods=() if uid is None else ((uid, "f" * 64),), command=command)
