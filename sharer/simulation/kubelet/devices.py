"""The device manager's memory: what plugins listed, what is allocated to whom (kubelet-contract §3, §4, §9).

One object per kubelet process; what survives does so through the checkpoint file. Every method expects the caller to
hold the kubelet's lock unless it says otherwise.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass
from pathlib import Path

from sharer.kubeletapi import deviceplugin_pb2 as pb
from sharer.simulation.kubelet.checkpoint import (
    FILE_NAME,
    CheckpointEntry,
    CorruptCheckpoint,
    read_checkpoint,
    write_checkpoint,
)
from sharer.simulation.kubelet.plugins import PluginClient, PluginFailure
from sharer.simulation.kubelet.records import Capacity, KubeletSettings, ListedDevice

NO_NUMA_NODE = -1  # how the checkpoint files devices without topology


@dataclass(slots=True, kw_only=True)
class Endpoint:
    """A registered plugin, or the memory of one."""

    client: PluginClient | None  # None: known from the checkpoint only
    options: pb.DevicePluginOptions | None
    stopped_at_s: float | None = None

    def calls(self, resource: str) -> PluginClient:
        """The client to call. Raises PluginFailure if the endpoint has been stopped. Needs no lock."""
        if self.client is None or self.stopped_at_s is not None:
            raise PluginFailure(f"endpoint {resource if self.client is None else self.client.path} has been stopped")
        return self.client


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One container's devices of one resource, with the answer they were given: kept for the pod's life."""

    ids_by_numa: Mapping[int, tuple[str, ...]]
    response: pb.ContainerAllocateResponse

    @property
    def ids(self) -> set[str]:
        """Every ID once (a device on two nodes is filed under both)."""
        return {device_id for ids in self.ids_by_numa.values() for device_id in ids}


class DeviceManager:
    """Devices, endpoints and allocations of one kubelet process."""

    def __init__(self, folder: Path, settings: KubeletSettings, *, write_failure: Callable[[], str | None]) -> None:
        self._checkpoint = folder / FILE_NAME
        self._settings = settings
        self._write_failure = write_failure  # returns a text while every write of the checkpoint is to fail
        self.checkpoint_problem: str | None = None  # what was wrong with the file at start
        self.endpoints: dict[str, Endpoint] = {}
        self.listed: dict[str, dict[str, ListedDevice]] = {}
        self.healthy: dict[str, set[str]] = {}
        self.unhealthy: dict[str, set[str]] = {}
        self.allocated: dict[str, set[str]] = {}
        self.records: dict[tuple[str, str, str], Record] = {}  # by pod UID, container, resource

    # -- start and checkpoint

    def load(self) -> None:
        """Take over what the checkpoint says: allocations, and the resources as stopped, without devices (§2.7)."""
        try:
            entries, registered = read_checkpoint(self._checkpoint)
        except CorruptCheckpoint as problem:
            self.checkpoint_problem = str(problem)
            return
        for entry in entries:
            self.records[entry.pod_uid, entry.container, entry.resource] = Record(
                ids_by_numa=entry.ids_by_numa, response=entry.response
            )
        self._recount()
        for resource in registered:
            self.healthy[resource] = set()
            self.unhealthy[resource] = set()
            self.endpoints[resource] = Endpoint(client=None, options=None, stopped_at_s=self._settings.clock())

    def save(self) -> None:
        """Write the checkpoint. Raises OSError with the kubelet's text."""
        try:
            failure = self._write_failure()
            if failure is not None:
                raise OSError(failure)
            write_checkpoint(
                self._checkpoint,
                (
                    CheckpointEntry(
                        pod_uid=uid,
                        container=container,
                        resource=resource,
                        ids_by_numa=record.ids_by_numa,
                        response=record.response,
                    )
                    for (uid, container, resource), record in self.records.items()
                ),
                self.healthy,
            )
        except OSError as error:
            raise OSError(f'failed to write checkpoint file "{FILE_NAME}": {error}') from error

    def try_save(self) -> None:
        """Write the checkpoint where the kubelet only logs a failure."""
        with contextlib.suppress(OSError):
            self.save()

    # -- what plugins do

    def connected(self, resource: str, client: PluginClient, options: pb.DevicePluginOptions) -> None:
        """A plugin has registered: its endpoint replaces any earlier one. Its devices come with its first list."""
        self.endpoints[resource] = Endpoint(client=client, options=options)

    def disconnected(self, resource: str) -> None:
        """The resource's client was closed: the current endpoint is stopped, all devices are unhealthy (§2.5)."""
        endpoint = self.endpoints.get(resource)
        if endpoint is not None:
            self.unhealthy.setdefault(resource, set()).update(self.healthy.get(resource, ()))
            self.healthy[resource] = set()
            endpoint.stopped_at_s = self._settings.clock()

    def take_list(self, resource: str, devices: Iterable[ListedDevice]) -> None:
        """A full list: it replaces the one before. One ID with two healths is in both sets (§3)."""
        self.listed[resource], self.healthy[resource], self.unhealthy[resource] = {}, set(), set()
        for device in devices:
            self.listed[resource][device.id] = device
            (self.healthy if device.health == "Healthy" else self.unhealthy)[resource].add(device.id)

    # -- what the node status says

    def capacities(self) -> tuple[dict[str, Capacity], set[str]]:
        """Each resource's numbers, and the resources forgotten now: stopped for longer than the grace (§2.5)."""
        numbers: dict[str, Capacity] = {}
        forgotten: set[str] = set()
        now_s = self._settings.clock()
        for resource in sorted(self.healthy.keys() | self.unhealthy.keys()):
            endpoint = self.endpoints.get(resource)
            stopped_at_s = None if endpoint is None else endpoint.stopped_at_s
            if endpoint is None or (stopped_at_s is not None and now_s - stopped_at_s > self._settings.stop_grace_s):
                forgotten.add(resource)
                self.endpoints.pop(resource, None)
                self.healthy.pop(resource, None)
                self.unhealthy.pop(resource, None)
            else:
                healthy = len(self.healthy.get(resource, ()))
                numbers[resource] = Capacity(healthy + len(self.unhealthy.get(resource, ())), healthy)
        return numbers, forgotten

    # -- who has what

    def knows(self, resource: str) -> bool:
        """Whether the device manager is responsible: otherwise a request for it is silently none of its business."""
        return resource in self.healthy or resource in self.allocated

    def held(self, uid: str, container: str, resource: str) -> set[str] | None:
        """The IDs on record for a container; None: no record."""
        record = self.records.get((uid, container, resource))
        return None if record is None else record.ids

    def has_pod(self, uid: str) -> bool:
        """Whether anything is on record for the pod."""
        return any(key[0] == uid for key in self.records)

    def free_inactive(self, active_uids: Set[str]) -> None:
        """Drop the records of pods that are not active. The checkpoint is not rewritten (§9)."""
        gone = [key for key in self.records if key[0] not in active_uids]
        if gone:
            for key in gone:
                del self.records[key]
            self._recount()

    def roll_back(self) -> None:
        """After a failed Allocate: only what is on record counts as allocated."""
        self._recount()

    def has_topology(self, resource: str) -> bool:
        """Whether any listed device of the resource names a NUMA node."""
        return any(device.numa_nodes for device in self.listed.get(resource, {}).values())

    def _recount(self) -> None:
        self.allocated = {}
        for (_, _, resource), record in self.records.items():
            self.allocated.setdefault(resource, set()).update(record.ids)
