"""MPS: one server process runs the work of its clients, and holds each client process to its share.

A client finds its server by a directory of pipes. Only containers with MPS slices get it, with the variable that
points there, both or neither (bug case P40), at a path of our own: CUDA looks at the default path /tmp/nvidia-mps
unasked, so that one would catch containers that never wanted MPS.
"""

from __future__ import annotations

from collections.abc import Sequence

from sharer.core.cut import Target
from sharer.core.device_id import Strategy
from sharer.core.edits import ContainerEdits, Mount, NodeFacts
from sharer.core.enforcer import Reach, Verdict, Verdicts
from sharer.core.errors import RequestError
from sharer.core.grant import Grant, Share
from sharer.core.injection import NO_MPS_DAEMON
from sharer.core.limits import Tenant
from sharer.core.quantities import MIB
from sharer.core.usage import Usage

CONTAINER_PIPE_DIRECTORY = "/run/sharer/mps"


class MpsEnforcer:
    """Holds pinned memory and SMs per client *process*: two in one container get twice. Way out: leaving MPS."""

    name = "mps"
    escapes = ("the limit is one of each process, not of the container", "leaving MPS")

    def __init__(self, reach: Reach) -> None:
        """It needs nothing from outside as long as no daemon is run."""

    def available(self, target: Target) -> str | None:
        """Why it cannot hold slices of this device."""
        return NO_MPS_DAEMON

    def apply(self, tenants: Sequence[Tenant], *, within_s: float | None = None) -> Verdicts:
        """Nothing is held by it yet."""
        return {}

    def verify(self, tenants: Sequence[Tenant], usage: Usage) -> Verdicts:
        """Nothing is held by it yet."""
        return {key: Verdict(problem=NO_MPS_DAEMON) for tenant in tenants for key, _ in tenant.promises()}

    def release(self, tenants: Sequence[Tenant]) -> str | None:
        """Nothing to give back."""
        return None

    @staticmethod
    def edits(grant: Grant, facts: NodeFacts) -> ContainerEdits:
        """Pipe directory and shares. Raises RequestError unless just one daemon would serve the container."""
        shares = [share for share in grant.shares if share.strategy is Strategy.MPS]
        if not shares:
            return ContainerEdits()
        env = {"CUDA_MPS_PIPE_DIRECTORY": CONTAINER_PIPE_DIRECTORY}
        # By UUID, never by number: an entry for a GPU that the process cannot see makes the client drop every limit.
        limits = [f"{share.uuid}={share.memory_bytes // MIB}M" for share in shares if share.memory_bytes is not None]
        percents = [share.percent for share in shares if share.percent is not None]
        if limits:
            env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = ",".join(limits)
        if percents:
            env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(
                min(percents)
            )  # one value a process: no GPU above its promise
        pipe = Mount(CONTAINER_PIPE_DIRECTORY, _pipe_directory(grant, shares, facts), read_only=False)
        return ContainerEdits(env=tuple(sorted(env.items())), mounts=(pipe,))


def _pipe_directory(grant: Grant, shares: list[Share], facts: NodeFacts) -> str:
    if len(shares) < len(grant.shares):
        others = ", ".join(share.uuid for share in grant.shares if share.strategy is not Strategy.MPS)
        raise RequestError(f"an MPS client sees the GPUs of its server only, so this container could not use {others}")
    directories: set[str] = set()
    for share in shares:
        directory = facts.devices[share.uuid].mps_pipe if share.uuid in facts.devices else None
        if directory is None:
            raise RequestError(f"{share.uuid} cannot be shared by MPS: no MPS control daemon serves it on this node")
        directories.add(directory)
    if len(directories) > 1:
        uuids = ", ".join(share.uuid for share in shares)
        raise RequestError(f"{uuids} belong to different MPS control daemons, and a process can have one only")
    return directories.pop()
