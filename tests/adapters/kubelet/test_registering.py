"""Registered once, by a server that serves, whenever the kubelet is ready for it (kubelet-contract §2, §19)."""

from __future__ import annotations

import itertools
import logging
import socket
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharer.adapters.watch import Inotify
from sharer.core.ports.kubelet import ListedDevice, ResourceOptions
from sharer.simulation.kubelet import Block, Die, Ignore, Phase, Refuse
from tests.adapters.kubelet.rig import FAST, GPU, OTHER, PATIENCE_S, REAL, Rig, eventually, offer, slices, threads_named


def test_a_resource_is_registered_once_by_a_server_that_serves(started: Rig) -> None:
    """Contract rows 1, 2, 3 and 18 (and what the fixture checks of every call)."""
    link = started.link()
    offer(link, options=ResourceOptions(pre_start_required=True, preferred_allocation=True))
    call = started.kubelet.wait_registered(GPU)
    started.kubelet.wait_capacity(GPU, 4)
    assert call.took_s is not None
    assert call.took_s < 5  # it would wait for 10 s for a server that does not serve
    assert call.options == call.answered_options
    assert call.options.pre_start_required
    [stream] = started.kubelet.streams(GPU)
    assert stream.messages[0].at_s - stream.opened_at_s < 5
    assert stream.messages[0].ids == tuple(device.id for device in slices(4))
    assert [call.endpoint] == started.our_sockets()
    assert len(started.kubelet.register_calls()) == 1


def test_pods_get_what_the_answers_say_and_read_why_they_are_refused(started: Rig) -> None:
    """Contract rows 28, 32 and 33, end to end."""
    offer(started.link(), devices=[ListedDevice(id=f"GPU-0::ts-{number}", healthy=True) for number in range(2)])
    started.kubelet.wait_capacity(GPU, 2)
    assert started.kubelet.start_pod("first", {GPU: 1}).env() == {"IDS": "GPU-0::ts-1"}
    refused = started.kubelet.start_pod("second", {GPU: 1})
    assert refused.phase is Phase.FAILED
    assert "code = InvalidArgument desc = device ID 'GPU-0::ts-0' cannot run: its GPU is at fault" in refused.message


def test_a_resource_is_registered_only_when_the_kubelet_has_accepted_it_and_reads_its_list(started: Rig) -> None:
    link = started.link(FAST)
    assert link.registered() == {}
    block = Block(3600)
    started.kubelet.on_next_register(block)
    offer(link)
    assert link.registered() == {GPU: False}
    block.over.set()
    eventually(lambda: link.registered() == {GPU: True})
    started.kubelet.kill()
    eventually(lambda: link.registered() == {GPU: False})


def test_two_resources_have_two_sockets_and_two_lists(started: Rig) -> None:
    """Contract row 15."""
    link = started.link()
    offer(link, GPU, slices(2))
    offer(link, OTHER, slices(3, uuid="MIG-1"))
    started.kubelet.wait_capacity(GPU, 2)
    started.kubelet.wait_capacity(OTHER, 3)
    assert len(started.our_sockets()) == 2
    started.kubelet.cut_stream(GPU)
    started.kubelet.wait_registered(GPU, 2)
    assert len(started.kubelet.register_calls(OTHER)) == 1
    assert [stream.live for stream in started.kubelet.streams(OTHER)] == [True]


def test_a_slow_registration_is_waited_for_and_delays_no_other_resource(started: Rig) -> None:
    """Contract row 6."""
    link = started.link(FAST)
    block = Block(3600)
    started.kubelet.on_next_register(block, resource=GPU)
    offer(link, GPU)
    offer(link, OTHER)
    started.kubelet.wait_registered(OTHER)
    started.kubelet.wait_for(lambda: len(started.kubelet.register_calls(GPU)) == 1)
    block.over.set()
    started.kubelet.wait_registered(GPU)
    started.kubelet.wait_capacity(GPU, 4)
    assert len(started.kubelet.register_calls(GPU)) == 1


def test_a_kubelet_that_comes_later_is_registered_with_at_once(rig: Rig) -> None:
    """Contract row 7: at most 2 s after its socket is there; and even the directory may come later."""
    rig.directory.rmdir()
    offer(rig.link())
    rig.heard.wait_for("nobody listens")
    rig.kubelet.start()
    rig.kubelet.wait_registered(GPU)
    assert len(rig.kubelet.register_calls()) == 1


