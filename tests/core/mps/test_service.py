"""MPS slices are given out while their daemon serves, and again when it has stayed up for a while."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from sharer.core.device_id import DeviceId
from sharer.core.edits import DeviceFacts, Injection, NodeFacts
from sharer.core.mps.service import (
    BACK,
    NEVER_SERVED,
    NO_NAMESPACE,
    STAYS_UP_S,
    MpsServices,
    after_reading,
    keep_mps,
    with_mps,
)
from sharer.core.mps.state import TRUST_S, MpsGpu, MpsInterface, MpsState
from tests.core.builders import gpu_uuid

A, B = gpu_uuid(0), gpu_uuid(1)
NAME = "nvidia.com/gpu.mps"
SLICE = DeviceId.parse(f"{A}::mps-0-20480-25")
EPOCH_S = 1_700_000_000.0  # Unix time when the monotonic clock says 0
FACTS = NodeFacts(injection=(Injection.CDI,), devices={A: DeviceFacts(), B: DeviceFacts()})


def state(at_s: float, problem: str | None = None, **parts: object) -> MpsState:
    """What was written at a monotonic time, of a daemon of both GPUs."""
    usual: dict[str, object] = {"interface": MpsInterface.LEGACY, "gpus": {A: MpsGpu(), B: MpsGpu()}}
    return MpsState(resource=NAME, written_at_s=EPOCH_S + at_s, problem=problem, **(usual | parts))  # type: ignore[arg-type]


def read(
    before: MpsServices,
    now_s: float,
    found: MpsState | None,
    *,
    unplaced: Mapping[str, str] | None = None,
    missing: str | None = None,
) -> MpsServices:
    return after_reading(
        before,
        {NAME: (A, B)},
        {} if found is None else {NAME: found},
        unplaced or {},
        lambda path: path != missing,
        now_s=now_s,
        wall_s=EPOCH_S + now_s,
    )


def why(services: MpsServices, text: DeviceId = SLICE) -> str | None:
    return services.why_not(NAME, text)


def test_nothing_is_given_out_before_a_daemon_was_heard_of() -> None:
    assert why(MpsServices()) == NEVER_SERVED
    assert why(read(MpsServices(), 0.0, None)) == NEVER_SERVED
    assert MpsServices().why_not(NAME, DeviceId.parse(f"{A}::ts-0-20480")) is None, "no business of time slices"


def test_a_daemon_that_serves_for_the_first_time_counts_at_once() -> None:
    starting = read(MpsServices(), 0.0, state(0.0, "it is starting", interface=None))
    assert why(starting) == "it is starting"
    assert why(read(starting, 1.0, state(1.0))) is None


def test_a_daemon_that_has_failed_must_serve_for_a_while_without_a_break() -> None:
    up = read(MpsServices(), 0.0, state(0.0))
    down = read(up, 1.0, state(1.0, "it crashed"))
    assert why(down) == "it crashed"
    back = read(down, 2.0, state(2.0))
    assert why(back) == BACK
    again = read(read(back, 5.0, state(5.0, "it crashed")), 6.0, state(6.0))
    assert why(read(again, 2.0 + STAYS_UP_S, state(2.0 + STAYS_UP_S))) == BACK, "the second start counts"
    assert why(read(again, 6.0 + STAYS_UP_S, state(6.0 + STAYS_UP_S))) is None


def test_a_supervisor_that_has_stopped_writing_can_say_nothing() -> None:
    up = read(MpsServices(), 0.0, state(0.0))
    assert why(read(up, TRUST_S, state(0.0))) is None
    stale = read(up, TRUST_S + 0.1, state(0.0))
    assert "nothing was heard of its MPS control daemon for 15 s" in (why(stale) or "")
    assert read(stale, 3600.0, state(0.0)) is stale, "words that count seconds would be news each second"


def test_a_gpu_with_lingering_clients_takes_no_other_along() -> None:
    found = state(0.0, gpus={A: MpsGpu(problem="2 dead clients linger; restart MPS", clients=3), B: MpsGpu(clients=1)})
    services = read(MpsServices(), 0.0, found)
    assert why(services) == "2 dead clients linger; restart MPS"
    assert why(services, DeviceId.parse(f"{B}::mps-0-20480-25")) is None
    assert {uuid: gpu.clients for uuid, gpu in services.daemons[NAME].gpus.items()} == {A: 3, B: 1}


def test_without_a_directory_for_its_clients_no_slice_is_given_out() -> None:
    """P40: read-only, a full disk; the first error is the reason."""
    services = read(MpsServices(), 0.0, state(0.0), unplaced={NAME: "the directory /x cannot be used for MPS"})
    assert why(services) == "the directory /x cannot be used for MPS"


def test_with_namespaces_a_slice_needs_its_own_and_the_directory_of_it() -> None:
    other = DeviceId.parse(f"{A}::mps-1-20480-25")
    found = state(
        0.0, interface=MpsInterface.NAMESPACES, namespaces={str(SLICE): "/pipe/s/one", str(other): "/pipe/s/two"}
    )
    services = read(MpsServices(), 0.0, found, missing="/pipe/s/two")
    assert why(services) is None
    assert why(services, other) == NO_NAMESPACE
    assert services.namespaced == {NAME}


def test_the_interface_stays_known_while_the_daemon_starts_again() -> None:
    """The plan follows from it, and must not change with every restart."""
    up = read(MpsServices(), 0.0, state(0.0, interface=MpsInterface.NAMESPACES))
    assert read(up, 1.0, state(1.0, "it crashed", interface=None)).namespaced == {NAME}
    assert read(up, 1.0, None).namespaced == {NAME}
    assert read(up, 1.0, state(1.0, interface=MpsInterface.LEGACY)).namespaced == set()


def test_facts_name_the_pipe_of_the_legacy_interface_or_the_namespaces_and_never_both() -> None:
    serving, pipes = {A: NAME}, {NAME: "/mps/pipe"}
    legacy = with_mps(FACTS, read(MpsServices(), 0.0, state(0.0)), serving, pipes)
    assert legacy.devices == {A: DeviceFacts(mps_pipe="/mps/pipe"), B: DeviceFacts()}
    found = state(0.0, interface=MpsInterface.NAMESPACES, namespaces={str(SLICE): "/n/a", f"{B}::mps-0": "/n/b"})
    spaces = with_mps(legacy, read(MpsServices(), 0.0, found), serving, pipes)
    assert spaces.devices[A] == DeviceFacts(mps_namespaces={str(SLICE): "/n/a"})
    assert with_mps(FACTS, MpsServices(), serving, pipes) is FACTS, "of an unknown daemon nobody knows what it needs"


def test_the_way_to_a_daemon_does_not_change_when_it_is_down() -> None:
    """The kubelet replays answers for ever, and their hash is told as the node's."""
    services = read(MpsServices(), 0.0, state(0.0))
    facts = with_mps(FACTS, services, {A: NAME}, {NAME: "/mps/pipe"})
    down = read(services, 60.0, state(0.0))
    assert with_mps(facts, down, {A: NAME}, {NAME: "/mps/pipe"}) is facts
    assert keep_mps(FACTS, facts) == facts, "facts that are read anew keep it"
    assert keep_mps(FACTS, None) is FACTS


@given(st.lists(st.tuples(st.floats(0.1, 8.0), st.booleans()), min_size=1, max_size=30))
def test_whatever_a_daemon_does_its_slices_are_given_out_only_while_it_serves_and_has_stayed_up(
    looks: list[tuple[float, bool]],
) -> None:
    services, now_s = MpsServices(), 0.0
    up_since_s: float | None = None
    has_served = has_failed = False
    for after_s, serves in looks:
        now_s += after_s
        services = read(services, now_s, state(now_s, None if serves else "it crashed"))
        up_since_s = None if not serves else now_s if up_since_s is None else up_since_s
        has_failed = has_failed or (has_served and not serves)
        has_served = has_served or serves
        stayed = up_since_s is not None and (not has_failed or now_s - up_since_s >= STAYS_UP_S)
        assert (why(services) is None) is stayed
