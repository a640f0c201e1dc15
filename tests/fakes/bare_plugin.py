"""The least a device plugin can be: prepared bytes behind gRPC. It drives the fake kubelet; benches compare with it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

from sharer.kubeletapi import deviceplugin_pb2 as pb
from sharer.kubeletapi import deviceplugin_pb2_grpc as rpc

THREADS = 8
CHANNEL_OPTIONS = (("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1))


def device_list(ids: Iterable[str], *, unhealthy: Iterable[str] = (), numa_node: int | None = None) -> bytes:
    """A ListAndWatch message: `ids` Healthy, then `unhealthy`."""
    topology = None if numa_node is None else pb.TopologyInfo(nodes=[pb.NUMANode(ID=numa_node)])
    healthy = [pb.Device(ID=device_id, health="Healthy", topology=topology) for device_id in ids]
    sick = [pb.Device(ID=device_id, health="Unhealthy", topology=topology) for device_id in unhealthy]
    return pb.ListAndWatchResponse(devices=healthy + sick).SerializeToString()


def allocation(**response: object) -> bytes:
    """An Allocate answer with one container response of these fields."""
    container = pb.ContainerAllocateResponse(**response)  # type: ignore[arg-type]
    return pb.AllocateResponse(container_responses=[container]).SerializeToString()


def preference(ids: Iterable[str]) -> bytes:
    """A GetPreferredAllocation answer."""
    answer = pb.ContainerPreferredAllocationResponse(deviceIDs=ids)
    return pb.PreferredAllocationResponse(container_responses=[answer]).SerializeToString()


class BarePlugin:
    """One resource on one socket. Replace an `on_…` to answer otherwise; its ValueError becomes the gRPC error."""

    def __init__(self, folder: Path, resource: str, devices: bytes, *, endpoint: str = "bare.sock") -> None:
        self.resource = resource
        self.endpoint = endpoint
        self.options = pb.DevicePluginOptions()
        answer = allocation()
        self.on_allocate: Callable[[Sequence[str]], bytes] = lambda ids: answer
        self.on_prefer: Callable[[pb.ContainerPreferredAllocationRequest], bytes] = lambda request: b""
        self.on_pre_start: Callable[[Sequence[str]], bytes] = lambda ids: b""
        self.on_stream_end: Callable[[], None] = lambda: None
        self.calls: list[tuple[str, tuple[str, ...]]] = []  # every call that names IDs: method, IDs
        self._folder = folder
        self._changed = threading.Condition()
        self._devices, self._version, self._serving = devices, 0, False
        self._executor: ThreadPoolExecutor | None = None
        self._server: grpc.Server | None = None

    def serve(self) -> None:
        """Bind and answer."""
        self._serving = True
        self._executor = ThreadPoolExecutor(THREADS)
        self._server = grpc.server(self._executor, options=[("grpc.max_receive_message_length", -1)])
        unary, identity = grpc.unary_unary_rpc_method_handler, bytes
        handlers: dict[str, grpc.RpcMethodHandler[Any, bytes]] = {  # Any: each has its own request
            "GetDevicePluginOptions": unary(self._options, pb.Empty.FromString, identity),
            "ListAndWatch": grpc.unary_stream_rpc_method_handler(self._list, pb.Empty.FromString, identity),
            "GetPreferredAllocation": unary(self._prefer, pb.PreferredAllocationRequest.FromString, identity),
            "Allocate": unary(self._allocate, pb.AllocateRequest.FromString, identity),
            "PreStartContainer": unary(self._pre_start, pb.PreStartContainerRequest.FromString, identity),
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", handlers),))
        self._server.add_insecure_port(f"unix:{self._folder / self.endpoint}")
        self._server.start()

    def register(self, *, version: str = "v1beta1", timeout_s: float = 15.0) -> None:
        """One Register call. Raises grpc.RpcError."""
        request = pb.RegisterRequest(version=version, endpoint=self.endpoint, resource_name=self.resource)
        with grpc.insecure_channel(f"unix:{self._folder}/kubelet.sock", options=CHANNEL_OPTIONS) as channel:
            rpc.RegistrationStub(channel).Register(request, timeout=timeout_s)

    def send(self, devices: bytes) -> None:
        """Send this list on every open stream, and first on every later one."""
        with self._changed:
            self._devices, self._version = devices, self._version + 1
            self._changed.notify_all()

    def stop(self) -> None:
        """End the streams, then the server; the socket file goes with it."""
        with self._changed:
            self._serving = False
            self._changed.notify_all()
        if self._server is not None and self._executor is not None:
            self._server.stop(0).wait()
            self._executor.shutdown()

    def _list(self, _: pb.Empty, context: grpc.ServicerContext) -> Iterator[bytes]:
        context.add_callback(self._stream_ended)
        sent = -1
        while True:
            with self._changed:
                while self._serving and context.is_active() and sent == self._version:
                    self._changed.wait()
                if not self._serving or not context.is_active():
                    return
                message, sent = self._devices, self._version
            yield message

    def _stream_ended(self) -> None:
        self.on_stream_end()
        with self._changed:
            self._changed.notify_all()

    def _options(self, _: pb.Empty, context: grpc.ServicerContext) -> bytes:
        return self.options.SerializeToString()

    def _prefer(self, request: pb.PreferredAllocationRequest, context: grpc.ServicerContext) -> bytes:
        self.calls.append(("GetPreferredAllocation", tuple(request.container_requests[0].available_deviceIDs)))
        return _answer(context, lambda: self.on_prefer(request.container_requests[0]))

    def _allocate(self, request: pb.AllocateRequest, context: grpc.ServicerContext) -> bytes:
        ids = request.container_requests[0].devices_ids
        self.calls.append(("Allocate", tuple(ids)))
        return _answer(context, lambda: self.on_allocate(ids))

    def _pre_start(self, request: pb.PreStartContainerRequest, context: grpc.ServicerContext) -> bytes:
        self.calls.append(("PreStartContainer", tuple(request.devices_ids)))
        return _answer(context, lambda: self.on_pre_start(request.devices_ids))


def _answer(context: grpc.ServicerContext, make: Callable[[], bytes]) -> bytes:
    try:
        return make()
    except ValueError as refusal:
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(refusal))
