"""The driver's limit is asked of the toolkit's hook by two variables, or not at all."""

from __future__ import annotations

import pytest

from sharer.core.device_id import DeviceId
from sharer.core.edits import ContainerEdits, DeviceFacts, Injection, NodeFacts
from sharer.core.grant import make_grant
from sharer.enforcers.driver import DriverEnforcer
from tests.core.builders import gpu_uuid

A, B = gpu_uuid(0), gpu_uuid(1)


def facts(*checked: str, injection: Injection = Injection.CDI) -> NodeFacts:
    return NodeFacts(
        injection=(injection,), devices={uuid: DeviceFacts(driver_limit=uuid in checked) for uuid in (A, B)}
    )


def env(node: NodeFacts, *texts: str) -> dict[str, str]:
    edits = DriverEnforcer.edits(make_grant(map(DeviceId.parse, texts)), node)
    assert edits == ContainerEdits(env=edits.env), "it gives variables only"
    return dict(edits.env)


def test_the_limit_is_whole_mib_and_the_request_is_soft_zero() -> None:
    """A soft limit would stay with the ancestors' cgroups when the container has gone (gpu-limits §2)."""
    assert env(facts(A), f"{A}::ts-0-20480") == {"NVIDIA_GPU_MEMORY_LIMIT": "20480", "NVIDIA_GPU_MEMORY_REQUEST": "0"}


def test_several_slices_of_one_gpu_ask_for_their_sum() -> None:
    assert env(facts(A), f"{A}::ts-0-1024", f"{A}::ts-1-1024")["NVIDIA_GPU_MEMORY_LIMIT"] == "2048"


def test_gpus_with_one_promise_share_the_one_value_that_the_hook_knows() -> None:
    assert env(facts(A, B), f"{A}::ts-0-1024", f"{B}::ts-0-1024")["NVIDIA_GPU_MEMORY_LIMIT"] == "1024"


@pytest.mark.parametrize(
    ("checked", "held"),
    [
        ([], [f"{A}::ts-0-1024"]),  # nothing was checked
        ([A], [f"{A}::ts-0"]),  # nothing was promised
        ([A, B], [f"{A}::ts-0-1024", f"{B}::ts-0-2048"]),  # two values, and the hook has one
        ([A, B], [f"{A}::ts-0-1024", f"{B}::ts-0"]),  # a limit would hold the GPU that has none, too
        ([A], [f"{A}::ts-0-1024", f"{B}::ts-0-1024"]),  # one of two was checked
    ],
)
def test_where_the_hook_could_not_do_what_was_promised_neither_variable_is_set(
    checked: list[str], held: list[str]
) -> None:
    """With one of the two alone the hook does nothing; with a wrong pair the container fails to start."""
    assert env(facts(*checked), *held) == {}


def test_without_cdi_nobody_would_read_the_variables_and_none_is_set() -> None:
    assert env(facts(A, injection=Injection.DEVICE_NODES), f"{A}::ts-0-1024") == {}
