"""Every end of a registration is followed by another, and by one only (kubelet-contract §2.4, §2.7, §19)."""

from __future__ import annotations

import dataclasses
import gc
import os
import threading

import pytest

from sharer.simulation.kubelet import Phase, Refuse
from tests.adapters.kubelet.rig import FAST, GPU, OTHER, REAL, Rig, eventually, offer
from tests.fakes.bare_plugin import BarePlugin, device_list


@pytest.mark.parametrize("same_inode", [False, True])
def test_a_restarted_kubelet_gets_exactly_one_registration_with_the_same_ids(started: Rig, same_inode: bool) -> None:
    """Contract rows 9 and 11, P09: within 5 s, also when kubelet.sock gets its old inode number back."""
    offer(started.link())
    started.kubelet.wait_capacity(GPU, 4)
    started.kubelet.restart(same_inode=same_inode)
    call = started.kubelet.wait_registered(GPU, 2)
    stream = started.kubelet.wait_stream(GPU, lambda stream: bool(stream.live and stream.messages))
    assert {stream.messages[0].ids for stream in started.kubelet.streams()} == {stream.messages[0].ids}
    assert started.our_sockets() == [call.endpoint]
    assert len(started.kubelet.register_calls()) == 2


def test_nothing_is_bound_before_the_new_kubelet_has_wiped_the_directory(started: Rig) -> None:
    """Contract row 10: the wipe comes before the new kubelet.sock, and may come late."""
    offer(started.link())
    started.kubelet.wait_capacity(GPU, 4)
    started.kubelet.kill()
    eventually(lambda: started.our_sockets() == [])
    started.kubelet.wipe()
    started.heard.wait_for("nobody listens")
    assert started.our_sockets() == []
    started.kubelet.start()
    call = started.kubelet.wait_registered(GPU, 2)
    assert started.our_sockets() == [call.endpoint]
    assert len(started.kubelet.register_calls()) == 2


def test_twenty_restarts_leave_no_thread_and_no_file_open(started: Rig) -> None:
    """Contract row 9."""

    def used() -> tuple[int, int]:
        gc.collect()
        return threading.active_count(), len(os.listdir("/proc/self/fd"))

    link = started.link()
    offer(link)
    offer(link, OTHER)
    sizes = []
    for count in range(1, 21):
        for resource in (GPU, OTHER):
            started.kubelet.wait_registered(resource, count)
            started.kubelet.wait_stream(resource, lambda stream: bool(stream.live and stream.messages))
        sizes.append(used())
        if count < 20:
            started.kubelet.restart()
    early, late = sizes[2:8], sizes[-6:]
    assert min(threads for threads, _ in late) <= max(threads for threads, _ in early)
    assert min(files for _, files in late) <= max(files for _, files in early)
    assert len(started.kubelet.register_calls()) == 2 * 20


def test_a_deleted_socket_is_replaced_after_the_old_stream_has_ended(started: Rig) -> None:
    """Contract row 12, P09: noticed within 5 s; and the fixture sees that no stream was open at the new Register."""
    offer(started.link())
    started.kubelet.wait_capacity(GPU, 4)
    started.kubelet.plugin_socket(GPU).unlink()
    call = started.kubelet.wait_registered(GPU, 2)
    started.kubelet.wait_capacity(GPU, 4)
    assert started.our_sockets() == [call.endpoint]


def test_a_directory_wiped_under_a_kubelet_that_runs_on_keeps_the_stream_until_there_is_a_new_socket(
    started: Rig,
) -> None:
    """Neighbour of P09: somebody's `rm *`. Nobody could register any more; the open connection still serves pods."""
    offer(started.link())
    started.kubelet.wait_capacity(GPU, 4)
    for path in sorted(started.directory.iterdir()):  # as a shell does: the kubelet's socket goes before ours
        if path.is_socket():
            path.unlink()
    assert started.kubelet.start_pod("after", {GPU: 1}).phase is Phase.RUNNING
    [stream] = started.kubelet.streams(GPU)
    assert stream.live
    started.kubelet.restart()
    started.kubelet.wait_registered(GPU, 2)
    started.kubelet.wait_capacity(GPU, 4)
    assert len(started.kubelet.register_calls()) == 2


