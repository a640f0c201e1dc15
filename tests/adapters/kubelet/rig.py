"""A simulated kubelet, and the links that tests make to it."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from sharer.adapters.kubelet import GrpcKubeletLink, KubeletTimings
from sharer.adapters.watch import DirectoryWatch, Inotify
from sharer.core.edits import ContainerEdits
from sharer.core.errors import RequestError
from sharer.core.ports.kubelet import ListedDevice, ResourceOptions
from sharer.simulation.kubelet import FakeKubelet, KubeletSettings

GPU = "example.com/gpu.shared"
OTHER = "example.com/mig-1g.10gb"
PATIENCE_S = 30.0
REAL = KubeletTimings()
FAST = KubeletTimings(retry_first_s=0.05, retry_cap_s=0.4, handover_s=0.02, probe_s=0.02)


class Answers:
    def allocate(self, ids: Sequence[str]) -> ContainerEdits:
        if any(device_id.endswith("-0") for device_id in ids):
            raise RequestError(f"device ID {ids[0]!r} cannot run: its GPU is at fault")
        return ContainerEdits(env=(("IDS", ",".join(sorted(ids))),))

    def prefer(self, available: Sequence[str], must_include: Sequence[str], size: int) -> list[str]:
        return sorted(available, reverse=True)[:size]

    def pre_start(self, ids: Sequence[str]) -> None:
        pass


class Heard(logging.Handler):
    """What the link has logged, and waiting for it."""

    def __init__(self) -> None:
        super().__init__()
        self._texts: queue.SimpleQueue[str] = queue.SimpleQueue()

    def emit(self, record: logging.LogRecord) -> None:
        self._texts.put(record.getMessage())

    def wait_for(self, text: str) -> None:
        while text not in self._texts.get(timeout=PATIENCE_S):
            pass


class Rig:
    """A kubelet, and the links that tests make to it."""

    def __init__(self, root: Path) -> None:
        self.kubelet = FakeKubelet(root, KubeletSettings(podresources_lead_s=0, sources_ready_after_s=0))
        self.directory = self.kubelet.device_plugin_dir
        self.directory.mkdir()
        self.heard = Heard()
        self._watches: list[DirectoryWatch] = []
        self._links: list[GrpcKubeletLink] = []

    def link(
        self, timings: KubeletTimings = REAL, open_inotify: Callable[[], Inotify] | None = None
    ) -> GrpcKubeletLink:
        watch = DirectoryWatch() if open_inotify is None else DirectoryWatch(open_inotify=open_inotify)
        self._watches.append(watch)
        self._links.append(GrpcKubeletLink(self.directory, watch, timings))
        return self._links[-1]

    def our_sockets(self) -> list[str]:
        return sorted(path.name for path in self.directory.glob("sharer-*"))

    def close(self) -> None:
        for link in self._links:
            link.stop()
        for watch in self._watches:
            watch.close()
        self.kubelet.close()


def slices(count: int, *, uuid: str = "GPU-0", healthy: bool = True) -> list[ListedDevice]:
    return [ListedDevice(id=f"{uuid}::ts-{number + 1}", healthy=healthy) for number in range(count)]


def offer(
    link: GrpcKubeletLink,
    resource: str = GPU,
    devices: Sequence[ListedDevice] | None = None,
    options: ResourceOptions | None = None,
) -> None:
    link.offer(resource, options or ResourceOptions(), slices(4) if devices is None else devices, Answers())


def threads_named(prefix: str) -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith(prefix)}


def eventually(predicate: Callable[[], bool], timeout_s: float = PATIENCE_S) -> None:
    """Wait for something that nobody announces."""
    deadline_s = time.monotonic() + timeout_s
    while not predicate():
        assert time.monotonic() < deadline_s, "it did not come true in time"
        threading.Event().wait(0.005)
