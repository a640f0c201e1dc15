"""A container's slices add up, per GPU."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sharer.core.device_id import DeviceId, Strategy
from sharer.core.grant import make_grant


def ts(uuid: str, replica: int, limit_mib: int | None = 1024) -> DeviceId:
    return DeviceId(uuid=uuid, strategy=Strategy.TIME_SLICING, replica=replica, limit_mib=limit_mib)


def test_several_slices_of_one_gpu_add_up_to_one_share() -> None:
    grant = make_grant([ts("G-1", 0), ts("G-1", 3), ts("G-0", 1, 2048)])
    assert [(share.uuid, share.memory_bytes) for share in grant.shares] == [("G-0", 2 * 2**30), ("G-1", 2 * 2**30)]


def test_a_share_with_one_unlimited_slice_is_unlimited() -> None:
    assert make_grant([ts("G-0", 0), ts("G-0", 1, None)]).shares[0].memory_bytes is None


def test_shares_of_compute_add_up_to_the_whole_gpu_at_most() -> None:
    ids = [DeviceId(uuid="G-0", strategy=Strategy.MPS, replica=n, limit_mib=1, percent=40) for n in range(3)]
    assert make_grant(ids[:2]).shares[0].percent == 80
    assert make_grant(ids).shares[0].percent == 100


def test_devices_come_in_the_order_that_is_given_and_unknown_ones_last() -> None:
    grant = make_grant([ts("G-a", 0), ts("G-b", 0), ts("G-c", 0)], order=["G-c", "G-b"])
    assert [share.uuid for share in grant.shares] == ["G-c", "G-b", "G-a"]


@given(st.lists(st.builds(ts, st.sampled_from(["G-0", "G-1", "G-2"]), st.integers(0, 5)), max_size=8), st.data())
def test_neither_order_nor_repetition_changes_a_grant(ids: list[DeviceId], data: st.DataObject) -> None:
    """Contract row 31."""
    shuffled = data.draw(st.permutations(ids))
    assert make_grant(ids) == make_grant(shuffled) == make_grant([*ids, *ids])
