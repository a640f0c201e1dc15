"""Which processes NVML sees on which GPU or MIG device.

There are three lists a GPU (compute, graphics, MPS clients) and three versions of each function: the newest that the
driver has is asked, and only the first version has no MIG instance in its entries. A process may be in two lists, with
the same memory. PIDs are the host's, or unknown: 0 and 4294967295 occur (gpu-limits §4).
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence

import pynvml

from sharer.adapters.nvml.calls import Calls, Handle
from sharer.adapters.nvml.errors import FUNCTION_NOT_FOUND, INVALID_ARGUMENT, NOT_FOUND, NvmlCallError
from sharer.adapters.nvml.session import Session
from sharer.core.ports.holders import RawProcess, RawProcesses
from sharer.core.values import dataclass

ROOM = 32  # entries of the first try; a GPU with more takes a second one
TRIES = 5  # processes may start between the driver's "this many" and our next call
MAX_MIG_DEVICES = 64  # as in discovery: bounds the walk if the driver answers nonsense
_LISTS = ("Compute", "Graphics", "MPSCompute")
_CLIENTS = "MPSCompute"
_INSUFFICIENT_SIZE = 7
_NO_PIDS = (0, 0xFFFFFFFF)
_NO_INSTANCE = 0xFFFFFFFF
_NOT_AVAILABLE = 0xFFFFFFFFFFFFFFFF


class FirstVersion(ctypes.Structure):
    """nvmlProcessInfo_v1_t, which pynvml has not any more."""

    _fields_ = (("pid", ctypes.c_uint), ("usedGpuMemory", ctypes.c_ulonglong))


_VERSIONS: Sequence[tuple[str, type[ctypes.Structure]]] = (
    ("_v3", pynvml.c_nvmlProcessInfo_v3_t),
    ("_v2", pynvml.c_nvmlProcessInfo_v2_t),
    ("", FirstVersion),
)


@dataclass(frozen=True, slots=True)
class _Entry:
    """An entry of a list."""

    pid: int | None
    used_bytes: int | None
    instance: tuple[int, int] | None  # GPU instance and compute instance; None: not told, or none
    is_mps_client: bool | None  # None: the driver has no list of those


@dataclass(frozen=True, slots=True)
class _Mig:
    uuid: str
    handle: Handle
    instance: tuple[int, int] | None


def read_processes(session: Session) -> RawProcesses:
    """The processes on every GPU that can be asked. In the worker."""
    processes: list[RawProcess] = []
    asked: set[str] = set()
    lost: set[str] = set()
    for gpu in session.gpus():
        if gpu.uuid is None:
            continue
        error = gpu.error
        if gpu.handle is not None:
            try:
                by_device = _by_device(session.calls, gpu.handle, gpu.uuid)
            except NvmlCallError as refused:
                error = refused
            else:
                asked |= by_device.keys()
                for uuid, entries in by_device.items():
                    processes += _on(uuid, entries)
        if error is not None and error.gpu_lost:  # else it has no process lists: what runs on it is not known
            lost.add(gpu.uuid)
    return RawProcesses(processes=tuple(processes), asked=frozenset(asked), lost=frozenset(lost))


def _by_device(calls: Calls, handle: Handle, uuid: str) -> dict[str, list[_Entry]]:
    """What is on a GPU, or on each of its MIG devices, by UUID. Raises NvmlCallError."""
    migs = _mig_devices(calls, handle)
    if migs is None:
        return {uuid: _entries(calls, handle)}
    try:
        entries = _entries(calls, handle)
    except NvmlCallError as error:
        if error.gpu_lost:
            raise
        entries = None  # all instances at once need more rights than each by itself
    if entries is None or any(entry.instance is None for entry in entries):
        return {mig.uuid: _entries(calls, mig.handle) for mig in migs}
    uuids = {mig.instance: mig.uuid for mig in migs}
    found: dict[str, list[_Entry]] = {one: [] for one in (uuid, *uuids.values())}
    for entry in entries:
        found[uuids.get(entry.instance, uuid)].append(entry)
    return found


def _mig_devices(calls: Calls, handle: Handle) -> list[_Mig] | None:
    """The MIG devices of a GPU; None: it is not in MIG mode. Raises NvmlCallError if not all of them can be told."""
    try:
        if calls.mig_mode(handle) != 1:
            return None
    except NvmlCallError as error:
        if error.optional:
            return None
        raise
    found = []
    for index in range(min(calls.max_mig_devices(handle), MAX_MIG_DEVICES)):
        try:
            mig = calls.mig_device(handle, index)
            instance = calls.gpu_instance_id(mig), calls.compute_instance_id(mig)
            found.append(_Mig(calls.uuid(mig), mig, instance))
        except NvmlCallError as error:
            if error.code not in (NOT_FOUND, INVALID_ARGUMENT):  # a gap, or one that was deleted
                raise
    return found


def _entries(calls: Calls, handle: Handle) -> list[_Entry]:
    """Everything in the three lists. A driver without one of them has nothing to put into it, but for compute."""
    lists: dict[str, list[ctypes.Structure]] = {}
    for name in _LISTS:
        try:
            lists[name] = _list(calls, handle, name)
        except NvmlCallError as error:
            if name == _LISTS[0] or not error.optional:
                raise
    knows_clients = _CLIENTS in lists
    return [_entry(one, name == _CLIENTS if knows_clients else None) for name, found in lists.items() for one in found]


def _list(calls: Calls, handle: Handle, name: str) -> list[ctypes.Structure]:
    for suffix, struct in _VERSIONS:
        function = f"nvmlDeviceGet{name}RunningProcesses{suffix}"
        try:
            return calls.ask(function, lambda: _fetch(function, handle, struct))  # noqa: B023 - called at once
        except NvmlCallError as error:
            if error.code != FUNCTION_NOT_FOUND:
                raise
    raise NvmlCallError(f"nvmlDeviceGet{name}RunningProcesses", FUNCTION_NOT_FOUND, "this driver has no such list")


def _fetch(function: str, handle: Handle, struct: type[ctypes.Structure]) -> list[ctypes.Structure]:
    """The entries of one list. pynvml's own functions make two calls where one does, and have no first version."""
    call = pynvml._nvmlGetFunctionPointer(function)
    room = ROOM
    for _ in range(TRIES):
        count, entries = ctypes.c_uint(room), (struct * room)()
        code = call(handle, ctypes.byref(count), entries)
        if code != _INSUFFICIENT_SIZE:
            pynvml._nvmlCheckReturn(code)
            return list(entries[: min(count.value, room)])
        room = max(room, count.value) * 2
    raise pynvml.NVMLError(_INSUFFICIENT_SIZE)


