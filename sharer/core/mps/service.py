"""Which MPS slices can be given out now: what the supervisor says of its daemons, made into something that holds still.

* A client without its daemon runs all the same, without MPS and without limits, and nothing reports it (gpu-limits §3).
  In exclusive compute mode it even keeps the daemon off the GPU, for all its neighbours. So a slice whose daemon cannot
  serve it cannot run as what it is: it is shown Unhealthy while nobody owns it, and Allocate refuses it. The list says
  the same as Allocate, so no second pod is sent there, and a daemon's restart costs one pod at most.
* Who owns a slice keeps it Healthy (DESIGN §3): the daemon's end has ended its processes, the container starts again
  by itself, and Unhealthy would only have it rejected when the kubelet restarts. That nothing holds it is reported.
* A daemon that has failed must serve for a while without a break before it counts again, so that one that dies every
  few seconds does not send pods back and forth. The first time counts at once.

Nothing here tells a time, so it is another value only if something else is true of a daemon.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import field

from sharer.core.device_id import DeviceId, Strategy, uuid_part
from sharer.core.edits import NodeFacts
from sharer.core.mps.state import MpsGpu, MpsInterface, MpsState, why_not_served
from sharer.core.values import dataclass, replace

STAYS_UP_S = 10.0  # without a break, after a failure, before slices are offered again
BACK = f"its MPS control daemon is back, and must serve for {STAYS_UP_S:g} s without a break first"
NO_NAMESPACE = "its MPS control daemon has no namespace for this slice yet"
NEVER_SERVED = str(why_not_served(None, "", 0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class MpsService:
    """What one daemon does for the GPUs of its resource."""

    interface: MpsInterface | None = None  # the last that it was seen to have; None: it has never answered
    interface_reason: str | None = None  # why not the better one
    gpus: Mapping[str, MpsGpu] = field(default_factory=dict)  # by UUID; here `problem` is why no free slice is offered
    namespaces: Mapping[str, str] = field(default_factory=dict)  # device ID -> host directory that is there
    shared_memory: str | None = None
    warnings: tuple[str, ...] = ()

    def why_not(self, device_id: DeviceId) -> str | None:
        """Why nobody can be given this slice now; None: somebody can."""
        gpu = self.gpus.get(device_id.uuid)
        if gpu is None:
            return NEVER_SERVED
        lacks_namespace = self.interface is MpsInterface.NAMESPACES and str(device_id) not in self.namespaces
        return gpu.problem or (NO_NAMESPACE if lacks_namespace else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class MpsServices:
    """What all daemons do, by resource, and since when."""

    daemons: Mapping[str, MpsService] = field(default_factory=dict)
    since_s: Mapping[tuple[str, str], float | None] = field(default_factory=dict)
    """Resource and UUID of everything that was served once -> since when without a break; None: it is not served."""

    @property
    def namespaced(self) -> frozenset[str]:
        """Resources whose daemon has a namespace for each slice."""
        namespaces = MpsInterface.NAMESPACES
        return frozenset(name for name, daemon in self.daemons.items() if daemon.interface is namespaces)

    def why_not(self, resource: str, device_id: DeviceId) -> str | None:
        """Why nobody can be given this slice now; None: somebody can, or it is no MPS slice."""
        if device_id.strategy is not Strategy.MPS:
            return None
        daemon = self.daemons.get(resource)
        return NEVER_SERVED if daemon is None else daemon.why_not(device_id)


def after_reading(
    before: MpsServices,
    served: Mapping[str, Collection[str]],
    states: Mapping[str, MpsState],
    unplaced: Mapping[str, str],
    is_there: Callable[[str], bool],
    *,
    now_s: float,
    wall_s: float,
) -> MpsServices:
    """What the daemons do by their last states. The same object if nothing but time has passed.

    `served`: the GPUs of each MPS resource, by UUID. `unplaced`: why a resource has no directory for its clients.
    `is_there`: whether a directory exists. `wall_s` is Unix time, as in the states; `now_s` is the monotonic clock.
    """
    daemons: dict[str, MpsService] = {}
    since_s: dict[tuple[str, str], float | None] = {}
    for resource, uuids in served.items():
        state, gpus = states.get(resource), {}
        for uuid in uuids:
            key = (resource, uuid)
            problem = unplaced.get(resource) or why_not_served(state, uuid, wall_s)
            if problem is None:
                begun_s = before.since_s.get(key, now_s - STAYS_UP_S)
                since_s[key] = begun_s = now_s if begun_s is None else begun_s
                problem = BACK if now_s - begun_s < STAYS_UP_S else None
            elif key in before.since_s:
                since_s[key] = None
            gpu = None if state is None else state.gpus.get(uuid)
            gpus[uuid] = MpsGpu(problem=problem, clients=None if gpu is None else gpu.clients)
        known = before.daemons.get(resource, MpsService())
        daemons[resource] = _service(known, state, gpus, is_there)
    after = MpsServices(daemons=daemons, since_s=since_s)
    return before if after == before else after


def with_mps(
    facts: NodeFacts, services: MpsServices, serving: Mapping[str, str], pipes: Mapping[str, str]
) -> NodeFacts:
    """The facts with the way to its daemon for each GPU. The same object if nothing changes.

    `serving`: UUID of a GPU -> the resource whose daemon serves it. `pipes`: resource -> the host directory that is
    there for clients of the legacy interface. What a daemon that was never heard of needs, nobody knows.
    """
    devices = dict(facts.devices)
    for uuid, device in facts.devices.items():
        resource = serving.get(uuid)
        daemon = services.daemons.get(resource) if resource is not None else None
        pipe = None
        namespaces: dict[str, str] = {}
        if resource is not None and daemon is not None and daemon.interface is MpsInterface.LEGACY:
            pipe = pipes.get(resource)
        elif daemon is not None and daemon.interface is MpsInterface.NAMESPACES:
            namespaces = {text: path for text, path in daemon.namespaces.items() if uuid_part(text) == uuid}
        shm = None if daemon is None else daemon.shared_memory
        if (pipe, namespaces, shm) != (device.mps_pipe, device.mps_namespaces, device.mps_shm):
            devices[uuid] = replace(device, mps_pipe=pipe, mps_namespaces=namespaces, mps_shm=shm)
    return facts if devices == facts.devices else replace(facts, devices=devices)


def keep_mps(found: NodeFacts, before: NodeFacts | None) -> NodeFacts:
    """Facts that were read anew, with what was known of the daemons."""
    if before is None:
        return found
    devices = {
        uuid: device
        if (old := before.devices.get(uuid)) is None
        else replace(device, mps_pipe=old.mps_pipe, mps_namespaces=old.mps_namespaces, mps_shm=old.mps_shm)
        for uuid, device in found.devices.items()
    }
    return found if devices == found.devices else replace(found, devices=devices)


def _service(
    known: MpsService, state: MpsState | None, gpus: Mapping[str, MpsGpu], is_there: Callable[[str], bool]
) -> MpsService:
    if state is None or state.interface is None:  # while it starts again, the plan stays as it is
        warnings = () if state is None else state.warnings
        return replace(known, gpus=gpus, warnings=warnings)
    return MpsService(
        interface=state.interface,
        interface_reason=state.interface_reason,
        gpus=gpus,
        namespaces={text: path for text, path in sorted(state.namespaces.items()) if is_there(path)},
        shared_memory=state.shared_memory,
        warnings=state.warnings,
    )
