"""One gRPC server on one socket file, for one registration of one resource.

`ListAndWatch(Empty)` names no resource, so each resource has its own server; and a file name is never used twice
(kubelet-contract §16.1). Synchronous gRPC: aio and the others were measured and are within noise (DESIGN §10). An open
ListAndWatch holds a worker thread; threads are made as calls need them.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import grpc

from sharer.adapters.kubelet import wire
from sharer.adapters.kubelet.counters import Tally
from sharer.adapters.kubelet.feed import DeviceFeed, Stream, Streams
from sharer.adapters.kubelet.repeats import Repeats
from sharer.core.errors import NodeError, RequestError
from sharer.core.ports.kubelet import ResourceAnswers, ResourceOptions
from sharer.kubeletapi import deviceplugin_pb2 as api

log = logging.getLogger(__name__)

_Answer = TypeVar("_Answer")

_WORKERS = 20  # 2 streams, 16 calls at once, and room for questions about options
_OPTIONS = (
    ("grpc.max_receive_message_length", -1),  # a preferred request repeats every free ID: several MiB
    ("grpc.so_reuseport", 0),
    ("grpc.http2.bdp_probe", 0),  # pings that measure a network: here is none, and each wakes idle threads of gRPC
)


class PluginServer:
    """Serves from `start` to `end`; used once."""

    def __init__(
        self,
        *,
        path: Path,
        options: ResourceOptions,
        feed: DeviceFeed,
        answers: Callable[[], ResourceAnswers],
        tally: Tally,
        stream_changed: Callable[[], None],
    ) -> None:
        self.path = path
        self.options = options
        self._bound = False
        self._streams = Streams(stream_changed)
        self._workers = ThreadPoolExecutor(_WORKERS, thread_name_prefix=path.stem)
        self._server = grpc.server(self._workers, options=_OPTIONS)
        handlers = _Handlers(options, feed, self._streams, answers, tally).by_method()
        self._server.add_registered_method_handlers(wire.SERVICE, handlers)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(wire.SERVICE, handlers),))

    def start(self) -> None:
        """Bind the socket and serve. Raises NodeError if it cannot be bound."""
        try:
            self._server.add_insecure_port(f"unix:{self.path}")
        except RuntimeError as error:
            raise NodeError(f"cannot make the socket {self.path}; is the directory there and writable?") from error
        self._bound = True
        self._server.start()

    @property
    def kubelet_reads(self) -> bool | None:
        """Whether the kubelet's ListAndWatch is open; None: it has not come yet."""
        return self._streams.kubelet_reads

    def readers_are_told(self) -> bool:
        """Whether everybody who reads the list has been sent the present one."""
        return self._streams.are_told()

    def end(self, grace_s: float) -> None:
        """End every stream, give other calls `grace_s`, remove the socket. Returns when it is all over."""
        self._streams.end_all()
        self._server.stop(grace_s).wait(2 * grace_s + 1)  # bounded: after the grace every call is cancelled
        self._workers.shutdown(wait=False)
        if self._bound:
            with contextlib.suppress(OSError):  # read-only by now: a dead file, which the next agent takes away
                self.path.unlink(missing_ok=True)  # gRPC does it only for a server that was started


class _Handlers:
    """The five calls of the kubelet. Nothing here waits for anything but the answers."""

    def __init__(
        self,
        options: ResourceOptions,
        feed: DeviceFeed,
        streams: Streams,
        answers: Callable[[], ResourceAnswers],
        tally: Tally,
    ) -> None:
        self._options = options
        self._feed = feed
        self._streams = streams
        self._answers = answers
        self._tally = tally
        self._repeats = Repeats()

    def by_method(self) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        """For gRPC. Where there is no serialiser, the handler gives bytes."""
        unary, stream = grpc.unary_unary_rpc_method_handler, grpc.unary_stream_rpc_method_handler
        return {
            "GetDevicePluginOptions": unary(
                self._get_options, api.Empty.FromString, api.DevicePluginOptions.SerializeToString
            ),
            "ListAndWatch": stream(self._list_and_watch, api.Empty.FromString, None),
            "GetPreferredAllocation": unary(
                self._prefer,
                api.PreferredAllocationRequest.FromString,
                api.PreferredAllocationResponse.SerializeToString,
            ),
            "Allocate": unary(self._allocate, api.AllocateRequest.FromString, None),
            "PreStartContainer": unary(
                self._pre_start,
                api.PreStartContainerRequest.FromString,
                api.PreStartContainerResponse.SerializeToString,
            ),
        }

    def _get_options(self, _request: api.Empty, _context: grpc.ServicerContext) -> api.DevicePluginOptions:
        self._tally.request("GetDevicePluginOptions", "OK")
        return wire.options_message(self._options)

    def _list_and_watch(self, _request: api.Empty, context: grpc.ServicerContext) -> Iterator[bytes]:
        stream = Stream(self._feed)
        self._streams.opened(stream)
        self._tally.request("ListAndWatch", "OK")
        if not context.add_callback(lambda: self._streams.closed(stream)):
            self._streams.closed(stream)  # the caller went away before we looked
        yield from stream.messages()

    def _allocate(self, request: api.AllocateRequest, context: grpc.ServicerContext) -> bytes:
        refusal = grpc.StatusCode.INVALID_ARGUMENT
        return self._answer("Allocate", refusal, context, lambda: wire.allocate(self._answers(), request))

    def _pre_start(
        self, request: api.PreStartContainerRequest, context: grpc.ServicerContext
    ) -> api.PreStartContainerResponse:
        if self._options.pre_start_required:
            refusal = grpc.StatusCode.FAILED_PRECONDITION
            ids = list(request.devices_ids)
            self._answer("PreStartContainer", refusal, context, lambda: self._answers().pre_start(ids))
        return api.PreStartContainerResponse()

    def _prefer(
        self, request: api.PreferredAllocationRequest, _context: grpc.ServicerContext
    ) -> api.PreferredAllocationResponse:
        """Never an error: the kubelet would reject the pod for want of advice."""
        began_s = time.perf_counter()
        try:
            response = wire.prefer(self._answers(), request)
        except Exception as error:  # the boundary to gRPC: reported, and there is always a lawful answer
            sentence = f"GetPreferredAllocation failed ({_described(error)}); took the first IDs by name instead"
            log.log(self._repeats.level(logging.ERROR, sentence), sentence, exc_info=error)
            response = wire.prefer_any(request)
        self._tally.request("GetPreferredAllocation", "OK", time.perf_counter() - began_s)
        return response

    def _answer(
        self, method: str, refusal: grpc.StatusCode, context: grpc.ServicerContext, answer: Callable[[], _Answer]
    ) -> _Answer:
        """The answer, or a gRPC error in words: the kubelet shows them to the pod's author."""
        began_s = time.perf_counter()
        try:
            answered = answer()
        except RequestError as error:
            code, text = refusal, str(error)
            log.log(self._repeats.level(logging.WARNING, text), "refused %s: %s", method, text)
        except Exception as error:  # the boundary to gRPC: reported in full here, in one sentence to the kubelet
            code = grpc.StatusCode.INTERNAL
            text = f"sharer failed to answer {method} ({_described(error)}); its log says more"
            log.log(self._repeats.level(logging.ERROR, text), text, exc_info=error)
        else:
            self._tally.request(method, "OK", time.perf_counter() - began_s)
            return answered
        self._tally.request(method, code.name, time.perf_counter() - began_s)
        return context.abort(code, text)


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