def _entry(raw: ctypes.Structure, is_mps_client: bool | None) -> _Entry:
    instance = getattr(raw, "gpuInstanceId", _NO_INSTANCE), getattr(raw, "computeInstanceId", _NO_INSTANCE)
    return _Entry(
        pid=None if raw.pid in _NO_PIDS else raw.pid,
        used_bytes=None if raw.usedGpuMemory == _NOT_AVAILABLE else raw.usedGpuMemory,
        instance=None if _NO_INSTANCE in instance else instance,
        is_mps_client=is_mps_client,
    )


def _on(uuid: str, entries: Iterable[_Entry]) -> list[RawProcess]:
    """The processes on one device, each once; those without a PID cannot be told apart and stay as they are."""
    named: dict[int, RawProcess] = {}
    nameless = []
    for entry in entries:
        if entry.pid is None:
            nameless.append(
                RawProcess(pid=None, gpu_uuid=uuid, used_bytes=entry.used_bytes, is_mps_client=entry.is_mps_client)
            )
            continue
        before = named.get(entry.pid)
        amounts = (None if before is None else before.used_bytes, entry.used_bytes)
        is_client = entry.is_mps_client or (before is not None and before.is_mps_client)
        named[entry.pid] = RawProcess(
            pid=entry.pid,
            gpu_uuid=uuid,
            used_bytes=max((one for one in amounts if one is not None), default=None),
            is_mps_client=is_client if entry.is_mps_client is not None else None,
        )
    return [*named.values(), *nameless]
