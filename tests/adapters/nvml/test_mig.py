"""MIG devices: what exists, what only seems to, and what they are called."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sharer.core.inventory import MigDevice
from sharer.core.quantities import GIB
from tests.adapters.nvml.conftest import MakeNode, OpenDriver
from tests.adapters.nvml.gpus import A, B, mig, only, with_migs


def test_mig_mode_without_instances_is_that_gpus_state_only(make_node: MakeNode, open_driver: OpenDriver) -> None:
    """P18: and instances that come and go later are seen without a restart."""
    node = make_node(with_migs(), with_migs(mig(0), mig(1), mig(2), uuid="GPU-b"), replace(A, uuid="GPU-c"))
    driver = open_driver(node)
    empty, cut, plain = driver.discover().gpus
    assert (empty.mig_enabled, empty.mig_devices) == (True, ())
    assert [device.profile for device in cut.mig_devices] == ["1g.10gb"] * 3
    assert plain.mig_enabled is None
    node.put(with_migs(mig(3), mig(4)))
    node.put(with_migs(uuid="GPU-b"))
    first, second, _ = driver.discover().gpus
    assert [device.uuid for device in first.mig_devices] == ["MIG-3", "MIG-4"]
    assert second.mig_devices == ()


def test_mig_devices_are_found_over_gaps(make_node: MakeNode, open_driver: OpenDriver) -> None:
    """P19: the count is what is possible, not what exists."""
    gpu = only(open_driver(make_node(with_migs(mig(0), mig(2), mig(5)))).discover().gpus)
    assert [(device.uuid, device.index, device.gpu_instance_id) for device in gpu.mig_devices] == [
        ("MIG-0", 0, 7),
        ("MIG-2", 2, 9),
        ("MIG-5", 5, 12),
    ]
    assert gpu.unknown[1:] == (), "a gap is no failure"


def test_a_mig_device_that_was_deleted_is_dropped_although_it_still_answers(
    make_node: MakeNode, open_driver: OpenDriver
) -> None:
    """P19: the open session still has its handle and UUID, but not its attributes."""
    node = make_node(with_migs(mig(0), mig(2), mig(5)))
    driver = open_driver(node)
    driver.discover()
    node.put(with_migs(mig(0), replace(mig(2), stale=True), mig(5)))
    inventory = driver.discover()
    assert [device.uuid for device in only(inventory.gpus).mig_devices] == ["MIG-0", "MIG-5"]
    assert "MIG device 2 no longer exists" in only(inventory.warnings)


@pytest.mark.parametrize("code", [2, 6])
def test_a_mig_device_without_attributes_is_a_ghost(make_node: MakeNode, open_driver: OpenDriver, code: int) -> None:
    node = make_node(with_migs(mig(0), mig(2)))
    node.fail("nvmlDeviceGetAttributes_v2", code, uuid="MIG-2")
    assert [device.uuid for device in only(open_driver(node).discover().gpus).mig_devices] == ["MIG-0"]


def test_two_indexes_with_one_uuid_are_one_mig_device(make_node: MakeNode, open_driver: OpenDriver) -> None:
    """P19"""
    node = make_node(with_migs(mig(0), replace(mig(2), uuid="MIG-0")))
    inventory = open_driver(node).discover()
    assert [(device.uuid, device.index) for device in only(inventory.gpus).mig_devices] == [("MIG-0", 0)]
    assert "MIG-0" in only(inventory.warnings)


def test_ghosts_are_gone_in_the_next_session(make_node: MakeNode, open_driver: OpenDriver) -> None:
    """Neighbour of P19: a session that shows ghosts is opened anew, but not at once and not at every look."""
    now = [0.0]
    node = make_node(with_migs(mig(0), mig(2)))
    driver = open_driver(node, reopen_after_s=60.0, now_s=lambda: now[0])
    driver.discover()
    node.put(with_migs(mig(0), replace(mig(2), stale=True)))
    for now[0] in (1.0, 30.0, 59.0):
        assert driver.discover().warnings != ()
    assert node.calls("nvmlInitWithFlags") == 1
    now[0] = 61.0
    assert driver.discover().warnings == ()
    assert node.calls("nvmlInitWithFlags") == 2


def test_a_profile_keeps_its_media_extension(make_node: MakeNode, open_driver: OpenDriver) -> None:
    """P20"""
    profiles = [*["1g.10gb"] * 5, "1g.10gb+me", "1g.20gb"]
    node = make_node(
        with_migs(*(mig(place, profile) for place, profile in enumerate(profiles))),
        with_migs(mig(0, "1g.24gb"), mig(1, "1g.24gb+me"), mig(2, "1g.24gb+gfx"), mig(3, "1g.24gb-me"), uuid="GPU-b"),
    )
    first, second = open_driver(node).discover().gpus
    assert [device.profile for device in first.mig_devices] == profiles
    assert [device.profile for device in second.mig_devices] == ["1g.24gb", "1g.24gb+me", "1g.24gb+gfx", "1g.24gb-me"]


@pytest.mark.parametrize(
    "name", [b"NVIDIA A100-SXM4-80GB", b"NVIDIA \xff MIG 1g.10gb", b""], ids=["plain", "bytes", "empty"]
)
def test_a_profile_that_the_name_does_not_tell_comes_from_the_instance(
    make_node: MakeNode, open_driver: OpenDriver, name: bytes
) -> None:
    """P20: whatever the source, the media extension is there."""
    node = make_node(with_migs(mig(0, "1g.10gb"), replace(mig(1, "1g.10gb+me"), name=name)))
    devices = only(open_driver(node).discover().gpus).mig_devices
    assert [device.profile for device in devices] == ["1g.10gb", "1g.10gb+me"]


def test_a_profile_that_nothing_tells_is_unknown_and_never_made_up(
    make_node: MakeNode, open_driver: OpenDriver
) -> None:
    """Neighbour of P20: a name made from sizes would drop the media extension."""
    node = make_node(with_migs(replace(mig(0, "1g.10gb+me"), name=b"NVIDIA A100-SXM4-80GB")))
    node.fail("nvmlDeviceGetGpuInstanceById", 4)
    (device,) = only(open_driver(node).discover().gpus).mig_devices
    assert device.profile is None
    assert "no permission" in dict(device.unknown)["profile"]


def test_a_compute_instance_that_is_a_part_is_not_given_the_whole_instances_profile(
    make_node: MakeNode, open_driver: OpenDriver
) -> None:
    part = replace(mig(0, "3g.40gb"), gpu_slices=3, compute_slices=1, name=b"NVIDIA A100-SXM4-80GB")
    (device,) = only(open_driver(make_node(with_migs(part))).discover().gpus).mig_devices
    assert device.profile is None
    assert "names no profile" in dict(device.unknown)["profile"]


def test_a_mig_devices_memory_comes_from_its_attributes_where_the_memory_query_fails(
    make_node: MakeNode, open_driver: OpenDriver
) -> None:
    node = make_node(with_migs(mig(0)))
    node.fail("nvmlDeviceGetMemoryInfo_v2", 3, uuid="MIG-0")
    node.fail("nvmlDeviceGetMemoryInfo", 3, uuid="MIG-0")
    (device,) = only(open_driver(node).discover().gpus).mig_devices
    assert (device.memory_bytes, device.unknown) == (9 * GIB, ())


def test_a_mig_device_is_described_in_full(make_node: MakeNode, open_driver: OpenDriver) -> None:
    assert only(open_driver(make_node(with_migs(mig(3, "1g.10gb+me")))).discover().gpus).mig_devices == (
        MigDevice(
            uuid="MIG-3",
            index=3,
            gpu_instance_id=10,
            compute_instance_id=0,
            profile="1g.10gb+me",
            memory_bytes=9 * GIB,
        ),
    )


def test_a_mig_uuid_of_the_old_form_is_reported_as_it_is(make_node: MakeNode, open_driver: OpenDriver) -> None:
    old = "MIG-GPU-5a3f0000-0000-0000-0000-000000000000/7/0"
    (device,) = only(open_driver(make_node(with_migs(replace(mig(0), uuid=old)))).discover().gpus).mig_devices
    assert device.uuid == old


def test_a_gpu_that_gets_lost_while_its_mig_devices_are_looked_at_is_lost(
    make_node: MakeNode, open_driver: OpenDriver
) -> None:
    node = make_node(with_migs(mig(0), mig(1)), B)
    node.fail("nvmlDeviceGetAttributes_v2", 15, uuid="MIG-1")
    lost, whole = open_driver(node).discover().gpus
    assert lost.lost is not None
    assert [device.uuid for device in lost.mig_devices] == ["MIG-0"]
    assert whole.lost is None


def test_a_mig_device_that_fails_otherwise_is_noted_at_its_gpu(make_node: MakeNode, open_driver: OpenDriver) -> None:
    node = make_node(with_migs(mig(0), mig(1)))
    node.fail("nvmlDeviceGetUUID", 999, uuid="MIG-1")
    gpu = only(open_driver(node).discover().gpus)
    assert [device.uuid for device in gpu.mig_devices] == ["MIG-0"]
    assert "MIG device 1 cannot be asked" in dict(gpu.unknown)["mig_devices"]


def test_an_absurd_number_of_possible_mig_devices_is_not_walked(make_node: MakeNode, open_driver: OpenDriver) -> None:
    node = make_node(replace(with_migs(mig(0)), max_mig_devices=2**32 - 1))
    assert len(only(open_driver(node).discover().gpus).mig_devices) == 1
    assert node.calls("nvmlDeviceGetMigDeviceHandleByIndex") < 100
