"""A kubelet's life: where its files are, start, SIGKILL, restart, reboot."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from sharer.simulation.kubelet.checkpoint import FILE_NAME
from sharer.simulation.kubelet.journal import Journal
from sharer.simulation.kubelet.pods import Pod
from sharer.simulation.kubelet.process import KubeletProcess
from sharer.simulation.kubelet.records import ContainerState, KubeletDown, KubeletPanic, KubeletSettings, Remnant
from sharer.simulation.kubelet.sockets import wipe_sockets
from sharer.simulation.kubelet.world import World


class Life:
    """What starts and ends; the pods and the looking at it come on top (`workload`, `observer`)."""

    def __init__(
        self,
        root: Path,
        settings: KubeletSettings | None = None,
        *,
        device_plugins: Path | None = None,
        pod_resources: Path | None = None,
    ) -> None:
        self.settings = settings or KubeletSettings()
        self._world = World(
            device_plugins=device_plugins or root / "device-plugins",
            pod_resources=pod_resources or root / "pod-resources",
            settings=self.settings,
        )
        self._changed = self._world.changed
        self._journal = Journal(self._changed)
        self._rng = random.Random(self.settings.seed)
        self._lifecycle = threading.RLock()
        self._process: KubeletProcess | None = None
        self._starts = 0
        self._killers: list[threading.Thread] = []
        self._remnants: list[Remnant] = []

    # -- where things are

    @property
    def device_plugin_dir(self) -> Path:
        """Where plugins put their sockets."""
        return self._world.device_plugins

    @property
    def socket(self) -> Path:
        """The registration socket."""
        return self._world.device_plugins / "kubelet.sock"

    @property
    def podresources_socket(self) -> Path:
        """The podresources socket."""
        return self._world.pod_resources / "kubelet.sock"

    @property
    def checkpoint(self) -> Path:
        """The checkpoint file."""
        return self._world.device_plugins / FILE_NAME

    # -- life and death

    def start(self, *, wipe_to_bind_s: float = 0.0, inode: int | None = None) -> Self:
        """Start: read the checkpoint, wipe sockets, bind `kubelet.sock`, admit again what exists.

        `inode`: try to give kubelet.sock this number (works where the file system reuses numbers: ext4, not tmpfs).
        """
        with self._lifecycle:
            if self._process is not None:
                raise RuntimeError("this kubelet runs already; kill it first")
            self._starts += 1
            process = KubeletProcess(self._world, self._journal, self._rng, die=self._die)
            try:
                process.start(self._starts, wipe_to_bind_s=wipe_to_bind_s, inode=inode)
            except BaseException:
                process.kill()
                raise
            with self._changed:
                self._process = process
                self._changed.notify_all()
            process.run()
        return self

    def kill(self) -> None:
        """End it as SIGKILL does: connections drop, streams are cancelled, both socket files stay behind, dead.

        Nothing happens if it is not running.
        """
        with self._lifecycle:
            with self._changed:
                process, self._process = self._process, None
                self._changed.notify_all()
            if process is not None:
                process.kill()

    def wipe(self) -> None:
        """Delete the top-level sockets now, as the start of a kubelet does; for a pause before the rest of it."""
        wipe_sockets(self._world.device_plugins)

    def restart(self, *, kill_to_wipe_s: float = 0.0, wipe_to_bind_s: float = 0.0, same_inode: bool = False) -> None:
        """Kill it and start it, with pauses. `same_inode`: try to give kubelet.sock its old inode number."""
        inode = self.socket.stat().st_ino if same_inode else None
        self.kill()
        threading.Event().wait(kill_to_wipe_s)
        self.start(wipe_to_bind_s=wipe_to_bind_s, inode=inode)

    def reboot(self) -> None:
        """Restart the node: no container runs any more. (Kill the plugins yourself: they are not this object's.)"""
        self.kill()
        with self._changed:
            self._remnants.clear()
            for pod in self._world.pods.values():
                for container in pod.containers:
                    if container.state is ContainerState.RUNNING:
                        container.state, container.reason = ContainerState.WAITING, "ContainerCreating"
        self.start()

    def sources_become_ready(self) -> None:
        """Let the kubelet know all its pods now (settings: `sources_ready_after_s`)."""
        self._running().tell_ready()

    def close(self) -> None:
        """Kill it and leave no thread behind. The files stay."""
        self.kill()
        for killer in self._killers:
            killer.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        if kind is None and self._world.panics:
            raise self._world.panics[0]

    @property
    def running(self) -> bool:
        """Whether it runs."""
        return self._process is not None

    @property
    def sources_ready(self) -> bool:
        """Whether it runs and knows all its pods; until then `List` is empty and nothing is freed."""
        return self._process is not None and self._process.sources_ready

    def take_panics(self) -> list[KubeletPanic]:
        """The crashes so far, for a test that expects them; they are forgotten by this."""
        with self._changed:
            panics, self._world.panics = self._world.panics, []
            return panics

    # -- for the classes on top

    def _running(self) -> KubeletProcess:
        process = self._process
        if process is None:
            raise KubeletDown("the kubelet is not running")
        return process

    def _pod(self, name: str, namespace: str) -> Pod:
        pod = self._world.pods.get((namespace, name))
        if pod is None:
            raise KeyError(f"no pod {namespace}/{name}")
        return pod

    def _die(self) -> None:
        """Kill this kubelet from a thread of its own: the caller may be one that `kill` waits for."""
        killer = threading.Thread(target=self.kill, name="kubelet-killer")
        with self._changed:
            self._killers.append(killer)
        killer.start()
