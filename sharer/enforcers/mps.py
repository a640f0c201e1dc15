"""MPS: one server process runs the work of its clients, and holds each client process to its share.

A client finds its daemon by a directory. Only containers with MPS slices get it, with the variable that points there,
both or neither (bug case P40), at a path of our own: CUDA looks at the default path /tmp/nvidia-mps unasked, so that
one would catch containers that never wanted MPS. Which directory it is depends on what the daemon speaks:

* legacy: the daemon's own. It has one default for each GPU; the variables for memory and SMs say the same to the
  client, who can only lower it.
* with namespaces: that of the slice's namespace and nothing else, so that nobody reaches a neighbour's. The namespace
  has the limits. The variable for memory is left out: an entry of it for a GPU that a process has hidden from itself
  makes the client drop every limit, the namespace's too (gpu-limits §3).

Either is mounted read-only: whoever could write there could put a socket of their own in the place of the daemon's, for
all who come later, or fill the host's disk. A client only connects (NVIDIA: all communication is by sockets and named
pipes; public traces of clients begin with a connect to `control`, and only daemon and server have the lock open), and
sockets and named pipes can be used on a mount that is read-only (runtime-facts 28; to be tried with a real driver).

The daemons themselves are run by `sharer mps`, and set up from what the agent reports; nothing is applied here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from sharer.core.device_id import Strategy
from sharer.core.edits import ContainerEdits, DeviceFacts, Mount, NodeFacts
from sharer.core.enforcer import Reach, Verdict, Verdicts
from sharer.core.errors import RequestError
from sharer.core.grant import Grant, Share
from sharer.core.limits.limits import Tenant
from sharer.core.limits.usage import NOT_KNOWN, Usage
from sharer.core.mps.state import SHARED_MEMORY, MpsState, why_not_served
from sharer.core.policy.enforcers import MPS, Promise
from sharer.core.quantities import MIB, format_bytes
from sharer.core.slices.cut import Target

CONTAINER_PIPE_DIRECTORY = "/run/sharer/mps"
_UNKNOWN = DeviceFacts()


class MpsEnforcer:
    """Holds pinned memory and SMs per client *process*: two in one container get twice. Way out: leaving MPS."""

    name = MPS
    escapes = (
        "the limit is one of each process, not of the container",
        "leaving MPS",
        "a client that names a GPU it cannot see in CUDA_MPS_PINNED_DEVICE_MEM_LIMIT drops its memory limit",
    )

    def __init__(self, reach: Reach, *, wall_s: Callable[[], float] = time.time) -> None:
        """`wall_s` is Unix time: the daemons' states are dated by another process."""
        self._states, self._wall_s = reach.mps, wall_s

    def available(self, target: Target) -> str | None:
        """Why it cannot hold slices of this GPU; None: a daemon has answered for it.

        Whether the daemon serves at this moment, `verify` says: a choice that changed with every restart of a daemon
        would be none.
        """
        if target.mig is not None:
            return "MPS does not share MIG devices"
        state = _serving(self._states(), target.uuid)
        if state is None:
            return why_not_served(None, target.uuid, 0.0)
        return None if state.interface is not None else state.problem or "its MPS control daemon has not answered yet"

    def apply(self, tenants: Sequence[Tenant], *, within_s: float | None = None) -> Verdicts:
        """Nothing to do: the daemon has its limits before it has its first client."""
        return {}

    def verify(self, tenants: Sequence[Tenant], usage: Usage) -> Verdicts:
        """A container is held while its daemon serves and its one process on the GPU is the daemon's client.

        One that has no process there is not held by anything: it has not come to MPS yet, and may never.
        """
        states, wall_s = self._states(), self._wall_s()
        verdicts = {}
        for tenant in tenants:
            if tenant.container is None:
                continue
            for (key, promise, uuid), _ in tenant.promises():
                problem = why_not_served(_serving(states, uuid), uuid, wall_s) or _problem(tenant, promise, uuid, usage)
                verdicts[key, promise, uuid] = Verdict(problem=problem)
        return verdicts

    def release(self, tenants: Sequence[Tenant]) -> str | None:
        """Nothing to give back."""
        return None

    @staticmethod
    def edits(grant: Grant, facts: NodeFacts) -> ContainerEdits:
        """The way to the daemon, and the shares. Raises RequestError unless just one daemon would serve all of it."""
        shares = [share for share in grant.shares if share.strategy is Strategy.MPS]
        if not shares:
            return ContainerEdits()
        if len(shares) < len(grant.shares):
            others = ", ".join(share.uuid for share in grant.shares if share.strategy is not Strategy.MPS)
            raise RequestError(
                f"an MPS client sees the GPUs of its server only, so this container could not use {others};"
                " ask for slices of one resource only"
            )
        namespace = _namespace(grant, facts)
        env = {"CUDA_MPS_PIPE_DIRECTORY": CONTAINER_PIPE_DIRECTORY}
        if namespace is None:
            env |= _variables(shares, facts)
        mounts = [Mount(CONTAINER_PIPE_DIRECTORY, namespace or _pipe_directory(shares, facts))]
        shared_memory = facts.devices[shares[0].uuid].mps_shm  # one daemon, so the same for all
        if shared_memory is not None:
            mounts.append(Mount(SHARED_MEMORY, shared_memory, read_only=False))
        return ContainerEdits(env=tuple(sorted(env.items())), mounts=tuple(mounts))