def test_a_stream_that_the_kubelet_ends_is_followed_by_a_pause_and_a_registration(started: Rig) -> None:
    """Contract row 13: the kubelet itself never asks again. At least 1 s, so that a quarrel does not flap the node."""
    offer(started.link())
    started.kubelet.wait_capacity(GPU, 4)
    started.kubelet.cut_stream(GPU)
    second = started.kubelet.wait_registered(GPU, 2)
    first = started.kubelet.streams(GPU)[0]
    assert first.ended_at_s is not None
    assert second.at_s - first.ended_at_s > 0.9  # the kubelet sees the end it made a little later than we do
    started.kubelet.wait_capacity(GPU, 4)


def test_pauses_start_from_the_least_again_after_a_registration_that_held(started: Rig) -> None:
    """Contract row 13."""
    offer(started.link(dataclasses.replace(FAST, settled_s=0, retry_cap_s=60)))
    for count in range(1, 14):  # ever longer pauses would come to more than a minute, which nobody waits for
        started.kubelet.wait_registered(GPU, count)
        started.kubelet.wait_stream(GPU, lambda stream: bool(stream.live and stream.messages))
        started.kubelet.cut_stream(GPU)


def test_a_new_kubelet_is_not_made_to_wait_for_what_an_old_one_did(started: Rig) -> None:
    started.kubelet.on_next_register(Refuse("no"))
    offer(started.link(dataclasses.replace(REAL, retry_first_s=3600, retry_cap_s=7200)))
    started.heard.wait_for("no)")
    started.kubelet.restart()
    started.kubelet.wait_registered(GPU)


def test_the_failures_at_an_old_kubelet_do_not_lengthen_the_pauses_at_a_new_one(started: Rig) -> None:
    started.kubelet.on_next_register(*[Refuse("no")] * 7)
    offer(started.link(dataclasses.replace(FAST, retry_cap_s=3600)))
    started.kubelet.wait_for(lambda: len(started.kubelet.register_calls()) == 6)
    started.kubelet.restart()
    started.kubelet.wait_registered(GPU)
    *_, refused, accepted = started.kubelet.register_calls()
    assert refused.error == "no"
    assert accepted.at_s - refused.at_s < 3.2  # the least that the seventh pause in a row could be


def test_a_rival_that_was_there_before_us_and_leaves_later_is_followed_by_a_registration(open_rig: Rig) -> None:
    """P11: at the end of the old stream the kubelet closes the new one, ours; within 10 s the slices are back."""
    kubelet = open_rig.kubelet.start()
    rival = open_rig.link()
    offer(rival)
    kubelet.wait_capacity(GPU, 4)
    offer(open_rig.link())
    kubelet.wait_for(lambda: len(kubelet.live_streams(GPU)) == 2)
    rival.stop()
    kubelet.wait_registered(GPU, 3)
    kubelet.wait_capacity(GPU, 4)


def test_a_resource_that_a_rival_has_taken_is_ours_again_when_it_is_renewed(open_rig: Rig) -> None:
    """Neighbour of P11: the kubelet takes whoever comes last, and reads our list on; so we must be told."""
    kubelet, link = open_rig.kubelet.start(), open_rig.link()
    link.renew(GPU)  # which is not there yet
    offer(link)
    kubelet.wait_capacity(GPU, 4)
    rival = BarePlugin(open_rig.directory, GPU, device_list(["GPU-of-the-rival"]))
    rival.serve()
    rival.register()
    kubelet.wait_capacity(GPU, 1)
    assert link.registered() == {GPU: True}
    link.renew(GPU)
    kubelet.wait_registered(GPU, 3)
    kubelet.wait_capacity(GPU, 4)
    rival.stop()
    assert kubelet.start_pod("after", {GPU: 1}).phase is Phase.RUNNING
    open_rig.heard.wait_for("another plugin has registered this name since; remove one of the two")
