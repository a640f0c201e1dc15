"""The driver's memory limits for cgroups: read, set, and read back (gpu-limits §2).

What was set is believed only when it is read back. Two backends answer differently: on `dmem` a cgroup without the
controller is NOT_FOUND, on `misc` one without a limit is NOT_SUPPORTED, which is also what a driver says that has no
limits at all; only a limit that was set and is read back tells those apart.
"""

from __future__ import annotations

from collections.abc import Sequence

import pynvml

from sharer.adapters.nvml.calls import Calls, Handle
from sharer.adapters.nvml.errors import (
    FUNCTION_NOT_FOUND,
    INVALID_ARGUMENT,
    NO_PERMISSION,
    NOT_FOUND,
    NOT_SUPPORTED,
    UNINITIALIZED,
    NvmlCallError,
)
from sharer.adapters.nvml.session import Session
from sharer.core.enforcer import LimitAnswer, LimitQuestion, MemoryLimit
from sharer.core.values import dataclass

_NO_SUCH_CGROUP = 17  # NVML_ERROR_OPERATING_SYSTEM: its path cannot be opened
_NO_LIMIT: int = pynvml.NVML_DEVICE_MEMORY_LIMIT_MAX
_MEANINGS = {
    FUNCTION_NOT_FOUND: "this driver cannot limit memory: that needs r615 (CUDA 13.4) or newer",
    NOT_SUPPORTED: "the driver does not limit memory on this GPU",
    NOT_FOUND: "the cgroup has no dmem controller: the cgroup above it does not list dmem in cgroup.subtree_control",
    NO_PERMISSION: "the driver lets only root set limits: run the agent as root on the host",
    INVALID_ARGUMENT: "the driver takes no such limit: it is more than the GPU has, or the GPU takes none",
}


@dataclass(frozen=True, slots=True)
class _Found:
    limit: MemoryLimit
    used_bytes: int | None


def answer_all(session: Session, questions: Sequence[LimitQuestion]) -> list[LimitAnswer]:
    """Answer each by itself: a cgroup that has gone, or a GPU that is lost, spoils no other answer. In the worker.

    Raises NvmlCallError if the session is dead.
    """
    return [_answer(session, question) for question in questions]


def _answer(session: Session, question: LimitQuestion) -> LimitAnswer:
    try:
        gpu = session.handle(question.gpu_uuid)
        found = _get(session.calls, gpu, question.cgroup)
        problem = None
        wanted = found.limit if question.change is None else question.change.made_of(found.limit)
        if wanted != found.limit:
            problem = _try_to_set(session.calls, gpu, question.cgroup, wanted)
            found = _get(session.calls, gpu, question.cgroup)
    except NvmlCallError as error:
        if error.code == UNINITIALIZED:
            raise
        return LimitAnswer(problem=_explain(error), gone=error.code == _NO_SUCH_CGROUP)
    return LimitAnswer(limit=found.limit, used_bytes=found.used_bytes, problem=problem)


def _try_to_set(calls: Calls, gpu: Handle, cgroup: str, wanted: MemoryLimit) -> str | None:
    """Why the limit could not be set; None: the driver took it. Raises NvmlCallError if there is no such cgroup."""
    limits = pynvml.c_nvmlSetMemoryLimits_v1_t()
    limits.nameSpace = cgroup.encode()
    limits.softLimit = wanted.soft_bytes
    limits.hardLimit = _NO_LIMIT if wanted.hard_bytes is None else wanted.hard_bytes
    try:
        calls.ask("nvmlDeviceSetMemoryLimits_v1", lambda: pynvml.nvmlDeviceSetMemoryLimits_v1(gpu, limits))
    except NvmlCallError as error:
        if error.code in (UNINITIALIZED, _NO_SUCH_CGROUP):
            raise
        return _explain(error)
    return None


def _get(calls: Calls, gpu: Handle, cgroup: str) -> _Found:
    """The limit in force. On `misc` "not supported" is also the answer where none is set."""
    limits = pynvml.c_nvmlGetMemoryLimits_v1_t()
    limits.nameSpace = cgroup.encode()
    try:
        calls.ask("nvmlDeviceGetMemoryLimits_v1", lambda: pynvml.nvmlDeviceGetMemoryLimits_v1(gpu, limits))
    except NvmlCallError as error:
        if error.code == NOT_SUPPORTED:
            return _Found(MemoryLimit(), None)
        raise
    hard_bytes = None if limits.hardLimit == _NO_LIMIT else limits.hardLimit
    used_bytes = None if limits.currentUsed == _NO_LIMIT else limits.currentUsed
    return _Found(MemoryLimit(hard_bytes=hard_bytes, soft_bytes=limits.softLimit), used_bytes)


def _explain(error: NvmlCallError) -> str:
    """What it means here, and which call said so."""
    if error.code == _NO_SUCH_CGROUP:
        return f"there is no such cgroup (any more): NVML error {error.code}"
    meaning = _MEANINGS.get(error.code or 0)
    return str(error) if meaning is None else f"{meaning} ({error.function}: NVML error {error.code})"
