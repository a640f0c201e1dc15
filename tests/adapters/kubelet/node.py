"""A plugin server with steerable answers, and a client that speaks to it as the kubelet does."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import grpc

from sharer.adapters.kubelet.counters import Tally
from sharer.adapters.kubelet.feed import DeviceFeed
from sharer.adapters.kubelet.server import PluginServer
from sharer.core.edits import ContainerEdits, DeviceNode, Mount
from sharer.core.errors import RequestError
from sharer.core.ports.kubelet import ListedDevice, ResourceAnswers, ResourceOptions
from sharer.kubeletapi import deviceplugin_pb2 as api
from sharer.kubeletapi import deviceplugin_pb2_grpc as api_grpc

PATIENCE_S = 30.0


class Answers:
    """Answers that tests steer; IDs called "bad" cannot run."""

    def __init__(self) -> None:
        self.before_answering: Callable[[], None] = lambda: None
        self.started: list[list[str]] = []

    def allocate(self, ids: Sequence[str]) -> ContainerEdits:
        self.before_answering()
        if "bad" in ids:
            raise RequestError("device ID 'bad' cannot run: its GPU is at fault; delete the pod to get another GPU")
        return ContainerEdits(
            env=(("SHARER_DEVICE_IDS", ",".join(sorted(ids))), ("Z", "1")),
            mounts=(
                Mount("/run/inside", "/run/outside", read_only=True),
                Mount("/scratch", "/scratch", read_only=False),
            ),
            device_nodes=(DeviceNode("/dev/nvidia0", "/dev/nvidia0", "rwm"),),
            cdi_names=("nvidia.com/gpu=0",),
        )

    def prefer(self, available: Sequence[str], must_include: Sequence[str], size: int) -> list[str]:
        self.before_answering()
        return [*must_include, *sorted(set(available) - set(must_include), reverse=True)][:size]

    def pre_start(self, ids: Sequence[str]) -> None:
        self.before_answering()
        if "bad" in ids:
            raise RequestError("the limit of 'bad' does not hold yet; the start is tried again")
        self.started.append(list(ids))


class Node:
    """A server, and a client that speaks to it as the kubelet does."""

    def __init__(self, directory: Path, options: ResourceOptions) -> None:
        self.answers: ResourceAnswers = Answers()
        self.feed = DeviceFeed(devices(4), burst_s=0.05)
        self.tally = Tally()
        self.streams_changed: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.server = PluginServer(
            path=directory / "s.sock",
            options=options,
            feed=self.feed,
            answers=lambda: self.answers,
            tally=self.tally,
            stream_changed=lambda: self.streams_changed.put(None),
        )
        self.server.start()
        self.channel = grpc.insecure_channel(
            f"unix:{directory}/s.sock",
            options=[("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)],
        )
        self.stub = api_grpc.DevicePluginStub(self.channel)

    def allocate(self, *requests: Sequence[str]) -> api.AllocateResponse:
        containers = [api.ContainerAllocateRequest(devices_ids=ids) for ids in requests]
        return self.stub.Allocate(api.AllocateRequest(container_requests=containers), timeout=PATIENCE_S)

    def prefer(self, available: Sequence[str], must_include: Sequence[str], size: int) -> list[str]:
        answer = self.stub.GetPreferredAllocation(preferred_request(available, must_include, size), timeout=PATIENCE_S)
        [container] = answer.container_responses
        return list(container.deviceIDs)

    def pre_start(self, *ids: str) -> None:
        self.stub.PreStartContainer(api.PreStartContainerRequest(devices_ids=ids), timeout=PATIENCE_S)

    def watch(self) -> Watched:
        return Watched(self.stub)

    def close(self) -> None:
        self.channel.close()
        self.server.end(grace_s=1)


class Watched:
    """An open ListAndWatch whose messages arrive in a queue; None is its end."""

    def __init__(self, stub: api_grpc.DevicePluginStub) -> None:
        self.call = stub.ListAndWatch(api.Empty())
        self._messages: queue.SimpleQueue[api.ListAndWatchResponse | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        try:
            for message in self.call:
                self._messages.put(message)
        except grpc.RpcError:
            pass
        finally:
            self._messages.put(None)

    def next(self) -> dict[str, str] | None:
        """The next list as ID → health; None: the stream has ended."""
        message = self._messages.get(timeout=PATIENCE_S)
        return None if message is None else {device.ID: device.health for device in message.devices}

    def stays_silent(self, for_s: float) -> bool:
        try:
            self._messages.get(timeout=for_s)
        except queue.Empty:
            return True
        return False

    @property
    def silent(self) -> bool:
        return self._messages.empty()


def devices(count: int, *, healthy: bool = True) -> list[ListedDevice]:
    return [ListedDevice(id=f"GPU-0::ts-{number}", healthy=healthy) for number in range(count)]


def as_read(listed: Sequence[ListedDevice]) -> dict[str, str]:
    return {device.id: "Healthy" if device.healthy else "Unhealthy" for device in listed}


def preferred_request(available: Sequence[str], must: Sequence[str], size: int) -> api.PreferredAllocationRequest:
    one = api.ContainerPreferredAllocationRequest(
        available_deviceIDs=available, must_include_deviceIDs=must, allocation_size=size
    )
    return api.PreferredAllocationRequest(container_requests=[one])
