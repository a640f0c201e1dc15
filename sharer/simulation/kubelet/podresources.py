"""The podresources socket, v1 (kubelet-contract §12): who holds what, with the limiter that is everybody's."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import grpc

from sharer.kubeletapi import podresources_pb2 as pb
from sharer.kubeletapi import podresources_pb2_grpc as rpc

QPS = 100.0
BURST = 10


class RateLimiter:
    """A token bucket, as golang.org/x/time/rate's `Allow`."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._tokens = float(BURST)
        self._at_s = clock()

    def allow(self) -> bool:
        """Take a token if there is one."""
        with self._lock:
            now_s = self._clock()
            self._tokens = min(float(BURST), self._tokens + (now_s - self._at_s) * QPS)
            self._at_s = now_s
            if self._tokens < 1.0:
                return False
            self._tokens -= 1.0
            return True


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldRow:
    """One container's devices of one resource, as the kubelet files them."""

    resource: str
    ids_by_numa: Mapping[int, tuple[str, ...]]  # -1: no topology


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRow:
    """One pod as podresources shows it: sidecars, then app containers."""

    name: str
    namespace: str
    containers: tuple[tuple[str, tuple[HeldRow, ...]], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PodResourcesCall:
    """One call, for tests that count them."""

    at_s: float
    method: str
    rejected: bool  # by the rate limit


@dataclass(frozen=True, slots=True)
class Fail:
    """Answer the next call with this error."""

    code: grpc.StatusCode = grpc.StatusCode.INTERNAL
    details: str = "injected"


@dataclass(frozen=True, slots=True)
class Hang:
    """Keep the next call waiting: until the caller gives up, or the kubelet dies."""


@dataclass(frozen=True, slots=True)
class Repeat:
    """Answer the next `List` with every row twice, as the real one does for a device on two NUMA nodes."""


PodResourcesFault = Fail | Hang | Repeat


class PodResources(rpc.PodResourcesListerServicer):
    """The service of one kubelet process."""

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        rows: Callable[[bool], Iterable[PodRow]],
        allocatable: Callable[[], Iterable[HeldRow]],
        log: Callable[[PodResourcesCall], PodResourcesFault | None],
        serves_get: bool,
    ) -> None:
        self._clock = clock
        self._rows = rows  # True: for `List`, which frees stale devices first
        self._allocatable = allocatable
        self._log = log  # returns the fault planned for this call
        self._serves_get = serves_get
        self._limiter = RateLimiter(clock)

    def List(  # noqa: N802
        self,
        request: pb.ListPodResourcesRequest,
        context: grpc.ServicerContext,
    ) -> pb.ListPodResourcesResponse:
        """Every pod that counts, also those without devices."""
        fault = self._enter("List", context)
        pods = [_pod(row) for row in self._rows(True)]
        if isinstance(fault, Repeat):
            for container in (container for pod in pods for container in pod.containers):
                container.devices.extend(list(container.devices))
        return pb.ListPodResourcesResponse(pod_resources=pods)

    def Get(self, request: pb.GetPodResourcesRequest, context: grpc.ServicerContext) -> pb.GetPodResourcesResponse:  # noqa: N802
        """One pod; UNKNOWN if it is absent or inactive."""
        if not self._serves_get:
            context.abort(grpc.StatusCode.UNKNOWN, "PodResources API Get method disabled")
        self._enter("Get", context)
        wanted = (request.pod_name, request.pod_namespace)
        found = [row for row in self._rows(False) if (row.name, row.namespace) == wanted]
        if not found:
            context.abort(grpc.StatusCode.UNKNOWN, f"pod {wanted[0]} in namespace {wanted[1]} not found")
        return pb.GetPodResourcesResponse(pod_resources=_pod(found[0]))

    def GetAllocatableResources(  # noqa: N802
        self,
        request: pb.AllocatableResourcesRequest,
        context: grpc.ServicerContext,
    ) -> pb.AllocatableResourcesResponse:
        """All healthy IDs, allocated or not."""
        self._enter("GetAllocatableResources", context)
        return pb.AllocatableResourcesResponse(devices=[row for held in self._allocatable() for row in _devices(held)])

    def _enter(self, method: str, context: grpc.ServicerContext) -> PodResourcesFault | None:
        allowed = self._limiter.allow()
        fault = self._log(PodResourcesCall(at_s=self._clock(), method=method, rejected=not allowed))
        if not allowed:
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
        match fault:
            case Fail(code=code, details=details):
                context.abort(code, details)
            case Hang():
                released = threading.Event()
                if context.add_callback(released.set):
                    released.wait()
                context.abort(grpc.StatusCode.CANCELLED, "the caller gave up")
        return fault


def _pod(row: PodRow) -> pb.PodResources:
    return pb.PodResources(
        name=row.name,
        namespace=row.namespace,
        containers=[
            pb.ContainerResources(name=name, devices=[entry for row_held in held for entry in _devices(row_held)])
            for name, held in row.containers
        ],
    )


def _devices(held: HeldRow) -> list[pb.ContainerDevices]:
    """One row per (device, NUMA node), never grouped; without topology there is no such field."""
    return [
        pb.ContainerDevices(
            resource_name=held.resource,
            device_ids=[device_id],
            topology=None if node < 0 else pb.TopologyInfo(nodes=[pb.NUMANode(ID=node)]),
        )
        for node, ids in held.ids_by_numa.items()
        for device_id in ids
    ]
