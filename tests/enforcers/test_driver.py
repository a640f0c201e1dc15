"""The driver's limit is asked of the toolkit's hook by two variables or not at all, and is tried before it counts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace

import pytest

from sharer.core.device_id import DeviceId
from sharer.core.edits import ContainerEdits, DeviceFacts, Injection, NodeFacts
from sharer.core.enforcer import LimitAnswer, LimitChange, LimitQuestion, MemoryLimit, Reach
from sharer.core.errors import NodeError
from sharer.core.grant import make_grant
from sharer.core.quantities import GIB
from sharer.core.slices.cut import Target
from sharer.enforcers.driver import DriverEnforcer
from tests.core.builders import gpu, gpu_uuid, mig

A, B = gpu_uuid(0), gpu_uuid(1)
GPU_A = Target(gpu=gpu(0), mig=None)


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
    """Neighbour of P22: the same for the variable of the driver's hook."""
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


class ScratchOnly:
    """Cgroups of which only the scratch one matters."""

    def __init__(self, problem: str | None = None) -> None:
        self._problem = problem

    @contextlib.contextmanager
    def scratch(self) -> Iterator[str]:
        if self._problem is not None:
            raise NodeError(self._problem)
        yield "/c/scratch"

    def __getattr__(self, name: str) -> object:
        raise AssertionError(f"{name} is not needed to see whether limits work")


class ScriptedLimits:
    """A driver whose answers depend on what it is asked to set."""

    def __init__(self, *, read_back: int | None = None, problem: str | None = None, error: str | None = None) -> None:
        self._read_back, self._problem, self._error = read_back, problem, error
        self.asked: list[LimitQuestion] = []

    def limits(self, questions: list[LimitQuestion], *, within_s: float | None = None) -> list[LimitAnswer]:
        assert within_s is not None, "a check is bounded"
        self.asked += questions
        if self._error is not None:
            raise NodeError(self._error)
        (question,) = questions
        assert question.change is not None
        if self._problem is not None:
            return [LimitAnswer(problem=self._problem)]
        hard_bytes = question.change.hard_bytes
        return [LimitAnswer(limit=MemoryLimit(hard_bytes=hard_bytes if self._read_back is None else self._read_back))]


def available(limits: ScriptedLimits, target: Target = GPU_A, cgroup_problem: str | None = None) -> str | None:
    reach = Reach(limits=limits, cgroups=ScratchOnly(cgroup_problem))  # type: ignore[arg-type]  # scratch is all it needs
    return DriverEnforcer(reach).available(target)


def test_the_driver_is_available_where_a_limit_was_set_and_read_back_and_lifted_again() -> None:
    limits = ScriptedLimits()
    assert available(limits) is None
    assert [question.change for question in limits.asked] == [
        LimitChange(hard_bytes=40 * GIB, soft_bytes=0),
        LimitChange(hard_bytes=None),
    ]
    assert {(question.gpu_uuid, question.cgroup) for question in limits.asked} == {(A, "/c/scratch")}


def test_a_limit_that_is_not_read_back_as_it_was_set_is_none() -> None:
    assert available(ScriptedLimits(read_back=GIB)) == "a limit of 40 GiB was set, and 1 GiB was read back"


def test_what_is_in_the_way_is_the_reason() -> None:
    assert available(ScriptedLimits(problem="no such function")) == "no such function"
    assert available(ScriptedLimits(error="NVML hangs")) == "NVML hangs"
    assert available(ScriptedLimits(), cgroup_problem="cgroup v1") == "cgroup v1"


@pytest.mark.parametrize(
    ("target", "why"),
    [
        (Target(gpu=gpu(0, mig_enabled=True), mig=None), "the GPU is in MIG mode"),
        (Target(gpu=gpu(0, mig_enabled=True), mig=mig(0, "1g.10gb")), "the driver takes no limits for MIG devices"),
        (Target(gpu=gpu(0, lost="it has fallen off the bus"), mig=None), "the GPU is lost: it has fallen off the bus"),
    ],
)
def test_what_cannot_take_a_limit_is_not_asked(target: Target, why: str) -> None:
    limits = ScriptedLimits()
    reason = available(limits, target)
    assert reason is not None
    assert reason.startswith(why)
    assert limits.asked == []


def test_a_gpu_of_unknown_memory_is_tried_with_little() -> None:
    """P25: unified memory."""
    limits = ScriptedLimits()
    assert available(limits, replace(GPU_A, gpu=gpu(0, memory_mib=None))) is None
    assert limits.asked[0].change == LimitChange(hard_bytes=GIB // 2, soft_bytes=0)
