"""The kubelet's side of one plugin: dial, ask, read its list (kubelet-contract §1, §2). Errors read as Go's do."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar, cast

import grpc
from google.protobuf.message import Message

from sharer.kubeletapi import deviceplugin_pb2 as pb
from sharer.kubeletapi import deviceplugin_pb2_grpc as rpc
from sharer.simulation.kubelet.sockets import answers_http2

MESSAGE_LIMIT_BYTES = 4_194_304  # grpc-go's default for what a client receives; the kubelet does not raise it

_CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", MESSAGE_LIMIT_BYTES),
    ("grpc.max_send_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),  # otherwise a plugin that is back inherits its predecessor's back-off
)
_Reply = TypeVar("_Reply", bound=Message)


class PluginFailure(Exception):  # noqa: N818
    """A plugin could not be reached or answered an error. The text is the kubelet's."""


def go_text(error: grpc.RpcError) -> str:
    """The error as grpc-go prints it: `rpc error: code = InvalidArgument desc = …`."""
    call = cast(grpc.Call, error)  # what a stub raises is both; the stubs' types cannot say so
    name = "".join(word.capitalize() for word in call.code().name.split("_"))
    name = {"Ok": "OK", "Cancelled": "Canceled"}.get(name, name)
    return f"rpc error: code = {name} desc = {call.details()}"


class PluginClient:
    """One connection to a plugin. The real kubelet never closes a replaced one, nor does this (§2.4)."""

    def __init__(self, resource: str, folder: Path, endpoint: str) -> None:
        self.resource = resource
        self.endpoint = endpoint
        # Go's filepath.Join: even an absolute endpoint lands under the folder, and "" is the folder itself.
        self.path = os.path.normpath(f"{folder}/{endpoint}")
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._channel: grpc.Channel | None = None
        self._stub: rpc.DevicePluginStub | None = None

    def dial(self, timeout_s: float) -> None:
        """Block until the plugin serves. Raises PluginFailure after `timeout_s`."""
        if not answers_http2(self.path, timeout_s, self._closed):
            raise PluginFailure("failed to dial device plugin: context deadline exceeded")
        with self._lock:
            if not self._closed.is_set():
                self._channel = grpc.insecure_channel(f"unix:{self.path}", options=_CHANNEL_OPTIONS)
                self._stub = rpc.DevicePluginStub(self._channel)

    def options(self, timeout_s: float | None) -> pb.DevicePluginOptions:
        """GetDevicePluginOptions. Raises PluginFailure."""
        return self._call(lambda stub: stub.GetDevicePluginOptions(pb.Empty(), timeout=timeout_s))

    def prefer(self, available: Sequence[str], must_include: Sequence[str], size: int) -> list[str] | None:
        """GetPreferredAllocation, no deadline. None: no container_responses. Raises PluginFailure."""
        request = pb.PreferredAllocationRequest(
            container_requests=[
                pb.ContainerPreferredAllocationRequest(
                    available_deviceIDs=available, must_include_deviceIDs=must_include, allocation_size=size
                )
            ]
        )
        reply = self._call(lambda stub: stub.GetPreferredAllocation(request))
        return list(reply.container_responses[0].deviceIDs) if reply.container_responses else None

    def allocate(self, ids: Sequence[str]) -> pb.AllocateResponse:
        """Allocate with exactly one container request, no deadline. Raises PluginFailure."""
        request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=ids)])
        return self._call(lambda stub: stub.Allocate(request))

    def pre_start(self, ids: Sequence[str], timeout_s: float) -> None:
        """PreStartContainer. Raises PluginFailure."""
        request = pb.PreStartContainerRequest(devices_ids=ids)
        self._call(lambda stub: stub.PreStartContainer(request, timeout=timeout_s))

    def read_list(self, on_message: Callable[[pb.ListAndWatchResponse], None]) -> str:
        """Hand over each list until the stream ends, for whatever reason; no deadline. Returns the reason."""
        with self._lock:
            if self._stub is None or self._closed.is_set():
                return "the client connection is closing"
            call = self._stub.ListAndWatch(pb.Empty())
        try:
            for message in call:
                on_message(message)
        except grpc.RpcError as error:
            return go_text(error)
        return "EOF"

    def close(self) -> None:
        """Cut the connection: its stream and calls end at once. Twice is the same as once."""
        self._closed.set()
        with self._lock:
            if self._channel is not None:
                self._channel.close()

    def _call(self, ask: Callable[[rpc.DevicePluginStub], _Reply]) -> _Reply:
        stub = self._stub
        try:
            if stub is None:
                raise ValueError("closed while dialling")
            return ask(stub)
        except grpc.RpcError as error:
            raise PluginFailure(go_text(error)) from error
        except ValueError as error:  # gRPC's "Cannot invoke RPC on closed channel!"
            raise PluginFailure("rpc error: code = Canceled desc = grpc: the client connection is closing") from error
