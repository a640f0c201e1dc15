"""What makes a GPU unfit, and what makes it fit again."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharer.core.health import DeviceHealth, Health, after_look, after_operator, after_xid
from sharer.core.policy.model import HealthPolicy
from sharer.core.ports.driver import GpuSigns, XidEvent
from tests.core.builders import gpu, gpu_uuid, mig, node

POLICY = HealthPolicy(recover_after_s=300.0)
NODE = node(gpu(0), gpu(1, mig_enabled=True, mig_devices=(mig(0, "1g.10gb"), mig(1, "1g.10gb"))))
FINE = GpuSigns(uuid=gpu_uuid(0), lost=None, monitored=True, monitored_problem=None, recovery_action="none")
FINE_1 = replace(FINE, uuid=gpu_uuid(1))


def xid(
    number: int, uuid: str | None = gpu_uuid(0), instance: int | None = None, compute: int | None = None
) -> XidEvent:
    return XidEvent(gpu_uuid=uuid, gpu_instance_id=instance, compute_instance_id=compute, xid=number)


def struck(*events: tuple[float, XidEvent], health: Health | None = None) -> Health:
    health = health or looked(Health(), 0.0)
    for now_s, event in events:
        health = after_xid(health, event, NODE, POLICY, now_s)
    return health


def looked(health: Health, now_s: float, **changes: object) -> Health:
    return after_look(health, [replace(FINE, **changes), FINE_1], NODE, POLICY, now_s)  # type: ignore[arg-type]


@pytest.mark.parametrize("number", [13, 31, 43, 45, 68, 109])
def test_an_ignored_xid_changes_nothing(number: int) -> None:
    """P14."""
    assert struck((1.0, xid(number))) == looked(Health(), 0.0)


def test_a_transient_fault_ends_after_a_quiet_time_and_not_before() -> None:
    """P14: 94 then silence, looked at when half and all of the time has passed."""
    health = struck((10.0, xid(94)))
    assert health.faults() == {gpu_uuid(0): "XID 94 (contained ECC error)"}
    assert looked(health, 160.0).faults() == health.faults()
    assert looked(health, 309.9).faults() == health.faults()
    assert looked(health, 310.0).faults() == {}


def test_a_repeated_transient_fault_is_quiet_from_its_last_event_on() -> None:
    """P14: 94, 94, silence."""
    health = struck((10.0, xid(94)), (200.0, xid(94)))
    assert looked(health, 310.0).faults() != {}
    assert looked(health, 500.0).faults() == {}


@pytest.mark.parametrize("number", [79, 150])
def test_a_fatal_fault_does_not_end_because_queries_succeed(number: int) -> None:
    """P14: 79, and one that no list names, then silence, with every look successful."""
    health = struck((10.0, xid(number)))
    for now_s in (160.0, 310.0, 1e6):
        health = looked(health, now_s)
        assert list(health.faults()) == [gpu_uuid(0)]


def test_a_fatal_fault_ends_when_the_recovery_action_was_something_and_is_none() -> None:
    health = looked(struck((10.0, xid(95))), 20.0, recovery_action="GPU reset")
    assert health.faults() == {gpu_uuid(0): "XID 95 (uncontained ECC error)"}
    assert looked(health, 30.0, recovery_action=None).faults() == health.faults(), "no answer is no repair"
    assert looked(looked(health, 30.0, recovery_action=None), 40.0).faults() == {}


def test_a_fatal_fault_ends_when_the_gpu_was_gone_and_is_back() -> None:
    health = looked(struck((10.0, xid(79))), 20.0, lost="GPU is lost", recovery_action=None)
    assert list(health.faults()) == [gpu_uuid(0)]
    assert looked(health, 30.0).faults() == {}
    vanished = after_look(struck((10.0, xid(79))), [FINE_1], NODE, POLICY, 20.0)
    assert looked(vanished, 30.0).faults() == {}


def test_a_gpu_that_does_not_answer_is_at_fault_for_as_long_as_it_does_not() -> None:
    """P15, contract row 22."""
    lost = looked(Health(), 0.0, lost="GPU is lost")
    assert lost.faults() == {gpu_uuid(0): "GPU is lost"}
    assert looked(lost, 5.0).faults() == {}
    vanished = after_look(Health(), [FINE_1], NODE, POLICY, 0.0)
    assert vanished.faults() == {gpu_uuid(0): "no longer listed by the driver"}


def test_a_fatal_fault_ends_when_the_operator_says_so_later_than_its_last_event() -> None:
    health = struck((10.0, xid(79)), (50.0, xid(79)))
    assert after_operator(health, gpu_uuid(0), 50.0).faults() != {}
    assert after_operator(health, gpu_uuid(0), 51.0).faults() == {}


def test_a_transient_event_does_not_soften_a_fatal_fault() -> None:
    """Neighbour of P14: 79, then 94 and silence."""
    health = struck((10.0, xid(79)), (20.0, xid(94)))
    assert looked(health, 1e6).faults() == {gpu_uuid(0): "XID 79 (GPU has fallen off the bus)"}


def test_a_fatal_event_hardens_a_transient_fault() -> None:
    assert looked(struck((10.0, xid(94)), (20.0, xid(79))), 1e6).faults() != {}


def test_a_pending_recovery_action_is_a_fault_also_right_after_a_start() -> None:
    """DESIGN §3: health survives an agent restart where the driver says what it needs. Neighbour of P14."""
    health = looked(Health(), 0.0, recovery_action="node reboot")
    assert health.faults() == {gpu_uuid(0): "the driver asks for: node reboot"}
    assert looked(health, 10.0).faults() == {}


def test_a_gpu_that_cannot_report_xids_is_unmonitored_and_fit() -> None:
    """P16: NOT_SUPPORTED is an answer."""
    health = looked(Health(), 0.0, monitored=False)
    assert health.faults() == {}
    assert health.of(gpu_uuid(0)).monitored is False


def test_a_gpu_whose_monitoring_fails_is_unfit_until_it_works_and_its_neighbours_stay_fit() -> None:
    """P16: UNKNOWN (999) from RegisterEvents."""
    health = looked(Health(), 0.0, monitored=None, monitored_problem="XIDs cannot be watched: unknown error")
    assert health.faults() == {gpu_uuid(0): "XIDs cannot be watched: unknown error"}
    assert looked(health, 10.0).faults() == {}


def test_an_event_on_a_mig_device_is_a_fault_of_that_device() -> None:
    assert list(struck((1.0, xid(95, gpu_uuid(1), 2, 0))).faults()) == [mig(1, None).uuid]
    assert list(struck((1.0, xid(95, gpu_uuid(1), 2))).faults()) == [mig(1, None).uuid]


def test_an_event_on_an_unknown_instance_is_a_fault_of_the_whole_gpu() -> None:
    assert list(struck((1.0, xid(95, gpu_uuid(1), 9, 0))).faults()) == [gpu_uuid(1)]


def test_a_fault_of_a_mig_device_ends_with_the_repair_of_its_gpu() -> None:
    health = struck((1.0, xid(95, gpu_uuid(1), 2, 0)))
    away = after_look(health, [FINE, replace(FINE_1, lost="GPU is lost")], NODE, POLICY, 2.0)
    assert set(away.faults()) == {gpu_uuid(1), mig(1, None).uuid}
    assert looked(away, 3.0).faults() == {}


@pytest.mark.parametrize("uuid", ["GPU-stranger", None])
def test_an_event_on_an_unknown_gpu_is_kept_and_blames_nobody(uuid: str | None) -> None:
    health = struck((1.0, xid(79, uuid)))
    assert health.faults() == {}
    assert "XID 79" in health.unattributed[0]
    assert len(struck(*[(1.0, xid(79, uuid))] * 40).unattributed) == 16


def test_a_device_that_left_the_inventory_is_forgotten() -> None:
    health = struck((1.0, xid(95, gpu_uuid(1), 2, 0)))
    assert after_look(health, [FINE], node(gpu(0)), POLICY, 2.0).faults() == {}


@given(st.lists(st.tuples(st.floats(0, 100), st.sampled_from([xid(79), xid(94), xid(31), xid(79, None)])), max_size=6))
def test_an_event_seen_twice_is_the_same_as_once(events: list[tuple[float, XidEvent]]) -> None:
    once, twice = looked(Health(), 0.0), looked(Health(), 0.0)
    for now_s, event in events:
        once = after_xid(once, event, NODE, POLICY, now_s)
        twice = after_xid(after_xid(twice, event, NODE, POLICY, now_s), event, NODE, POLICY, now_s)
    assert once.faults() == twice.faults()


def test_nothing_is_known_against_a_device_that_was_never_looked_at() -> None:
    assert Health().of("GPU-new") == DeviceHealth()
