"""`kubelet.sock`: Register, and the clients it leads to (kubelet-contract §2). Every trap of §2.4 is kept as it is."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import grpc

from sharer.kubeletapi import deviceplugin_pb2 as pb
from sharer.kubeletapi import deviceplugin_pb2_grpc as rpc
from sharer.simulation.kubelet.devices import DeviceManager
from sharer.simulation.kubelet.journal import Block, Die, Ignore, Journal, Refuse
from sharer.simulation.kubelet.names import is_extended_resource
from sharer.simulation.kubelet.plugins import PluginClient, PluginFailure
from sharer.simulation.kubelet.records import KubeletSettings, ListedDevice, ListMessage, RegisterCall
from sharer.simulation.kubelet.sockets import socket_state

VERSION = "v1beta1"
_NO_DEADLINE_S = 1e9  # gRPC reports about 9e18 s where there is none


class Registration(rpc.RegistrationServicer):
    """The registration server of one kubelet process, its table of clients and the threads that read their lists."""

    def __init__(
        self,
        folder: Path,
        settings: KubeletSettings,
        manager: DeviceManager,
        journal: Journal,
        lock: threading.Condition,
        *,
        die: Callable[[], None],
    ) -> None:
        self._folder = folder
        self._settings = settings
        self._manager = manager
        self._journal = journal
        self._lock = lock
        self._die = die  # kills this kubelet soon, from another thread
        self._dead = threading.Event()
        self._clients: dict[str, PluginClient] = {}  # the kubelet's table: one per resource, the latest
        self._all_clients: list[PluginClient] = []  # also those replaced without being closed
        self._readers: list[threading.Thread] = []

    def Register(self, request: pb.RegisterRequest, context: grpc.ServicerContext) -> pb.Empty:  # noqa: N802
        """Validate, dial, ask for options, start reading; errors are UNKNOWN with the kubelet's texts (§2.2)."""
        began_s = self._settings.clock()
        left_s = context.time_remaining()
        number = self._journal.arrived(
            RegisterCall(
                at_s=began_s,
                version=request.version,
                endpoint=request.endpoint,
                resource=request.resource_name,
                options=request.options,
                deadline_s=None if left_s > _NO_DEADLINE_S else left_s,
                socket=socket_state(f"{self._folder}/{request.endpoint}"),
                live_streams=0,
                calls_in_progress=0,
            )
        )
        error = None
        try:
            self._register(request, context, number)
        except PluginFailure as failure:
            error = str(failure)
        self._journal.update(number, took_s=self._settings.clock() - began_s, error=error)
        if error is not None:
            context.abort(grpc.StatusCode.UNKNOWN, error)
        return pb.Empty()

    def stop(self) -> None:
        """The process is dead: every connection drops, every thread ends."""
        self._dead.set()
        with self._lock:
            clients, readers = list(self._all_clients), list(self._readers)
        for client in clients:
            client.close()
        for reader in readers:
            reader.join()

    def cut(self, resource: str) -> None:
        """Drop the resource's connection from this side, as when its plugin is lost; nothing if there is none."""
        with self._lock:
            client = self._clients.get(resource)
        if client is not None:
            client.close()  # the reader thread does the rest

    def _register(self, request: pb.RegisterRequest, context: grpc.ServicerContext, number: int) -> None:
        fault = self._journal.next_fault(request.resource_name)
        match fault:
            case Refuse(text=text):
                raise PluginFailure(text)
            case Block():
                fault.wait(self._dead)
            case Ignore():
                return
            case Die(answer=False):
                self._die()
                self._dead.wait()  # the caller sees the connection drop, no answer
        if request.version != VERSION:
            raise PluginFailure(
                f'requested API version "{request.version}" is not supported by kubelet.'
                f' Supported version is ["{VERSION}"]'
            )
        if not is_extended_resource(request.resource_name):
            raise PluginFailure(f'the ResourceName "{request.resource_name}" is invalid')
        client = self._connect(request, context, number)
        if isinstance(fault, Die):
            if not context.add_callback(self._die):  # runs when the answer is out
                self._die()
            return
        reader = threading.Thread(target=self._read, args=(client,), name=f"kubelet-list-{client.resource}")
        with self._lock:
            if not self._dead.is_set():
                self._readers = [other for other in self._readers if other.is_alive()] + [reader]
                reader.start()

    def _connect(self, request: pb.RegisterRequest, context: grpc.ServicerContext, number: int) -> PluginClient:
        resource = request.resource_name
        client = PluginClient(resource, self._folder, request.endpoint)
        with self._lock:
            self._clients[resource] = client  # an earlier one is replaced, not closed
            self._all_clients.append(client)
            if self._dead.is_set():
                client.close()
        try:
            client.dial(self._settings.dial_timeout_s)
            try:
                left_s = context.time_remaining()
                options = client.options(None if left_s > _NO_DEADLINE_S else max(0.0, left_s))
            except PluginFailure as failure:
                raise PluginFailure(f"failed to get device plugin options: {failure}") from failure
        except PluginFailure:
            with self._lock:
                self._clients.pop(resource, None)  # by name: a good earlier client is forgotten with it
            raise
        self._journal.update(number, answered_options=options)
        with self._lock:
            self._manager.connected(resource, client, options)
            self._lock.notify_all()
        return client

    def _read(self, client: PluginClient) -> None:
        """Read one plugin's lists until its stream ends; then close *the resource's current client*, maybe another."""
        clock = self._settings.clock
        stream = self._journal.opened(client.resource, client.endpoint, clock())
        known: dict[ListedDevice, ListedDevice] = {}  # every message is kept: equal devices only once

        def take(message: pb.ListAndWatchResponse) -> None:
            received = (
                ListedDevice(device.ID, device.health, tuple(node.ID for node in device.topology.nodes))
                for device in message.devices
            )
            devices = tuple(known.setdefault(device, device) for device in received)
            with self._lock:
                if self._dead.is_set():
                    return
                self._manager.take_list(client.resource, devices)
                self._manager.try_save()
                self._journal.received(
                    stream, ListMessage(at_s=clock(), size_bytes=message.ByteSize(), devices=devices)
                )

        reason = client.read_list(take)
        with self._lock:
            self._journal.ended(stream, reason, clock())
            current = None if self._dead.is_set() else self._clients.pop(client.resource, None)
            if current is not None:
                self._manager.disconnected(client.resource)
                self._lock.notify_all()
            endpoint = self._manager.endpoints.get(client.resource)
            done = [] if current is None else [current]
            if endpoint is None or endpoint.client is not client:
                done.append(client)  # nothing can ever call it again: no trace the plugin could see, but a channel less
            self._all_clients = [other for other in self._all_clients if other not in done]
        for finished in done:
            finished.close()
