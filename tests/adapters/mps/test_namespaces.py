from __future__ import annotations

import tomllib

import tomli_w

from sharer.adapters.mps.legacy import may_mean
from sharer.adapters.mps.namespaces import configuration
from sharer.core.mps.daemon import launch_of
from sharer.core.mps.state import MpsWanted

SLICES = {"GPU-a": ("GPU-a::mps-0-20480-25", "GPU-a::mps-1-10240-10"), "GPU-b": ("GPU-b::mps-0-20480-25",)}


def text(*, limits_memory: bool = True, user_id: int | None = None) -> str:
    wanted = MpsWanted(resource="r", slices=SLICES, limits_memory=limits_memory, user_id=user_id)
    return tomli_w.dumps(configuration(launch_of(wanted)))


def test_the_start_configuration_gives_each_slice_a_namespace_with_its_own_share() -> None:
    found = tomllib.loads(text())
    assert found["schema_version"] == "1.0"
    server = found["servers"]["slices"]
    assert server["allowed_devices"] == "GPU-a,GPU-b"
    shares = sorted(
        (space["pinned_memory_limit"], space["active_thread_percentage"]) for space in server["namespaces"].values()
    )
    assert shares == [("10240M", "10"), ("20480M", "25"), ("20480M", "25")]


def test_whoever_gets_into_the_namespace_of_nobody_has_no_more_than_the_least_slice() -> None:
    server = tomllib.loads(text())["servers"]["slices"]
    assert (server["pinned_memory_limit"], server["active_thread_percentage"]) == ("10240M", "10")


def test_memory_that_the_driver_holds_is_not_limited() -> None:
    """Neighbour of P22: two limits in two units on one container."""
    assert "pinned_memory_limit" not in text(limits_memory=False)


def test_a_server_of_all_users_is_root_s_and_that_of_one_user_is_theirs() -> None:
    assert tomllib.loads(text())["servers"]["slices"]["uid"] == 0
    assert tomllib.loads(text(user_id=1000))["servers"]["slices"]["uid"] == 1000


def test_an_amount_is_compared_by_what_it_means() -> None:
    """P22."""
    assert may_mean("20G", 20 * 1024)
    assert may_mean("21474836480", 20 * 1024)
    assert may_mean("5G", 20 * 1024) is False
    assert may_mean("-", 20 * 1024) is None
