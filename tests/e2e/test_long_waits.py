"""What takes its time, as long as kubelet-contract §19 writes it: the agent's clock runs faster, ours does not.

`fast_clock` scales every clock and wait of the agent's process and nothing else, so what the kubelet and the test
measure is our time, and RATE times that for the agent. Where it runs so fast that a deadline would be milliseconds, it
is quickened once the agent is registered, for which a busy machine may take its time.
"""

from __future__ import annotations

import time
from dataclasses import replace

from sharer.core.quantities import GIB
from sharer.simulation.kubelet import Block, Refuse
from tests.e2e.gpus import GPU, A, policy, slices
from tests.e2e.node import Node
from tests.fakes.fast_clock import QuickenedClock, fast_clock

FATAL_XID = 79


def test_a_kubelet_that_refuses_for_half_a_minute_is_asked_five_times_and_nothing_piles_up(node: Node) -> None:
    """Contract row 5: of 30 s, with the text said once, and one socket or none at any time."""
    rate, text = 15, "the ResourceName is invalid"
    node.kubelet.on_next_register(*[Refuse(text)] * 100)
    agent = node.start_agent(variables=fast_clock(rate))
    node.kubelet.wait_for(lambda: len(node.kubelet.register_calls()) == 2)
    early = agent.threads(), len(agent.open_files())
    assert not node.comes_true(lambda: len(node.kubelet.register_calls()) > 5, within_s=30 / rate)
    assert 3 <= len(node.kubelet.register_calls()) <= 5
    assert (agent.threads(), len(agent.open_files())) <= tuple(one + 2 for one in early)
    assert len(node.our_sockets()) <= 1
    assert len(agent.said(text)) == 1


def test_a_registration_that_takes_twelve_seconds_is_waited_for_and_not_repeated(node: Node) -> None:
    """Contract row 6, pitfall 3: its deadline is above 15 s, as the node checks of every call."""
    rate = 6
    node.kubelet.on_next_register(Block(12 / rate))
    node.start_agent(variables=fast_clock(rate))
    call = node.kubelet.wait_registered(GPU)
    assert call.took_s is not None
    assert call.took_s >= 12 / rate
    node.wait_listed(8)
    assert len(node.kubelet.register_calls()) == 1


def test_nothing_is_bound_in_the_five_seconds_before_a_kubelet_wipes_the_directory(node: Node) -> None:
    """Contract row 10, pitfall 11: what is bound before the wipe would be gone after it."""
    rate = 5
    agent = node.start_agent(variables=fast_clock(rate))
    node.wait_listed(8)
    node.kubelet.kill()
    assert " INFO " in agent.wait_log("the kubelet has ended")
    agent.wait_log("nobody listens")
    assert not node.comes_true(lambda: bool(node.our_sockets()), within_s=5 / rate)
    node.kubelet.wipe()
    node.kubelet.start()
    call = node.kubelet.wait_registered(GPU, 2)
    node.wait_listed(8)
    assert node.our_sockets() == [call.endpoint]
    assert len(node.kubelet.register_calls()) == 2


def test_pauses_between_registrations_grow_and_are_short_again_after_one_that_held(node: Node) -> None:
    """Contract row 13, pitfalls 9 and 41: at least 1 s, then 2 s; a registration that held 10 s was good."""
    rate = 8
    node.start_agent(variables=fast_clock(rate))
    for count in range(1, 6):
        node.kubelet.wait_registered(GPU, count)
        node.wait_listed(8)
        if count == 5:
            assert not node.comes_true(lambda: len(node.kubelet.register_calls()) > 5, within_s=11 / rate)
        node.kubelet.cut_stream(GPU)
    node.kubelet.wait_registered(GPU, 6)
    ends_s = [stream.ended_at_s for stream in node.kubelet.streams(GPU)]
    calls_s = [call.at_s for call in node.kubelet.register_calls()[1:]]
    pauses_s = [rate * (call_s - end_s) for end_s, call_s in zip(ends_s, calls_s, strict=False) if end_s is not None]
    least_s = (0.9, 1.9, 3.9, 7.9, 0.9)  # the kubelet sees the end it made a little later than the agent
    assert [pause_s > one_s for pause_s, one_s in zip(pauses_s, least_s, strict=True)] == [True] * 5
    assert pauses_s[4] < pauses_s[3]


def test_in_a_minute_without_a_change_nothing_is_sent(node: Node) -> None:
    """Contract row 23, pitfall 23: used memory moves and a comment is edited; each list would cost a checkpoint."""
    rate, clock = 30, QuickenedClock(node.root / "clock")
    node.start_agent(variables=clock.variables)
    node.wait_listed(8)
    clock.quicken(rate)
    for count in range(1, 5):
        node.gpus.put(replace(A, used_bytes=count * GIB))
        node.write_policy(policy() + f"# edited {count} times\n")
        assert not node.comes_true(lambda: len(node.lists()) > 1, within_s=15 / rate)
    assert len(node.kubelet.register_calls()) == 1


def test_a_stream_is_still_open_after_35_minutes_and_gets_the_next_change(node: Node) -> None:
    """Contract row 25: also the kubelet's 30 minutes of idleness are over by then."""
    rate, clock = 300, QuickenedClock(node.root / "clock")
    node.start_agent(variables=clock.variables)
    stream = node.wait_listed(8)
    clock.quicken(rate)
    assert not node.comes_true(lambda: not node.kubelet.live_streams(GPU), within_s=35 * 60 / rate)
    node.gpus.xid(A.uuid, FATAL_XID)
    node.wait(lambda: node.unhealthy() >= set(slices(A, 4, 20480)), "the news on that stream")
    assert [one.number for one in node.kubelet.live_streams(GPU)] == [stream.number]
    assert len(node.kubelet.register_calls()) == 1


def test_a_driver_that_hangs_for_minutes_is_told_of_once(node: Node) -> None:
    """P17: each look would find another number of seconds to tell of, in the log and in the GpuNode."""
    rate = 100
    node.gpus.hang("nvmlInitWithFlags")
    agent = node.start_agent(variables=fast_clock(rate))
    agent.wait_log("NVML does not answer: nvmlInitWithFlags has been running for more than 90 s")
    assert not node.comes_true(lambda: len(agent.said("NVML does not answer")) > 2, within_s=3 * 60 / rate)
    assert len(agent.said("NVML does not answer")) <= 2  # by who looks for GPUs and by who waits for XIDs


def test_a_minute_with_pods_that_come_and_go_costs_the_kubelet_one_list_a_second(node: Node) -> None:
    """Contract row 40, pitfall 34: it answers 100 calls a second, to all its clients together."""
    rate, clock = 20, QuickenedClock(node.root / "clock")
    node.start_agent(variables=clock.variables)
    node.wait_listed(8)
    clock.quicken(rate)
    began_s, number = time.monotonic(), 0
    while rate * (time.monotonic() - began_s) < 60 or number <= 10:
        node.kubelet.start_pod(f"p{number}", {GPU: 1})
        node.kubelet.end_pod(f"p{number}")
        number += 1
    asked = [call for call in node.kubelet.podresources_calls() if call.at_s >= began_s]
    passed_s = rate * (time.monotonic() - began_s)
    assert len(asked) <= passed_s + 7  # a quiet time leaves six for hints
