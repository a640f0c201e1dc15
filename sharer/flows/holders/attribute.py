"""Whose the processes on the GPUs are: NVML knows PIDs, /proc knows their cgroups, and those name the pods."""

from __future__ import annotations

from collections.abc import Collection

from sharer.core.errors import NodeError
from sharer.core.holders.evidence import GpuProcess, ProcessReading
from sharer.core.ports.holders import ProcessIdentity, ProcessSource, ProcessTable, RawProcess
from sharer.core.values import dataclass

NO_HOST_PIDS = (
    "the processes on the GPUs cannot be told apart by pod: this agent does not see the host's processes. Give its pod"
    " hostPID: true, or mount the host's /proc and name it with --proc-root"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attributed:
    """The processes with their pods."""

    reading: ProcessReading
    problem: str | None = None  # what stands in the way of knowing them all; None: nothing


def attribute(source: ProcessSource, table: ProcessTable, known: Collection[str]) -> Attributed:
    """Ask for the processes on the GPUs, and find out whose they are.

    `known` are the UIDs of this node's pods: a pod may run a cluster of its own, whose pods are none of the kubelet's.
    Raises NodeError if the driver does not answer.
    """
    raw = source.processes()
    if not table.sees_the_host():
        # An empty list proves nothing then: whether the driver lists processes of other PID namespaces is not certain.
        unknown = tuple(_unknown(process) for process in raw.processes)
        return Attributed(reading=ProcessReading(processes=unknown, lost=raw.lost), problem=NO_HOST_PIDS)
    found: list[GpuProcess] = []
    problem = None
    for process in raw.processes:
        try:
            identity = None if process.pid is None else table.identify(process.pid)
        except NodeError as error:
            problem = problem or str(error)
            found.append(_unknown(process))
            continue
        if process.pid is None:
            found.append(_unknown(process))
        elif identity is not None:  # else it has ended meanwhile
            found.append(_known(process, identity, known))
    reading = ProcessReading(processes=tuple(found), asked=raw.asked, lost=raw.lost)
    return Attributed(reading=reading, problem=problem)


def _known(process: RawProcess, identity: ProcessIdentity, known: Collection[str]) -> GpuProcess:
    ours = [pod for pod in identity.pods if pod[0] in known] or identity.pods
    uid, container_id = ours[0] if ours else (None, None)
    return GpuProcess(
        pid=process.pid,
        gpu_uuid=process.gpu_uuid,
        used_bytes=process.used_bytes,
        is_mps_client=process.is_mps_client,
        command=identity.command,
        uid=uid,
        container_id=container_id,
        attributed=True,
    )


def _unknown(process: RawProcess) -> GpuProcess:
    return GpuProcess(
        pid=process.pid,
        gpu_uuid=process.gpu_uuid,
        used_bytes=process.used_bytes,
        is_mps_client=process.is_mps_client,
        command=None,
        uid=None,
        container_id=None,
        attributed=False,
    )
