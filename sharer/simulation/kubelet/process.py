"""One kubelet process, from start to death. What it knew and did not write into the checkpoint dies with it."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

import grpc

from sharer.kubeletapi import deviceplugin_pb2_grpc, podresources_pb2_grpc
from sharer.simulation.kubelet.allocation import AdmissionRefusal, AllocationFailure, Allocator
from sharer.simulation.kubelet.devices import NO_NUMA_NODE, DeviceManager
from sharer.simulation.kubelet.journal import Journal
from sharer.simulation.kubelet.podresources import HeldRow, PodResources, PodResourcesCall, PodResourcesFault, PodRow
from sharer.simulation.kubelet.pods import Container, Pod
from sharer.simulation.kubelet.records import (
    Capacity,
    ContainerKind,
    ContainerState,
    KubeletDown,
    KubeletPanic,
    Phase,
)
from sharer.simulation.kubelet.registration import Registration
from sharer.simulation.kubelet.sockets import next_inode, second_name, serve_over, serve_through, wipe_sockets
from sharer.simulation.kubelet.world import World

_GRPC_THREADS = 16


class KubeletProcess:
    """One run of the kubelet."""

    def __init__(self, world: World, journal: Journal, rng: random.Random, *, die: Callable[[], None]) -> None:
        self._world = world
        self._settings = world.settings
        self._lock = world.changed
        self._die = die
        self._alive = True
        self._known: set[str] = set()  # UIDs in the pod manager; empty right after a start
        self.sources_ready = False
        self._admission = threading.Lock()  # one pod at a time, on the sync loop (§5)
        self._sync_loop: threading.Thread | None = None
        self._dead = threading.Event()
        self._told_ready = threading.Event()
        self.manager = DeviceManager(
            world.device_plugins, world.settings, write_failure=lambda: world.checkpoint_failure
        )
        self.registration = Registration(
            world.device_plugins, world.settings, self.manager, journal, world.changed, die=die
        )
        self._allocator = Allocator(
            self.manager,
            world.settings,
            world.changed,
            rng,
            sources_ready=lambda: self.sources_ready,
            active_uids=lambda: {pod.uid for pod in self._active_pods()},
            must_be_alive=self._must_be_alive,
        )
        self._servers: list[tuple[grpc.Server, ThreadPoolExecutor]] = []

    # -- life

    def start(self, number: int, *, wipe_to_bind_s: float = 0.0, inode: int | None = None) -> None:
        """The kubelet's own order: podresources, then checkpoint, mkdir, wipe, bind (§2.7, runtime-facts 58)."""
        world = self._world
        world.device_plugins.mkdir(parents=True, exist_ok=True)
        world.pod_resources.mkdir(parents=True, exist_ok=True)
        service = PodResources(
            clock=self._settings.clock,
            rows=self._pod_rows,
            allocatable=self._allocatable_rows,
            log=self._podresources_call,
            serves_get=not self._settings.older,
        )
        server = self._server("podresources")
        podresources_pb2_grpc.add_PodResourcesListerServicer_to_server(service, server)
        serve_over(server, world.pod_resources / "kubelet.sock", world.pod_resources / f".{number}.sock")
        self._dead.wait(self._settings.podresources_lead_s)
        with self._lock:
            self.manager.load()
            if not any(not entry.name.startswith(".") for entry in world.device_plugins.iterdir()):
                world.node_status.update(dict.fromkeys(world.node_status, Capacity(0, 0)))  # "node was recreated"
        folder = world.device_plugins.parent  # not that folder itself: plugins watch it
        with second_name(world.device_plugins, folder / f".k{number}") as through:
            wipe_sockets(world.device_plugins)
            self._dead.wait(wipe_to_bind_s)
            server = self._server("registration")
            deviceplugin_pb2_grpc.add_RegistrationServicer_to_server(self.registration, server)
            with next_inode(folder, inode):
                serve_through(server, through / "kubelet.sock")

    def run(self) -> None:
        """Start the sync loop: pods are looked at from here on."""
        self._sync_loop = threading.Thread(target=self._run_sync_loop, name="kubelet-sync-loop")
        self._sync_loop.start()

    def kill(self) -> None:
        """As by SIGKILL: connections drop, calls break off, socket files stay behind."""
        with self._lock:
            self._alive = False
            self._lock.notify_all()
        self._dead.set()
        self._told_ready.set()
        stopping = [server.stop(None) for server, _ in self._servers]  # first: a dead kubelet answers nothing more
        self.registration.stop()
        for stopped, (_, executor) in zip(stopping, self._servers, strict=True):
            stopped.wait()
            executor.shutdown()
        if self._sync_loop is not None and self._sync_loop is not threading.current_thread():
            self._sync_loop.join()

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self._alive

    def tell_ready(self) -> None:
        """All configuration sources have reported: let the sync loop admit what exists."""
        self._told_ready.set()

    def _server(self, name: str) -> grpc.Server:
        executor = ThreadPoolExecutor(max_workers=_GRPC_THREADS, thread_name_prefix=f"kubelet-{name}")
        server = grpc.server(executor, options=[("grpc.max_receive_message_length", -1)])
        self._servers.append((server, executor))
        return server

    def _must_be_alive(self) -> None:
        if not self._alive:
            raise KubeletDown("the kubelet died in the middle of this")

    def _run_sync_loop(self) -> None:
        """The first thing a kubelet does: admit again every pod that exists, as one batch (§10)."""
        if self._unseen():
            self._told_ready.wait(self._settings.sources_ready_after_s)
        try:
            pods = self._admit_all()
            for pod in pods:
                if pod.phase is Phase.PENDING:
                    self.sync(pod)
        except KubeletDown:
            return
        except KubeletPanic as panic:
            with self._lock:
                self._world.panics.append(panic)
            self._die()

    def _admit_all(self) -> list[Pod]:
        """Admit what is there; then the sources are ready, and what ended while no kubelet looked has ended."""
        pods: list[Pod] = []
        while True:
            for pod in self._unseen():
                pods.append(pod)
                self.admit(pod)
            with self._lock:
                self._must_be_alive()
                if self._unseen():
                    continue
                for pod in pods:
                    if pod.deleting and pod.in_api:
                        pod.stop(Phase.SUCCEEDED)
                        pod.in_api = False
                        del self._world.pods[pod.namespace, pod.name]
                    elif pod.ended_as is not None and not pod.phase.terminal:
                        pod.stop(pod.ended_as)
                self.sources_ready = True
                self._lock.notify_all()
                return pods

    def _unseen(self) -> list[Pod]:
        with self._lock:
            pods = self._world.pods.values()
            return [pod for pod in pods if not pod.phase.terminal and pod.uid not in self._known]

    # -- pods

    def admit(self, pod: Pod) -> None:
        """Take a pod in or reject it for good. Raises KubeletDown and KubeletPanic."""
        with self._admission:
            with self._lock:
                self._must_be_alive()
                if not pod.in_api or pod.phase.terminal:
                    return
                self._known.add(pod.uid)
            try:
                self._allocator.admit(pod, self.node_status, self._active_pods)
            except AdmissionRefusal as refusal:
                with self._lock:
                    self._must_be_alive()
                    pod.stop(Phase.FAILED, refusal.reason, refusal.message)
                    self._lock.notify_all()

    def admission_problem(self, pod: Pod) -> str | None:
        """What an in-place resize would meet: the same handlers, without rejecting the pod. None: accepted."""
        with self._admission:
            try:
                self._allocator.admit(pod, self.node_status, self._active_pods)
            except AdmissionRefusal as refusal:
                return str(refusal)
        return None

    def sync(self, pod: Pod) -> None:
        """Start what should run and does not: init containers one by one, then the app containers (§8)."""
        for container in pod.containers:
            with self._lock:
                if pod.phase.terminal or not pod.in_api:
                    return
                pending = container.state is ContainerState.WAITING
                if container.kind is ContainerKind.INIT and pod.phase is Phase.RUNNING:
                    pending = False
            if pending and not self.start_container(pod, container) and container.kind is not ContainerKind.APP:
                return
        with self._lock:
            if pod.phase is Phase.PENDING and all(container.starts for container in pod.containers):
                pod.phase = Phase.RUNNING
                self._lock.notify_all()

    def start_container(self, pod: Pod, container: Container) -> bool:
        """One start of one container. False: it waits with CreateContainerConfigError."""
        self._world.before_start()
        try:
            given = self._allocator.run_options(pod, container)
        except AllocationFailure as failure:
            with self._lock:
                self._must_be_alive()
                container.state = ContainerState.WAITING
                container.reason, container.message = "CreateContainerConfigError", str(failure)
                self._lock.notify_all()
            return False
        with self._lock:
            if pod.phase.terminal or not pod.in_api:
                return False  # it ended meanwhile
            container.given = given
            container.starts += 1
            container.reason = container.message = ""
            ended = container.kind is ContainerKind.INIT  # an init container of the simulation ends at once, well
            container.state = ContainerState.TERMINATED if ended else ContainerState.RUNNING
            self._lock.notify_all()
        return True

    def node_status(self) -> dict[str, Capacity]:
        """One node-status update, now; a real one comes every 10 s. Expired resources become 0 and stay named."""
        with self._lock:
            numbers, forgotten = self.manager.capacities()
            if forgotten:
                self.manager.try_save()
            self._world.node_status.update(numbers)
            self._world.node_status.update(dict.fromkeys(forgotten, Capacity(0, 0)))
            return dict(self._world.node_status)

    def _active_pods(self) -> list[Pod]:
        return [pod for pod in self._world.pods.values() if pod.uid in self._known and not pod.phase.terminal]

    # -- podresources

    def _podresources_call(self, call: PodResourcesCall) -> PodResourcesFault | None:
        with self._lock:
            self._world.podresources_calls.append(call)
            self._lock.notify_all()
            faults = self._world.podresources_faults
            return faults.pop(0) if faults and not call.rejected else None

    def _pod_rows(self, is_list: bool) -> Iterable[PodRow]:
        with self._lock:
            if is_list and self.sources_ready:
                self.manager.free_inactive({pod.uid for pod in self._active_pods()})
            rows = []
            for pod in self._world.pods.values():
                finished = pod.phase.terminal
                seen = self._settings.older and self.sources_ready if finished else pod.uid in self._known
                if not seen:
                    continue
                if is_list and self._world.hidden_from_list.get(pod.name, 0) > 0:
                    self._world.hidden_from_list[pod.name] -= 1
                    continue
                containers = sorted(
                    (container for container in pod.containers if container.kind is not ContainerKind.INIT),
                    key=lambda container: container.kind is ContainerKind.APP,
                )
                rows.append(
                    PodRow(
                        name=pod.name,
                        namespace=pod.namespace,
                        containers=tuple((c.spec.name, self._held_rows(pod, c, finished)) for c in containers),
                    )
                )
            return rows

    def _held_rows(self, pod: Pod, container: Container, finished: bool) -> tuple[HeldRow, ...]:
        if finished:  # what it had; an older kubelet says so even when that is somebody else's by now
            return tuple(HeldRow(resource=r, ids_by_numa={NO_NUMA_NODE: ids}) for r, ids in container.ids.items())
        return tuple(
            HeldRow(resource=resource, ids_by_numa=record.ids_by_numa)
            for (uid, name, resource), record in self.manager.records.items()
            if (uid, name) == (pod.uid, container.spec.name)
        )

    def _allocatable_rows(self) -> Iterable[HeldRow]:
        with self._lock:
            rows = []
            for resource, healthy in self.manager.healthy.items():
                by_numa: dict[int, list[str]] = {}
                for device_id in sorted(healthy):
                    for node in self.manager.listed[resource][device_id].numa_nodes or (NO_NUMA_NODE,):
                        by_numa.setdefault(node, []).append(device_id)
                rows.append(HeldRow(resource=resource, ids_by_numa={n: tuple(ids) for n, ids in by_numa.items()}))
            return rows