def _serving(states: Mapping[str, MpsState], uuid: str) -> MpsState | None:
    """What was last said of the daemon that a GPU belongs to; None: nothing was."""
    own = [state for state in states.values() if uuid in state.gpus]
    return max(own, key=lambda state: state.written_at_s, default=None)


def _problem(tenant: Tenant, promise: Promise, uuid: str, usage: Usage) -> str | None:
    """Why a container is not held by the daemon that serves it; None: it is, as far as its processes show."""
    if tenant.container_id is None:
        return NOT_KNOWN
    clients = usage.clients(tenant.uid, tenant.container_id, uuid)
    use = usage.of(tenant.uid, tenant.container_id, uuid)
    if clients.others:
        return f"{_processes(clients.others)} on it and no MPS client, so nothing holds it"
    if clients.unknown is not None or use.unknown is not None:
        return f"whether MPS holds all of its processes is not known: {clients.unknown or use.unknown}"
    if not clients.clients:
        return "none of its processes has come to MPS yet"
    if len(clients.clients) > 1:
        return "it has several processes there, and each may use all of it: MPS counts per process"
    if promise is Promise.MEMORY:
        for bound in tenant.memory:
            if bound.uuid == uuid and use.known_bytes > bound.at_most_bytes:
                return f"it uses more than the {format_bytes(bound.at_most_bytes)} it was promised"
    return usage.why_not_confined(tenant)


def _processes(pids: Sequence[int]) -> str:
    return f"process {pids[0]} is" if len(pids) == 1 else f"processes {', '.join(map(str, pids))} are"


def _namespace(grant: Grant, facts: NodeFacts) -> str | None:
    """The host directory of a container's namespace; None: no GPU of it has namespaces.

    A process comes to one namespace. Where a container has several slices all the same, it is one of the smallest.
    """
    of_gpu = {share.uuid: facts.devices.get(share.uuid, _UNKNOWN).mps_namespaces for share in grant.shares}
    if not any(of_gpu.values()):
        return None
    found = []
    for device_id in grant.ids:
        path = of_gpu[device_id.uuid].get(str(device_id))
        if path is None:
            raise RequestError(f"{device_id} cannot be shared by MPS: no MPS control daemon has a namespace for it")
        found.append((device_id.limit_mib or 2**40, device_id.percent or 100, path))
    return min(found)[2]


def _pipe_directory(shares: Sequence[Share], facts: NodeFacts) -> str:
    directories: set[str] = set()
    for share in shares:
        directory = facts.devices.get(share.uuid, _UNKNOWN).mps_pipe
        if directory is None:
            raise RequestError(f"{share.uuid} cannot be shared by MPS: no MPS control daemon serves it on this node")
        directories.add(directory)
    if len(directories) > 1:
        uuids = ", ".join(share.uuid for share in shares)
        raise RequestError(
            f"{uuids} belong to different MPS control daemons, and a process can have one only; ask for slices of one"
            " resource only"
        )
    return directories.pop()


def _variables(shares: Sequence[Share], facts: NodeFacts) -> Iterator[tuple[str, str]]:
    """What the client is told of its limits. Where the driver holds memory, MPS does not."""
    # By UUID, never by number: an entry for a GPU that the process cannot see makes the client drop every limit.
    limits = [
        f"{share.uuid}={share.memory_bytes // MIB}M"
        for share in shares
        if share.memory_bytes is not None and not facts.devices.get(share.uuid, _UNKNOWN).driver_limit
    ]
    if limits:
        yield "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", ",".join(limits)
    percents = [share.percent for share in shares if share.percent is not None]
    if percents:  # one value a process: no GPU above its promise
        yield "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", str(min(percents))
