"""Pods on the kubelet: what the API server, the container runtime and a pod's author do."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import ParamSpec, TypeVar

from sharer.simulation.kubelet.life import Life
from sharer.simulation.kubelet.pods import Pod, make_containers
from sharer.simulation.kubelet.records import (
    ContainerSpec,
    ContainerState,
    ContainerStatus,
    KubeletDown,
    KubeletPanic,
    Phase,
    PodStatus,
    Remnant,
)

_Args = ParamSpec("_Args")
_Result = TypeVar("_Result")


class Workload(Life):
    """Starts and ends pods. A pod is named by name and namespace; KeyError where there is none."""

    def start_pod(
        self,
        name: str,
        limits: Mapping[str, int] | None = None,
        *,
        containers: Sequence[ContainerSpec] = (),
        init_containers: Sequence[ContainerSpec] = (),
        namespace: str = "default",
        uid: str | None = None,
        static: bool = False,
    ) -> PodStatus:
        """Bind a pod to this node, admit it and start its containers; waits for every call to plugins.

        `limits` is short for one container "main". Init containers end at once, successfully. A static pod's name is
        given the node's name as suffix, and its UID is a hash without dashes. While the kubelet is down (or dies
        meanwhile) the pod stays Pending and is admitted at the next start. Raises KubeletPanic.
        """
        specs = tuple(containers) or (ContainerSpec(limits=limits or {}),)
        if limits is not None and containers:
            raise ValueError("give limits or containers, not both")
        random_uid = uuid.UUID(int=self._rng.getrandbits(128), version=4)
        pod = Pod(
            name=f"{name}-{self.settings.node_name}" if static else name,
            namespace=namespace,
            uid=uid or (random_uid.hex if static else str(random_uid)),
            containers=make_containers(specs, init_containers),
        )
        with self._changed:
            key = (namespace, pod.name)
            if key in self._world.pods:
                raise ValueError(f"pod {namespace}/{pod.name} exists; delete it first")
            process = self._process
            if process is not None and not process.sources_ready and self.settings.sources_ready_after_s is not None:
                self._changed.wait_for(lambda: process.sources_ready or not process.alive)
            self._world.pods[key] = pod
            self._changed.notify_all()
        if process is not None and process.sources_ready:
            self._drive(process.admit, pod)
            self._drive(process.sync, pod)
        with self._changed:
            return pod.status()

    def sync_pod(self, name: str, namespace: str = "default") -> PodStatus:
        """Try again what has not started: the kubelet's own retry, 11 to 16 s later on a real node."""
        pod, process = self._pod(name, namespace), self._running()
        self._drive(process.sync, pod)
        return self.pod(name, namespace)

    def restart_container(self, name: str, container: str = "main", namespace: str = "default") -> ContainerStatus:
        """The container exits and is started again in its living pod: no Allocate, the stored answer (§7)."""
        pod, process = self._pod(name, namespace), self._running()
        self.crash_container(name, container, namespace)
        self._drive(process.start_container, pod, pod.container(container))
        return self.pod(name, namespace).container(container)

    def crash_container(self, name: str, container: str = "main", namespace: str = "default") -> None:
        """The container exits and stays in back-off; `sync_pod` or `restart_container` starts it again."""
        with self._changed:
            crashed = self._pod(name, namespace).container(container)
            crashed.state, crashed.reason, crashed.message = ContainerState.WAITING, "CrashLoopBackOff", ""
            self._changed.notify_all()

    def resize_pod(self, name: str, namespace: str = "default") -> str | None:
        """An in-place resize of cpu or memory: admission again. None: accepted; else why it is deferred (§5)."""
        pod, process = self._pod(name, namespace), self._running()
        return self._drive(process.admission_problem, pod)

    def end_pod(self, name: str, phase: Phase = Phase.SUCCEEDED, namespace: str = "default") -> None:
        """Its containers exit and the phase turns terminal.

        While the kubelet is down, only once it is back; and then as Failed if its devices cannot be admitted again.
        """
        with self._changed:
            pod = self._pod(name, namespace)
            if self._process is None:
                pod.ended_as = phase
                for container in pod.containers:
                    container.state = ContainerState.TERMINATED
            else:
                pod.stop(phase)
            self._changed.notify_all()

    def delete_pod(self, name: str, namespace: str = "default") -> None:
        """A normal delete: its containers exit, then it is gone (while the kubelet is down: only once it is back)."""
        with self._changed:
            pod = self._pod(name, namespace)
            if self._process is None:
                pod.deleting = True
            else:
                pod.stop(Phase.SUCCEEDED)
                self._forget(pod)

    def force_delete_pod(self, name: str, namespace: str = "default") -> None:
        """Gone at once for API and kubelet; what ran goes on running as a remnant until `end_remnant` (§9)."""
        with self._changed:
            pod = self._pod(name, namespace)
            alive = tuple(c.status() for c in pod.containers if c.state is ContainerState.RUNNING)
            if alive:
                self._remnants.append(Remnant(name=pod.name, namespace=namespace, uid=pod.uid, containers=alive))
            self._forget(pod)

    def remnants(self) -> tuple[Remnant, ...]:
        """Forgotten pods that still run."""
        with self._changed:
            return tuple(self._remnants)

    def end_remnant(self, uid: str) -> None:
        """The last process of a forgotten pod ends."""
        with self._changed:
            self._remnants = [remnant for remnant in self._remnants if remnant.uid != uid]
            self._changed.notify_all()

    def pod(self, name: str, namespace: str = "default") -> PodStatus:
        """A pod as it is now. Raises KeyError if there is none."""
        with self._changed:
            return self._pod(name, namespace).status()

    def pods(self) -> tuple[PodStatus, ...]:
        """Every pod in the API, oldest first."""
        with self._changed:
            return tuple(pod.status() for pod in self._world.pods.values())

    def _drive(self, step: Callable[_Args, _Result], *args: _Args.args, **kwargs: _Args.kwargs) -> _Result | None:
        """Run a step of the kubelet. None: it died meanwhile; its panic kills it and is raised."""
        try:
            return step(*args, **kwargs)
        except KubeletDown:
            return None
        except KubeletPanic as panic:
            with self._changed:
                self._world.panics.append(panic)
            self.kill()
            raise

    def _forget(self, pod: Pod) -> None:
        del self._world.pods[pod.namespace, pod.name]
        pod.in_api = False
        self._changed.notify_all()
