"""The resources that this node offers to its kubelet: which there are, and how they begin and end."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from sharer.adapters.kubelet import sockets
from sharer.adapters.kubelet.counters import KubeletCounters, Tally
from sharer.adapters.kubelet.resource import ServedResource
from sharer.adapters.kubelet.timings import KubeletTimings
from sharer.core.ports.kubelet import ListedDevice, ResourceAnswers, ResourceOptions
from sharer.core.ports.watch import Watcher

log = logging.getLogger(__name__)


class GrpcKubeletLink:
    """Implements `core.ports.kubelet.KubeletLink`. Make it, and use it, only while holding the node's agent lock.

    Making it removes the sockets that dead agents left in the directory. Raises InputError if the directory's name is
    too long for a socket in it. The directory itself, and the kubelet, may come later.
    """

    def __init__(self, directory: Path, watcher: Watcher, timings: KubeletTimings | None = None) -> None:
        self._directory = directory.absolute()
        self._timings = timings or KubeletTimings()
        self._tally = Tally()
        self._changing = threading.Lock()  # one offer, withdraw or stop at a time
        self._resources: dict[str, ServedResource] = {}  # replaced, never changed, so that reading needs no lock
        self._stopped = False
        sockets.check_directory(self._directory)
        for name in sockets.remove_leftovers(self._directory):
            log.info("removed %s, left by an agent that died", self._directory / name)
        self._unsubscribe = watcher.subscribe(str(self._directory), self._look)

    def offer(
        self, resource: str, options: ResourceOptions, devices: Sequence[ListedDevice], answers: ResourceAnswers
    ) -> None:
        """See `core.ports.kubelet.KubeletLink`. Returns at once: the resource's own thread serves and registers it.

        A changed list reaches the kubelet within 0.1 s; changed answers count at once; changed options cost a new
        registration. Raises ValueError for a list with a repeated ID or a negative NUMA node.
        """
        with self._changing:
            if self._stopped:
                raise RuntimeError(f"{resource} cannot be offered: the link to the kubelet is stopped")
            known = self._resources.get(resource)
            if known is not None:
                known.update(options, devices, answers)
                return
            served = ServedResource(
                resource,
                self._directory,
                options=options,
                devices=devices,
                answers=answers,
                timings=self._timings,
                tally=self._tally,
                others_are_told=partial(self._are_told, tuple(self._resources.values())),
            )
            self._resources = {**self._resources, resource: served}
            served.start()

    def withdraw(self, resource: str) -> None:
        """See `core.ports.kubelet.KubeletLink`. Returns when the stream has ended and the socket is gone."""
        with self._changing:
            served = self._resources.get(resource)
            if served is not None:
                self._resources = {name: other for name, other in self._resources.items() if name != resource}
                self._end({resource: served})

    def renew(self, resource: str) -> None:
        """See `core.ports.kubelet.KubeletLink`."""
        served = self._resources.get(resource)
        if served is not None:
            served.renew()

    def registered(self) -> dict[str, bool]:
        """See `core.ports.kubelet.KubeletLink`."""
        return {name: served.registered for name, served in self._resources.items()}

    def counters(self) -> KubeletCounters:
        """What happened how often since the start."""
        return self._tally.snapshot()

    def stop(self) -> None:
        """See `core.ports.kubelet.KubeletLink`. Devices are not marked Unhealthy: pods that hold them run on."""
        with self._changing:
            if self._stopped:
                return
            self._stopped = True
            self._unsubscribe()
            self._end(self._resources)
            self._resources = {}

    @staticmethod
    def _are_told(resources: Sequence[ServedResource]) -> bool:
        return all(served.is_told for served in resources)

    def _end(self, resources: dict[str, ServedResource]) -> None:
        """All at the same time."""
        deadline_s = time.monotonic() + self._timings.stop_deadline_s
        for served in resources.values():
            served.begin_stop()
        for name, served in resources.items():
            if not served.join(max(0.0, deadline_s - time.monotonic())):
                log.error("%s did not end in time; the kubelet sees its end when this process ends", name)

    def _look(self) -> None:
        for served in self._resources.values():
            served.look()