def test_a_kubelet_that_stays_away_for_longer_than_a_restart_is_warned_of(rig: Rig) -> None:
    offer(rig.link(replace(FAST, away_s=0.1)))
    rig.heard.wait_for(f"{GPU} is registered as soon as the kubelet does")
    rig.heard.wait_for("for 0.1 s now")


def test_a_socket_that_nobody_listens_on_is_waited_for(rig: Rig) -> None:
    """Contract row 8: at most 3 s; a back-off shared by channels would make it longer."""
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(rig.kubelet.socket))
    offer(rig.link())
    rig.heard.wait_for("nobody listens")
    rig.kubelet.start()
    rig.kubelet.wait_registered(GPU)


def test_a_listener_that_hangs_up_is_no_obstacle_to_the_kubelet_that_follows(rig: Rig) -> None:
    """Contract row 8. Neighbour of P09."""
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.bind(str(rig.kubelet.socket))
        stranger.listen()
        stranger.settimeout(PATIENCE_S)
        offer(rig.link())
        for _ in range(2):  # a look whether anybody listens, then Register
            stranger.accept()[0].close()
        rig.heard.wait_for("the kubelet did not accept it (UNAVAILABLE")
    rig.kubelet.start()
    rig.kubelet.wait_registered(GPU)


def test_without_inotify_a_late_kubelet_and_its_restart_are_noticed_in_time(rig: Rig) -> None:
    """P10."""

    def no_instance() -> Inotify:
        raise OSError(24, "Too many open files")

    offer(rig.link(open_inotify=no_instance))
    rig.heard.wait_for("nobody listens")
    rig.kubelet.start()
    rig.kubelet.wait_registered(GPU)
    rig.kubelet.restart()
    rig.kubelet.wait_registered(GPU, 2)


def test_refusals_are_said_once_and_answered_with_ever_longer_pauses(
    started: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    """Contract row 5, P09: it is registered when the kubelet has come to reason; no thread or file is left over."""
    text = 'requested API version "v1beta1" is not supported by kubelet'
    started.kubelet.on_next_register(*[Refuse(text)] * 4)
    link = started.link(FAST)
    offer(link)
    started.kubelet.wait_capacity(GPU, 4)
    calls = started.kubelet.register_calls()
    pauses_s = [later.at_s - call.at_s for call, later in itertools.pairwise(calls)]
    for pause_s, least_s in zip(pauses_s, [0.05, 0.1, 0.2, 0.32], strict=True):
        assert pause_s >= least_s
    warnings = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert [text in warning and GPU in warning for warning in warnings] == [True]
    eventually(lambda: link.counters().registrations == {(GPU, "UNKNOWN"): 4, (GPU, "OK"): 1})
    [endpoint] = started.our_sockets()
    server = endpoint.removesuffix(".sock")  # its threads carry its name
    eventually(lambda: all(each.name.startswith(server) for each in threads_named("sharer-gpu.shared")))


@given(failures=st.integers(1, 10_000))
def test_a_pause_is_at_least_one_second_and_at_most_thirty(failures: int) -> None:
    assert 1 <= REAL.retry_delay_s(failures) <= 30


@given(st.data())
def test_there_are_at_most_five_attempts_in_thirty_seconds(data: st.DataObject) -> None:
    """Contract row 5."""
    assert sum(REAL.retry_delay_s(failures) for failures in range(1, 6)) >= 30


def test_a_kubelet_that_dies_in_the_middle_of_registering_is_registered_with_when_it_is_back(started: Rig) -> None:
    """P09: at every stage."""
    started.kubelet.on_next_register(Die(answer=False), Die())
    offer(started.link())
    for _ in range(2):
        eventually(lambda: not started.kubelet.running)
        started.kubelet.start()
    started.kubelet.wait_capacity(GPU, 4)


def test_a_server_that_does_not_answer_itself_is_never_registered(started: Rig) -> None:
    """Pitfall 6: at a Register that fails to dial us, the kubelet would forget a registration that is good."""
    over = replace(FAST, own_socket_deadline_s=-1.0)  # gRPC may still answer within one that is over just now
    offer(started.link(over))
    started.heard.wait_for("its own socket")
    assert started.kubelet.register_calls() == []


def test_a_kubelet_that_accepts_and_never_reads_the_list_is_asked_again(started: Rig) -> None:
    started.kubelet.on_next_register(Ignore())
    offer(started.link(replace(FAST, first_read_deadline_s=0.3)))
    started.kubelet.wait_registered(GPU, 2)
    started.kubelet.wait_capacity(GPU, 4)
