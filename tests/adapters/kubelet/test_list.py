"""ListAndWatch: the whole list, on change, to everybody who listens."""

from __future__ import annotations

import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharer.adapters.kubelet.feed import DeviceFeed, Stream
from sharer.adapters.kubelet.wire import list_message
from sharer.core.ports.kubelet import ListedDevice
from sharer.kubeletapi import deviceplugin_pb2 as api
from tests.adapters.kubelet.node import PATIENCE_S, Node, as_read, devices


def test_a_stream_begins_with_the_whole_list(node: Node) -> None:
    """Contract row 18."""
    assert node.watch().next() == as_read(devices(4))


def test_every_open_stream_gets_every_change(node: Node) -> None:
    """Contract row 24: one stream must not take another's update."""
    streams = [node.watch(), node.watch()]
    for stream in streams:
        assert stream.next() == as_read(devices(4))
    node.feed.replace(devices(4, healthy=False))
    for stream in streams:
        assert stream.next() == as_read(devices(4, healthy=False))


def test_nothing_is_sent_when_nothing_changes(node: Node) -> None:
    """Contract row 23: each message costs the kubelet an fsync of its whole checkpoint."""
    stream = node.watch()
    stream.next()
    for _ in range(5):
        node.feed.replace(devices(4))
    node.feed.replace(devices(5))
    assert stream.next() == as_read(devices(5))
    assert stream.silent


def test_a_burst_of_changes_is_one_message_with_the_last_state(node: Node) -> None:
    """Pitfall 23."""
    stream = node.watch()
    stream.next()
    node.feed.burst_s = 0.5
    began_s = time.monotonic()
    for count in range(5, 50):
        node.feed.replace(devices(count))
    took_s = time.monotonic() - began_s
    messages = 1
    while stream.next() != as_read(devices(49)):
        messages += 1
    assert messages <= 1 + took_s / node.feed.burst_s, "one for each 0.5 s that the burst has lasted"
    assert stream.silent


def test_a_change_that_is_taken_back_within_a_burst_is_no_message(node: Node) -> None:
    stream = node.watch()
    stream.next()
    with node.feed.changed:
        node.feed.replace(devices(4, healthy=False))
        node.feed.replace(devices(4))
    assert stream.stays_silent(4 * node.feed.burst_s)
    node.feed.replace(devices(6))
    assert stream.next() == as_read(devices(6))


def test_the_list_is_serialised_once_for_all_streams() -> None:
    feed = DeviceFeed(devices(4), burst_s=0)
    first, second = Stream(feed).messages(), Stream(feed).messages()
    assert next(first) is next(second)
    feed.replace(devices(5))
    assert next(first) is next(second)


def test_the_kubelet_reads_from_the_first_stream_on_and_no_longer_when_it_has_ended(node: Node) -> None:
    def wait_until(wanted: bool | None) -> None:
        while node.server.kubelet_reads is not wanted:
            node.streams_changed.get(timeout=PATIENCE_S)

    assert node.server.kubelet_reads is None
    kubelet = node.watch()
    kubelet.next()
    curious = node.watch()
    curious.next()
    wait_until(True)
    kubelet.call.cancel()
    wait_until(False)
    node.feed.replace(devices(5))
    assert curious.next() == as_read(devices(5))


def test_the_end_of_the_server_ends_streams_at_once_and_removes_the_socket(node: Node) -> None:
    """Contract §16.3: gRPC alone would let a stream run for the whole grace period."""
    stream = node.watch()
    stream.next()
    ended = threading.Thread(target=node.server.end, args=(3600,))
    ended.start()
    assert stream.next() is None
    ended.join(PATIENCE_S)
    assert not ended.is_alive()
    assert not node.server.path.exists()


def test_a_socket_that_cannot_be_removed_does_not_keep_the_server_from_its_end(node: Node) -> None:
    """Found by `tests/faults`: the kubelet's directory had become read-only."""
    path = node.server.path
    path.unlink()
    path.mkdir()  # which nothing can unlink either, root included
    node.server.end(grace_s=1)
    assert path.is_dir()


@given(
    st.lists(
        st.builds(
            ListedDevice,
            id=st.text(alphabet=st.characters(codec="utf-8"), min_size=1, max_size=63),
            healthy=st.booleans(),
            numa_node=st.none() | st.integers(0, 7),
        ),
        unique_by=lambda device: device.id,
    )
)
def test_a_list_travels_unchanged(listed: list[ListedDevice]) -> None:
    """Contract rows 19 and 27, pitfall 21: exact health words, and a topology only where a NUMA node is known."""
    read = api.ListAndWatchResponse.FromString(list_message(listed)).devices
    assert [device.ID for device in read] == [device.id for device in listed]
    assert [device.health for device in read] == ["Healthy" if d.healthy else "Unhealthy" for d in listed]
    assert [
        [node.ID for node in device.topology.nodes] if device.HasField("topology") else None for device in read
    ] == [None if device.numa_node is None else [device.numa_node] for device in listed]


@pytest.mark.parametrize(
    "listed",
    [
        [ListedDevice(id="a", healthy=True), ListedDevice(id="a", healthy=False)],
        [ListedDevice(id="a", healthy=True, numa_node=-1)],
    ],
    ids=["an ID twice", "a negative NUMA node"],
)
def test_a_list_that_the_kubelet_would_misread_is_a_programming_error(listed: list[ListedDevice]) -> None:
    """Contract rows 19 and 27, pitfall 22."""
    with pytest.raises(ValueError, match=r"listed twice|negative"):
        list_message(listed)
