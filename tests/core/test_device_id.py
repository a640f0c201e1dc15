"""The device ID round-trips, and nothing else is taken for one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharer.core.device_id import DeviceId, Strategy, recognise
from sharer.core.errors import RequestError

UUID = "GPU-5a3f0000-1111-2222-3333-444455556666"

device_ids = st.builds(
    DeviceId,
    uuid=st.sampled_from([UUID, UUID.replace("GPU", "MIG"), "GPU-5a3f"]),
    strategy=st.sampled_from(Strategy),
    replica=st.integers(0, 99_999),
    limit_mib=st.none() | st.integers(1, 999_999),
    percent=st.none() | st.integers(1, 100),
)


@given(device_ids)
def test_an_id_reads_back_as_what_it_was_written_from(device_id: DeviceId) -> None:
    assert device_id.is_valid
    assert DeviceId.parse(str(device_id)) == device_id


@given(st.text(alphabet="GPU-5a3f:tsmpigex0123456789.\n", max_size=40))
def test_whatever_is_read_is_written_the_same_way(text: str) -> None:
    try:
        device_id = DeviceId.parse(text)
    except RequestError:
        return
    assert str(device_id) == text


@given(device_ids.map(str) | st.text(max_size=80), st.data())
def test_any_text_is_one_of_our_ids_or_nobodys(text: str, data: st.DataObject) -> None:
    """And what is not, because a character is another, is never taken for another promise of the same slice."""
    place = data.draw(st.integers(0, len(text)))
    changed = text[:place] + data.draw(st.characters() | st.just("")) + text[place + 1 :]
    for one in (text, changed):
        found = recognise(one)
        assert found is None or (str(found), found.is_valid) == (one, True)
        refused = False
        try:
            DeviceId.parse(one)
        except RequestError:
            refused = True
        assert refused == (found is None)


@pytest.mark.parametrize(
    "text",
    [
        "", "0", UUID, f"{UUID}::0", f"{UUID}::ts", f"{UUID}::ts-",
        f"{UUID}::ts-01", f"{UUID}::ts-0-", f"{UUID}::ts-0-0",
        f"{UUID}::ts-0-20480-", f"{UUID}::ts-0-20480-0", f"{UUID}::ts-0-20480-101", f"{UUID}::xx-0", f"::{UUID}::ts-0",
        f"{UUID}::ts-0 ", f"{UUID}::ts-0\n", f"{UUID}::ts-١", "MIG-GPU-5a3f/7/0::mig-0", f"{UUID}::ts-0-{'9' * 20}",
    ],
)  # fmt: skip
def test_an_id_of_another_plugin_or_a_damaged_one_is_refused_by_name(text: str) -> None:
    """DESIGN §2: the NVIDIA plugin's GPU-<uuid>::0 is foreign."""
    with pytest.raises(RequestError, match="not one of sharer's"):
        DeviceId.parse(text)


def test_a_share_of_compute_without_a_memory_limit_leaves_the_limit_empty() -> None:
    device_id = DeviceId(uuid="GPU-5a3f", strategy=Strategy.MPS, replica=2, percent=25)
    assert str(device_id) == "GPU-5a3f::mps-2--25"
    assert DeviceId.parse("GPU-5a3f::mps-2--25") == device_id
