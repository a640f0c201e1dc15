"""What was known about a GPU survives a look that does not see it."""

from __future__ import annotations

from dataclasses import replace

from sharer.core.inventory import remember_lost
from tests.core.builders import gpu, gpu_uuid, mig, node


def test_a_gpu_that_is_gone_stays_in_the_inventory_as_lost() -> None:
    """P15, contract row 22."""
    known = remember_lost(node(gpu(0), gpu(1)), node(gpu(0)), ())
    assert [(one.uuid, one.lost) for one in known.gpus] == [
        (gpu_uuid(0), None),
        (gpu_uuid(1), "no longer listed by the driver"),
    ]


def test_a_lost_gpu_that_is_back_is_not_lost_any_more() -> None:
    away = remember_lost(node(gpu(0), gpu(1)), node(gpu(0)), ())
    assert remember_lost(away, node(gpu(0), gpu(1)), ()) == node(gpu(0), gpu(1))


def test_a_lost_gpu_keeps_the_reason_that_was_given_first() -> None:
    fell_off = remember_lost(node(gpu(0)), node(gpu(0, lost="GPU is lost")), ())
    assert remember_lost(fell_off, node(), ()).gpus[0].lost == "GPU is lost"


def test_a_fact_that_cannot_be_read_this_time_stays_as_it_was() -> None:
    """One failed query must not change what a device ID promises."""
    failing = gpu(0, memory_mib=None, product=None, unknown=(("memory_bytes", "unknown error"), ("product", "timeout")))
    merged = remember_lost(node(gpu(0)), node(failing), ())
    assert merged == node(gpu(0))


def test_a_fact_that_was_never_known_stays_unknown_with_its_reason() -> None:
    unified = gpu(0, memory_mib=None, unknown=(("memory_bytes", "not supported"),))
    assert remember_lost(node(unified), node(unified), ()).gpus[0].unknown == (("memory_bytes", "not supported"),)


def test_a_mig_device_that_is_gone_stays_as_lost_beside_the_new_ones() -> None:
    """P18: instances are deleted and created while the agent runs."""
    before = node(gpu(0, mig_enabled=True, mig_devices=(mig(0, "1g.10gb"), mig(1, "1g.10gb"))))
    found = node(gpu(0, mig_enabled=True, mig_devices=(mig(1, "1g.10gb"), mig(2, "2g.20gb"))))
    after = remember_lost(before, found, {mig(0, None).uuid})
    assert {device.uuid: device.lost for device in after.gpus[0].mig_devices} == {
        mig(0, None).uuid: "no longer listed by the driver",
        mig(1, None).uuid: None,
        mig(2, None).uuid: None,
    }


def test_a_mig_device_that_is_gone_is_forgotten_once_no_slice_of_it_is_listed_or_held() -> None:
    """Neighbour of P18 and P19, found by chance: instances made anew every day were all told to be at fault."""
    before = node(gpu(0, mig_enabled=True, mig_devices=(mig(0, "1g.10gb"), mig(1, "1g.10gb"))))
    assert remember_lost(before, node(gpu(0)), ()) == node(gpu(0))
    fallen_off = node(gpu(0, mig_enabled=True, lost="GPU is lost"))
    assert len(remember_lost(before, fallen_off, ()).gpus[0].mig_devices) == 2, "they are gone with their GPU"


def test_a_mig_device_is_found_by_its_own_uuid() -> None:
    whole = gpu(3, mig_enabled=True, mig_devices=(mig(0, "1g.10gb"),))
    assert node(gpu(0), whole).gpu(mig(0, None).uuid) == whole
    assert node(gpu(0), whole).gpu("GPU-unknown") is None


def test_gpus_stay_in_the_drivers_order_whichever_are_lost() -> None:
    known = remember_lost(node(gpu(0), gpu(1), gpu(2)), node(gpu(0), replace(gpu(2), index=1)), ())
    assert [one.uuid for one in known.gpus] == [gpu_uuid(0), gpu_uuid(1), gpu_uuid(2)]
