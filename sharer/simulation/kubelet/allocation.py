"""Choosing devices and asking plugins for them: admission and container start (kubelet-contract §5 to §8).

The order of every step is the kubelet's, also where it is unkind: IDs leak on an empty answer, a vanished ID is a
crash, what was given to a pod's other containers stays theirs after a refusal. Plugins are called without the lock.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable, Sequence, Set

from sharer.simulation.kubelet.devices import NO_NUMA_NODE, DeviceManager, Record
from sharer.simulation.kubelet.plugins import PluginFailure
from sharer.simulation.kubelet.pods import Container, Pod, merge
from sharer.simulation.kubelet.records import (
    Capacity,
    ContainerKind,
    ContainerState,
    Given,
    KubeletPanic,
    KubeletSettings,
)
from sharer.simulation.kubelet.topology import best_hint, resource_hints, split_by_affinity


class AllocationFailure(Exception):  # noqa: N818
    """Devices could not be given; the text is the kubelet's."""


class AdmissionRefusal(Exception):  # noqa: N818
    """The pod is rejected for good."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason
        self.message = f"Pod was rejected: {message}"


class Allocator:
    """Gives containers their devices."""

    def __init__(
        self,
        manager: DeviceManager,
        settings: KubeletSettings,
        lock: threading.Condition,
        rng: random.Random,
        *,
        sources_ready: Callable[[], bool],
        active_uids: Callable[[], Set[str]],
        must_be_alive: Callable[[], None],
    ) -> None:
        self._manager = manager
        self._settings = settings
        self._lock = lock
        self._rng = rng
        self._sources_ready = sources_ready
        self._active_uids = active_uids
        self._must_be_alive = must_be_alive  # raises KubeletDown after this process's death
        self._reusable: dict[str, dict[str, set[str]]] = {}  # pod UID → resource → IDs of its finished init containers
        self._affinity: dict[tuple[str, str], frozenset[int] | None] = {}

    # -- admission

    def admit(
        self, pod: Pod, node_status: Callable[[], dict[str, Capacity]], others: Callable[[], Iterable[Pod]]
    ) -> None:
        """Let a pod in, or raise AdmissionRefusal. Allocation comes before the fit check (§5)."""
        for container in pod.containers:
            if not self._place(pod, container):
                raise AdmissionRefusal("TopologyAffinityError", "Resources cannot be allocated with Topology locality")
            try:
                self.allocate(pod, container)
            except AllocationFailure as failure:
                raise AdmissionRefusal(
                    "UnexpectedAdmissionError", f"Allocate failed due to {failure}, which is unexpected"
                ) from failure
        with self._lock:
            self._check_fit(pod, node_status(), list(others()))

    def _place(self, pod: Pod, container: Container) -> bool:
        if self._settings.topology_policy == "none":
            return True
        with self._lock:
            self._free_inactive()
            hints = {
                resource: resource_hints(
                    self._manager,
                    self._settings.numa_nodes,
                    resource,
                    count,
                    self._manager.held(pod.uid, container.spec.name, resource),
                    self._reusable.get(pod.uid, {}).get(resource, set()),
                )
                for resource, count in container.spec.limits.items()
                if self._manager.knows(resource)
            }
            hint, admitted = best_hint(self._settings, hints)
            self._affinity[pod.uid, container.spec.name] = hint.nodes
        return admitted

    def _check_fit(self, pod: Pod, status: dict[str, Capacity], others: Sequence[Pod]) -> None:
        for resource, wanted in pod.requests().items():
            numbers = status.get(resource)
            if numbers is None or not wanted:
                continue  # a resource wholly absent from the node is somebody else's business (§4)
            allocatable = numbers.allocatable
            if self._manager.has_pod(pod.uid):
                allocatable = max(allocatable, len(self._manager.allocated.get(resource, ())))
            used = sum(other.requests().get(resource, 0) for other in others if other is not pod)
            if wanted > allocatable - used:
                raise AdmissionRefusal(
                    f"OutOf{resource}",
                    f"Node didn't have enough resource: {resource}, requested: {wanted}, used: {used},"
                    f" capacity: {allocatable}",
                )

    # -- allocation of one container

    def allocate(self, pod: Pod, container: Container) -> None:
        """Every resource of one container, in random order; one checkpoint at the end. Raises AllocationFailure."""
        with self._lock:
            reusable = self._reusable.setdefault(pod.uid, {})
            self._reusable = {pod.uid: reusable}
        resources = list(container.spec.limits)
        self._rng.shuffle(resources)
        changed = freed = False
        for resource in resources:
            with self._lock:
                if not self._manager.knows(resource):
                    continue
                if not freed:
                    self._free_inactive()
                    freed = True
            chosen = self._choose(pod, container, resource, reusable.get(resource, set()))
            if chosen:
                changed = True
                self._ask(pod, container, resource, chosen)
        if changed:
            with self._lock:
                self._must_be_alive()
                try:
                    self._manager.save()
                except OSError as error:
                    raise AllocationFailure(str(error)) from error
        with self._lock:
            for resource in resources:
                held = self._manager.held(pod.uid, container.spec.name, resource) or set()
                if container.kind is ContainerKind.INIT:
                    reusable.setdefault(resource, set()).update(held)
                else:
                    reusable.setdefault(resource, set()).difference_update(held)

    def _free_inactive(self) -> None:
        if self._sources_ready():
            self._manager.free_inactive(self._active_uids())

    def _choose(self, pod: Pod, container: Container, resource: str, reusable: Set[str]) -> list[str]:
        """The IDs to ask for; empty: nothing to do. They are marked as allocated already."""
        manager, name, required = self._manager, container.spec.name, container.spec.limits[resource]
        with self._lock:
            held = manager.held(pod.uid, name, resource)
            needed = required
            if held is not None:
                needed -= len(held)
                if needed != 0:
                    raise AllocationFailure(
                        f'pod "{pod.uid}" container "{name}" changed request for resource "{resource}"'
                        f" from {len(held)} to {required}"
                    )
            if not self._sources_ready() and container.state is ContainerState.RUNNING:
                return []
            healthy = manager.healthy.get(resource)
            if healthy is None:
                raise AllocationFailure(f"cannot allocate unregistered device {resource}")
            if not healthy:
                raise AllocationFailure(f"no healthy devices present; cannot allocate unhealthy devices {resource}")
            if held is not None and not held <= healthy:
                raise AllocationFailure(
                    f"previously allocated devices are no longer healthy; cannot allocate unhealthy devices {resource}"
                )
            if needed == 0:
                return []
            choice = _Choice(manager, resource, required, self._rng)
            if choice.take(reusable):
                return choice.ids()
            available = healthy - manager.allocated.get(resource, set())
            if len(available) < choice.needed:
                raise AllocationFailure(
                    f"requested number of devices unavailable for {resource}."
                    f" Requested: {choice.needed}, Available: {len(available)}"
                )
            aligned, unaligned, unplaced = split_by_affinity(
                manager, resource, available, self._affinity.get((pod.uid, name))
            )
            candidates = aligned if choice.needed < len(aligned) else available
            if candidates is available and choice.take(aligned):
                return choice.ids()
        preferred = self._preferred(resource, candidates | choice.taken, choice.taken, required)
        with self._lock:
            if choice.take(preferred & candidates):
                return choice.ids()
            if candidates is aligned:
                if choice.take(aligned):
                    return choice.ids()
            elif choice.take(unaligned) or choice.take(unplaced):
                return choice.ids()
        raise AllocationFailure(
            "unexpectedly allocated less resources than required."
            f" Requested: {required}, Got: {required - choice.needed}"
        )

    def _preferred(self, resource: str, available: Set[str], must_include: Set[str], size: int) -> set[str]:
        with self._lock:
            endpoint = self._manager.endpoints.get(resource)
        if endpoint is None:
            raise AllocationFailure(f"endpoint not found in cache for a registered resource: {resource}")
        if endpoint.options is None or not endpoint.options.get_preferred_allocation_available:
            return set()
        try:
            reply = endpoint.calls(resource).prefer(self._shuffled(available), self._shuffled(must_include), size)
        except PluginFailure as failure:
            self._must_be_alive()
            raise AllocationFailure(f"device plugin GetPreferredAllocation rpc failed with err: {failure}") from failure
        return set(reply or ())

    def _ask(self, pod: Pod, container: Container, resource: str, chosen: list[str]) -> None:
        """The Allocate call, and its answer put on record."""
        manager = self._manager
        with self._lock:
            endpoint = manager.endpoints.get(resource)
            if endpoint is None:
                manager.roll_back()
                raise AllocationFailure(f"unknown Device Plugin {resource}")
        try:
            reply = endpoint.calls(resource).allocate(chosen)
        except PluginFailure as failure:
            self._must_be_alive()
            with self._lock:
                manager.roll_back()
            raise AllocationFailure(str(failure)) from failure
        if not reply.container_responses:
            raise AllocationFailure("no containers return in allocation response ")  # and the marks stay: a leak (§7)
        with self._lock:
            self._must_be_alive()
            by_numa: dict[int, list[str]] = {}
            for device_id in chosen:
                listed = manager.listed.get(resource, {}).get(device_id)
                if listed is None:
                    raise KubeletPanic(
                        f"{resource}: device {device_id} was dropped from the list while its Allocate was in flight"
                        " (runtime error: invalid memory address or nil pointer dereference)"
                    )
                for node in listed.numa_nodes or (NO_NUMA_NODE,):
                    by_numa.setdefault(node, []).append(device_id)
            response = reply.container_responses[0]
            manager.records[pod.uid, container.spec.name, resource] = Record(
                ids_by_numa={node: tuple(ids) for node, ids in by_numa.items()}, response=response
            )
            container.ids[resource] = tuple(sorted(chosen))
            container.responses[resource] = response
            self._lock.notify_all()

    def _shuffled(self, ids: Set[str]) -> list[str]:
        ordered = sorted(ids)  # a set's own order is not the seed's
        self._rng.shuffle(ordered)
        return ordered

    # -- container start

    def run_options(self, pod: Pod, container: Container) -> Given:
        """What a starting container is given (§8): PreStartContainer, Allocate if nothing is on record, answers merged.

        Raises AllocationFailure, which makes the container wait with CreateContainerConfigError.
        """
        resources = [resource for resource, count in container.spec.limits.items() if count]
        self._rng.shuffle(resources)
        missing = False
        for resource in resources:
            with self._lock:
                if not self._manager.knows(resource):
                    continue
            self._pre_start(pod, container, resource)
            with self._lock:
                if (
                    pod.uid in self._active_uids()
                    and self._manager.held(pod.uid, container.spec.name, resource) is None
                ):
                    missing = True
        if missing:
            self.allocate(pod, container)
        with self._lock:
            self._must_be_alive()
            self._rng.shuffle(resources)
            records = [self._manager.records.get((pod.uid, container.spec.name, resource)) for resource in resources]
            return merge([record.response for record in records if record is not None])

    def _pre_start(self, pod: Pod, container: Container, resource: str) -> None:
        with self._lock:
            endpoint = self._manager.endpoints.get(resource)
            if endpoint is None:
                raise AllocationFailure(f"endpoint not found in cache for a registered resource: {resource}")
            if endpoint.options is None or not endpoint.options.pre_start_required:
                return
            held = self._manager.held(pod.uid, container.spec.name, resource)
            if held is None:
                raise AllocationFailure(
                    f"no devices found allocated in local cache for pod {pod.uid}, container {container.spec.name},"
                    f" resource {resource}"
                )
        try:
            endpoint.calls(resource).pre_start(self._shuffled(held), self._settings.pre_start_timeout_s)
        except PluginFailure as failure:
            self._must_be_alive()
            raise AllocationFailure(f"device plugin PreStartContainer rpc failed with err: {failure}") from failure


class _Choice:
    """The IDs taken so far for one (container, resource); each is marked as allocated the moment it is taken."""

    def __init__(self, manager: DeviceManager, resource: str, needed: int, rng: random.Random) -> None:
        self._manager = manager
        self._resource = resource
        self._rng = rng
        self.needed = needed
        self.taken: set[str] = set()

    def take(self, ids: Set[str]) -> bool:
        """Take at random what is still needed. True: complete."""
        new = sorted(ids - self.taken)
        chosen = self._rng.sample(new, min(self.needed, len(new)))
        self.taken.update(chosen)
        self._manager.allocated.setdefault(self._resource, set()).update(chosen)
        self.needed -= len(chosen)
        return self.needed == 0

    def ids(self) -> list[str]:
        """What was taken, in random order."""
        ordered = sorted(self.taken)
        self._rng.shuffle(ordered)
        return ordered
