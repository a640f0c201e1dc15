"""MPS clients get the pipe directory of their daemon, and their shares in MPS's own words."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharer.core.device_id import DeviceId
from sharer.core.edits import ContainerEdits, DeviceFacts, Injection, NodeFacts
from sharer.core.errors import RequestError
from sharer.core.grant import make_grant
from sharer.enforcers.mps import MpsEnforcer
from tests.core.builders import gpu_uuid

A, B = gpu_uuid(0), gpu_uuid(1)
PIPE = "/var/lib/sharer/mps/nvidia.com_gpu.shared/pipe"


def facts(**pipes: str | None) -> NodeFacts:
    by_uuid = {"a": A, "b": B}
    devices = {by_uuid[name]: DeviceFacts(mps_pipe=pipe) for name, pipe in pipes.items()}
    return NodeFacts(injection=(Injection.CDI,), devices=devices)


def edits(node: NodeFacts, *texts: str) -> ContainerEdits:
    return MpsEnforcer.edits(make_grant(map(DeviceId.parse, texts), node.devices), node)


def limits_mib(given: ContainerEdits) -> dict[str, int]:
    """What MPS reads from the variable."""
    entries = [re.fullmatch(r"([^=]+)=([0-9]+)M", entry) for entry in dict(given.env)[LIMIT].split(",")]
    return {entry[1]: int(entry[2]) for entry in entries if entry}


LIMIT, PERCENT, DIRECTORY = (
    "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
    "CUDA_MPS_PIPE_DIRECTORY",
)


def test_one_gpu_on_mps_one_sliced_in_time_one_exclusive_only_the_first_meets_the_daemon() -> None:
    """Bug case P40: a pipe directory reached every container on its node, whether it wanted MPS or not."""
    node = facts(a=PIPE, b=PIPE)
    assert edits(node, f"{A}::mps-0-1024").mounts != ()
    assert edits(node, f"{B}::ts-0-1024") == ContainerEdits()
    assert edits(node, f"{B}::ex-0") == ContainerEdits()


def test_the_pipe_directory_and_the_variable_that_points_at_it_come_together() -> None:
    """Bug case P40, and never CUDA's default path, which CUDA looks at unasked."""
    given = edits(facts(a=PIPE), f"{A}::mps-0")
    (mount,) = given.mounts
    assert mount.host_path == PIPE
    assert dict(given.env) == {DIRECTORY: mount.container_path}
    assert mount.container_path != "/tmp/nvidia-mps"


def test_without_a_daemon_a_client_is_refused_rather_than_left_without_limits() -> None:
    for node in (facts(a=None), facts()):
        with pytest.raises(RequestError, match=rf"{A} cannot be shared by MPS: no MPS control daemon serves it"):
            edits(node, f"{A}::mps-0-1024")


def test_the_memory_limit_is_keyed_by_uuid_in_mib() -> None:
    """Bug cases P21, P22: numbers shift with the GPUs one sees, and a byte count with an M behind it held nobody."""
    given = edits(facts(a=PIPE, b=PIPE), f"{A}::mps-0-6144-25", f"{B}::mps-3-12288-25")
    assert limits_mib(given) == {A: 6144, B: 12288}


def test_a_48th_of_a_gpu_is_whole_mib_rounded_down() -> None:
    """Bug case P22."""
    assert limits_mib(edits(facts(a=PIPE), f"{A}::mps-47-1706-2")) == {A: 1706}


def test_several_slices_of_a_gpu_add_up_in_memory_and_in_sms() -> None:
    given = edits(facts(a=PIPE), f"{A}::mps-0-6144-25", f"{A}::mps-1-6144-25")
    assert limits_mib(given) == {A: 12288}
    assert dict(given.env)[PERCENT] == "50"


def test_a_process_has_one_thread_percentage_so_the_smallest_promise_holds() -> None:
    given = edits(facts(a=PIPE, b=PIPE), f"{A}::mps-0-1024-25", f"{B}::mps-0-1024-50")
    assert dict(given.env)[PERCENT] == "25"


def test_what_was_not_promised_is_not_limited() -> None:
    assert dict(edits(facts(a=PIPE), f"{A}::mps-0").env).keys() == {DIRECTORY}
    assert dict(edits(facts(a=PIPE), f"{A}::mps-0--25").env).keys() == {DIRECTORY, PERCENT}


def test_no_limit_names_a_gpu_that_the_container_does_not_hold() -> None:
    """One such entry makes a client drop all its limits (gpu-limits §3)."""
    assert limits_mib(edits(facts(a=PIPE, b=PIPE), f"{B}::mps-0-1024")).keys() == {B}


def test_a_gpu_outside_mps_cannot_be_in_a_client_s_container() -> None:
    with pytest.raises(RequestError, match=rf"could not use {B}"):
        edits(facts(a=PIPE, b=PIPE), f"{A}::mps-0-1024", f"{B}::ts-0-1024")


def test_gpus_of_two_daemons_cannot_be_in_one_container() -> None:
    with pytest.raises(RequestError, match="different MPS control daemons"):
        edits(facts(a=PIPE, b="/elsewhere"), f"{A}::mps-0-1024", f"{B}::mps-0-1024")


@given(limits=st.lists(st.integers(1, 10**6), min_size=1, max_size=48))
def test_limits_are_never_above_what_the_ids_promise(limits: list[int]) -> None:
    texts = [f"{A}::mps-{replica}-{limit}" for replica, limit in enumerate(limits)]
    assert limits_mib(edits(facts(a=PIPE), *texts)) == {A: sum(limits)}
