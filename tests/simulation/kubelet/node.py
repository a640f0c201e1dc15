"""A fake kubelet in a short temporary folder, with bare plugins and shortened waits: for the tests of the fake."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import grpc
import pytest

from sharer.simulation.kubelet import FakeKubelet, KubeletSettings
from tests.fakes.bare_plugin import BarePlugin, allocation, device_list

GPU = "example.com/gpu"
FAST = KubeletSettings(podresources_lead_s=0.0, sources_ready_after_s=0.0)
IMPATIENT = dataclasses.replace(FAST, dial_timeout_s=1.0)  # where it dials a plugin that is not there


@dataclasses.dataclass
class Node:
    """A kubelet and the plugins made on it; all of them end with the test."""

    kubelet: FakeKubelet
    root: Path
    plugins: list[BarePlugin] = dataclasses.field(default_factory=list)

    def plugin(self, devices: bytes | str, resource: str = GPU, endpoint: str = "bare.sock") -> BarePlugin:
        """A plugin that serves; a string is one healthy device a letter."""
        plugin = BarePlugin(
            self.kubelet.device_plugin_dir,
            resource,
            device_list(devices) if isinstance(devices, str) else devices,
            endpoint=endpoint,
        )
        self.plugins.append(plugin)
        plugin.serve()
        return plugin

    def registered(self, devices: bytes | str, resource: str = GPU, endpoint: str = "bare.sock") -> BarePlugin:
        """A plugin that serves, is registered, and whose first list has arrived."""
        plugin = self.plugin(devices, resource, endpoint)
        self.register(plugin)
        return plugin

    def register(self, plugin: BarePlugin) -> None:
        """Register and wait for the first list."""
        before = len(self.kubelet.streams(plugin.resource))
        plugin.register()
        self.kubelet.wait_for(lambda: len(self.kubelet.streams(plugin.resource)) > before)
        self.kubelet.wait_stream(plugin.resource, lambda stream: bool(stream.messages), what="a first list")


def answer_when_released(plugin: BarePlugin) -> tuple[threading.Event, threading.Event]:
    """Let the plugin's next answers to Allocate wait. The first event: one was asked for; the second lets them go."""
    entered, release = threading.Event(), threading.Event()

    def slow(ids: object) -> bytes:
        entered.set()
        release.wait(30)
        return allocation()

    plugin.on_allocate = slow
    return entered, release


@contextmanager
def fake_node(settings: KubeletSettings = FAST) -> Iterator[Node]:
    """A started kubelet. A panic that the test did not take fails it."""
    root = Path(tempfile.mkdtemp(prefix="s-"))
    node = Node(FakeKubelet(root, settings), root)
    try:
        with node.kubelet.start():
            try:
                yield node
            finally:
                for plugin in node.plugins:
                    plugin.stop()
    finally:
        shutil.rmtree(root)


def refusal(plugin: BarePlugin, *, version: str = "v1beta1", timeout_s: float = 15.0) -> tuple[grpc.StatusCode, str]:
    """Register, which must fail: the code and the text."""
    with pytest.raises(grpc.RpcError) as caught:
        plugin.register(version=version, timeout_s=timeout_s)
    return status_of(caught.value)


def status_of(error: grpc.RpcError) -> tuple[grpc.StatusCode, str]:
    """A failed call's code and text."""
    call = cast(grpc.Call, error)  # it is both; the stubs' types cannot say so
    return call.code(), call.details() or ""
