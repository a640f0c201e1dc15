"""What can happen to a node, as values: a sequence is a list of them, printed and replayed as it is."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum

from sharer.simulation.kubelet import ContainerSpec, Phase
from tests.faults.policies import Cut


class CheckpointHarm(StrEnum):
    """What happens to the kubelet's checkpoint file behind its back."""

    LOST = "lost"
    DAMAGED = "damaged"
    STALE = "stale"  # the file of an earlier moment is there again


class ListTrouble(StrEnum):
    """How a call of podresources `List` goes wrong."""

    FAILS = "fails"
    THROTTLED = "throttled"
    HANGS = "hangs"


class ApiTrouble(StrEnum):
    """What the API server does."""

    EXPIRED = "410: every version known so far is too old"
    THROTTLED = "429"
    CUT = "watches break in the middle of a line"
    RESET = "connections are reset"
    UNKNOWN = "401: it does not know our token"
    FORBIDDEN = "403: nothing may be followed"
    AWAY = "away"
    BACK = "back"


@dataclass(frozen=True, slots=True)
class _Step:
    def __str__(self) -> str:
        values = ((one.name, getattr(self, one.name)) for one in fields(self))
        told = ", ".join(f"{name}={_short(value)}" for name, value in values if value is not False and value != ())
        return f"{type(self).__name__}({told})"


def _short(value: object) -> str:
    match value:
        case Cut():
            return value.name
        case tuple():
            return f"[{', '.join(map(_short, value))}]"
        case ContainerSpec():
            limits = "+".join(f"{count} {name}" for name, count in value.limits.items()) or "nothing"
            return f"{'sidecar ' if value.sidecar else ''}{value.name}: {limits}"
        case StrEnum():
            return value.value
        case _:
            return repr(value)


# -- pods


@dataclass(frozen=True, slots=True)
class StartPod(_Step):
    """A pod is bound to the node."""

    name: str
    containers: tuple[ContainerSpec, ...]
    init_containers: tuple[ContainerSpec, ...] = ()
    static: bool = False


@dataclass(frozen=True, slots=True)
class EndPod(_Step):
    """Its containers exit; the pod stays in the API."""

    name: str
    phase: Phase = Phase.SUCCEEDED


@dataclass(frozen=True, slots=True)
class DeletePod(_Step):
    """A normal delete."""

    name: str


@dataclass(frozen=True, slots=True)
class ForceDeletePod(_Step):
    """Gone for API and kubelet, while its containers live on."""

    name: str


@dataclass(frozen=True, slots=True)
class EndRemnants(_Step):
    """What force deletes left behind ends, all of it."""


@dataclass(frozen=True, slots=True)
class RestartContainer(_Step):
    """The first app container of a pod exits and is started again."""

    name: str
    cgroup_goes: bool = False  # in between it backs off, and has no cgroup


# -- the kubelet


@dataclass(frozen=True, slots=True)
class KillKubelet(_Step):
    """SIGKILL."""


@dataclass(frozen=True, slots=True)
class StartKubelet(_Step):
    """It comes back."""


@dataclass(frozen=True, slots=True)
class RestartKubelet(_Step):
    """Both, with a pause before the sockets are wiped."""

    pause_s: float = 0.0


@dataclass(frozen=True, slots=True)
class HarmCheckpoint(_Step):
    """The kubelet's file is not what it was."""

    harm: CheckpointHarm


@dataclass(frozen=True, slots=True)
class TroubleList(_Step):
    """The next calls of `List` go wrong."""

    troubles: tuple[ListTrouble, ...]


@dataclass(frozen=True, slots=True)
class HidePod(_Step):
    """One answer of `List` leaves a pod out."""

    name: str


# -- the agent


@dataclass(frozen=True, slots=True)
class KillAgent(_Step):
    """SIGKILL, some time after what was done before."""

    after_s: float = 0.0


@dataclass(frozen=True, slots=True)
class StopAgent(_Step):
    """SIGTERM."""


@dataclass(frozen=True, slots=True)
class StartAgent(_Step):
    """The next one starts."""


@dataclass(frozen=True, slots=True)
class FillDisk(_Step):
    """No file of the agent's can be written any more, or it can again."""

    full: bool


@dataclass(frozen=True, slots=True)
class JumpClock(_Step):
    """Somebody sets the wall clock."""

    ahead_s: float


# -- limits


@dataclass(frozen=True, slots=True)
class LiftLimits(_Step):
    """Somebody on the node lifts the driver's limits of a pod's containers."""

    name: str


@dataclass(frozen=True, slots=True)
class HangLimits(_Step):
    """After so many more changes of a limit the driver answers no further one, until the agent is dead."""

    after: int


# -- policy, GPUs, API


@dataclass(frozen=True, slots=True)
class EditPolicy(_Step):
    """The operator wants another cut."""

    cut: Cut


@dataclass(frozen=True, slots=True)
class SpoilPolicy(_Step):
    """The operator makes a mistake."""

    text: str


@dataclass(frozen=True, slots=True)
class HoldPolicy(_Step):
    """The Node's label sharer.dev/hold comes or goes."""

    held: bool


@dataclass(frozen=True, slots=True)
class FailDriver(_Step):
    """The driver answers some calls of a function about a GPU with an error."""

    function: str
    code: int
    number: int
    times: int


@dataclass(frozen=True, slots=True)
class HangDriver(_Step):
    """The driver answers no call of a function any more."""

    function: str


@dataclass(frozen=True, slots=True)
class FreeDriver(_Step):
    """It answers again."""


@dataclass(frozen=True, slots=True)
class CutGpu(_Step):
    """Somebody turns MIG mode on, and makes one device."""

    number: int


@dataclass(frozen=True, slots=True)
class LoseGpu(_Step):
    """It falls off the bus."""

    number: int


@dataclass(frozen=True, slots=True)
class BreakGpu(_Step):
    """A fatal XID, after which the driver asks for a reset."""

    number: int


@dataclass(frozen=True, slots=True)
class RepairGpu(_Step):
    """It answers again, wants no reset any more, and is not in MIG mode."""

    number: int


@dataclass(frozen=True, slots=True)
class Xid(_Step):
    """An XID that is no news, or no lasting one."""

    number: int
    xid: int


@dataclass(frozen=True, slots=True)
class TroubleApi(_Step):
    """The API server does something."""

    trouble: ApiTrouble


Step = (
    StartPod
    | EndPod
    | DeletePod
    | ForceDeletePod
    | EndRemnants
    | RestartContainer
    | KillKubelet
    | StartKubelet
    | RestartKubelet
    | HarmCheckpoint
    | TroubleList
    | HidePod
    | KillAgent
    | StopAgent
    | StartAgent
    | FillDisk
    | JumpClock
    | LiftLimits
    | HangLimits
    | EditPolicy
    | SpoilPolicy
    | HoldPolicy
    | FailDriver
    | HangDriver
    | FreeDriver
    | CutGpu
    | LoseGpu
    | BreakGpu
    | RepairGpu
    | Xid
    | TroubleApi
)
