"""Offering again, withdrawing, stopping."""

from __future__ import annotations

import socket
import time
from dataclasses import replace

import pytest

from sharer.core.ports.kubelet import ResourceOptions
from sharer.simulation.kubelet import Block
from tests.adapters.kubelet.rig import FAST, GPU, OTHER, PATIENCE_S, Rig, offer, slices


def test_a_change_is_sent_on_the_open_stream_without_registering_again(started: Rig) -> None:
    """Contract row 23."""
    link = started.link()
    offer(link)
    started.kubelet.wait_capacity(GPU, 4)
    for _ in range(3):
        offer(link)
    took_s = []
    for count in range(2, 7):
        offered_s = time.monotonic()
        offer(link, devices=slices(count, healthy=False))
        stream = started.kubelet.wait_stream(GPU, lambda stream: len(stream.messages) == count)  # noqa: B023 - at once
        assert stream.messages[-1].healthy_ids == frozenset()
        took_s.append(stream.messages[-1].at_s - offered_s)
    assert min(took_s) < 0.5  # 0.05 by design; a busy machine may add to it
    assert len(started.kubelet.register_calls()) == 1


def test_an_id_that_moves_to_a_new_name_is_unhealthy_under_the_old_one_before_that_is_registered(started: Rig) -> None:
    """Found by tests/faults: a stale checkpoint, and a policy that was renamed while the agent was down."""
    link = started.link(replace(FAST, burst_s=0.3, others_told_s=PATIENCE_S))
    offer(link, GPU)
    started.kubelet.wait_capacity(GPU, 4)
    offer(link, GPU, slices(4, healthy=False))
    offer(link, OTHER, slices(4))
    call = started.kubelet.wait_registered(OTHER, 1)
    old = started.kubelet.wait_stream(GPU, lambda stream: stream.messages[-1].healthy_ids == frozenset())
    assert old.messages[-1].at_s < call.at_s


def test_other_options_are_registered_once(started: Rig) -> None:
    link = started.link(FAST)
    offer(link)
    started.kubelet.wait_capacity(GPU, 4)
    for _ in range(2):
        offer(link, options=ResourceOptions(pre_start_required=True))
    call = started.kubelet.wait_registered(GPU, 2)
    assert call.answered_options is not None
    assert call.answered_options.pre_start_required
    offer(link, options=ResourceOptions(pre_start_required=True))
    started.kubelet.wait_capacity(GPU, 4)
    assert len(started.kubelet.register_calls()) == 2


def test_a_withdrawn_resource_is_gone_and_the_others_stay(started: Rig) -> None:
    link = started.link()
    offer(link, GPU)
    offer(link, OTHER, slices(2, uuid="MIG-1"))
    started.kubelet.wait_capacity(GPU, 4)
    started.kubelet.wait_capacity(OTHER, 2)
    link.withdraw(GPU)
    link.withdraw("example.com/never-offered")
    assert link.registered() == {OTHER: True}
    assert len(started.our_sockets()) == 1
    started.kubelet.wait_capacity(GPU, 4, 0)
    offer(link, GPU, slices(3))
    started.kubelet.wait_capacity(GPU, 3)
    assert len(started.kubelet.register_calls(OTHER)) == 1


def test_stopping_ends_streams_and_removes_our_sockets_and_nothing_else(started: Rig) -> None:
    """Contract rows 16 and 40: no all-Unhealthy list first, no Register afterwards, within 5 s."""
    link = started.link()
    foreign = started.directory / "nvidia-gpu.sock"
    with socket.socket(socket.AF_UNIX) as plugin:
        plugin.bind(str(foreign))
        plugin.listen()
    (started.directory / "DEPRECATION").write_text("x")
    for resource in (GPU, OTHER):
        offer(link, resource)
        started.kubelet.wait_capacity(resource, 4)
    begun_s = time.monotonic()
    link.stop()
    assert time.monotonic() - begun_s < 5
    assert started.our_sockets() == []
    for resource in (GPU, OTHER):
        stream = started.kubelet.wait_stream(resource, lambda stream: not stream.live)
        assert len(stream.messages) == 1
    assert foreign.exists()
    assert (started.directory / "DEPRECATION").exists()
    started.kubelet.restart()
    assert len(started.kubelet.register_calls()) == 2
    assert link.registered() == {}
    link.stop()
    with pytest.raises(RuntimeError, match="stopped"):
        offer(link)


def test_stopping_does_not_wait_for_a_register_that_hangs(started: Rig) -> None:
    link = started.link()
    started.kubelet.on_next_register(Block(3600))
    offer(link)
    started.kubelet.wait_for(lambda: len(started.kubelet.register_calls()) == 1)
    begun_s = time.monotonic()
    link.stop()
    assert time.monotonic() - begun_s < 5
    assert started.our_sockets() == []
    started.kubelet.kill()


def test_stopping_does_not_wait_for_a_kubelet_that_is_not_there(rig: Rig) -> None:
    link = rig.link()
    offer(link)
    rig.heard.wait_for("nobody listens")
    begun_s = time.monotonic()
    link.stop()
    assert time.monotonic() - begun_s < 5
