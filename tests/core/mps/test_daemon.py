from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sharer.core.device_id import DeviceId, Strategy
from sharer.core.mps.daemon import MpsShare, launch_of, namespace_name
from sharer.core.mps.state import MpsWanted
from sharer.core.quantities import GIB, MIB

IDS = st.builds(
    DeviceId,
    uuid=st.from_regex(r"\A(GPU|MIG)-[0-9a-f]{8}-[0-9a-f]{4}\Z"),
    strategy=st.just(Strategy.MPS),
    replica=st.integers(0, 59),
    limit_mib=st.none() | st.integers(1, 300_000),
    percent=st.none() | st.integers(1, 100),
)


def wanted(**slices: tuple[str, ...]) -> MpsWanted:
    """Of GPUs a, b, …, each with the endings of its slices' IDs."""
    return MpsWanted(
        resource="nvidia.com/gpu.mps",
        slices={f"GPU-{gpu}": tuple(f"GPU-{gpu}::mps-{end}" for end in ends) for gpu, ends in slices.items()},
        limits_memory=True,
    )


def test_a_daemon_is_told_limits_by_its_own_numbering_of_its_own_gpus() -> None:
    """P21: of four GPUs the last two are under MPS, and are devices 0 and 1 of the daemon."""
    launch = launch_of(wanted(c=("0-20480", "1-20480"), d=("0-20480", "1-20480")))
    assert launch.gpus == ("GPU-c", "GPU-d")
    assert launch.limits_mib == {"GPU-c": 20480, "GPU-d": 20480}


def test_a_limit_is_in_whole_mebibytes_and_those_of_a_gpu_fit_into_it() -> None:
    """P22: 80 GiB for 48 clients are 1706 MiB each."""
    share = 80 * GIB // 48 // MIB
    launch = launch_of(wanted(a=tuple(f"{number}-{share}" for number in range(48))))
    assert launch.limits_mib == {"GPU-a": 1706}
    assert 48 * launch.limits_mib["GPU-a"] * MIB <= 80 * GIB


def test_gpus_of_a_daemon_that_runs_keep_their_numbers() -> None:
    launch = launch_of(wanted(a=("0",), b=("0",), c=("0",)), present=("GPU-c", "GPU-gone", "GPU-a"))
    assert launch.gpus == ("GPU-c", "GPU-a", "GPU-b")


def test_the_one_default_of_a_device_is_its_largest_slice_and_that_is_said() -> None:
    launch = launch_of(wanted(a=("0-10240-50", "1-20480-25"), b=("0-10240-50",)))
    assert launch.limits_mib == {"GPU-a": 20480, "GPU-b": 10240}
    assert launch.percent == 50
    assert [warning for warning in launch.warnings if "GPU-a" in warning and "20480 MiB" in warning]
    assert [warning for warning in launch.warnings if "shares of SMs" in warning]
    assert not launch_of(wanted(a=("0-10240-50", "1-10240-50"))).warnings


def test_a_slice_without_a_limit_leaves_its_gpu_without_a_default() -> None:
    launch = launch_of(wanted(a=("0-10240-50", "1"), b=("0-10240-50",)))
    assert launch.limits_mib == {"GPU-b": 10240}
    assert launch.percent is None


def test_memory_that_something_stronger_holds_is_not_limited_by_mps_too() -> None:
    found = wanted(a=("0-10240-50",))
    launch = launch_of(MpsWanted(resource=found.resource, slices=found.slices, limits_memory=False))
    assert launch.limits_mib == {}
    assert [share for _, share in launch.namespaces.values()] == [MpsShare(limit_mib=None, percent=50)]


def test_each_slice_has_a_namespace_with_its_own_share() -> None:
    launch = launch_of(wanted(a=("0-10240-50", "1-20480-25")))
    assert {device_id: share for device_id, (_, share) in launch.namespaces.items()} == {
        "GPU-a::mps-0-10240-50": MpsShare(limit_mib=10240, percent=50),
        "GPU-a::mps-1-20480-25": MpsShare(limit_mib=20480, percent=25),
    }


def test_what_is_no_device_id_of_ours_has_no_share() -> None:
    launch = launch_of(MpsWanted(resource="r", slices={"GPU-a": ("GPU-a::0",)}, limits_memory=True))
    assert (launch.gpus, launch.namespaces, launch.limits_mib) == (("GPU-a",), {}, {})


@given(IDS, IDS)
def test_namespaces_are_named_as_mps_allows_and_two_slices_never_alike(one: DeviceId, other: DeviceId) -> None:
    name = namespace_name(one)
    assert len(name) <= 40
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789_")
    assert name != "default"
    assert (name == namespace_name(other)) == (one == other)
