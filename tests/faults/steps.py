"""What can happen to a node, as values: a sequence is a list of them, printed and replayed as it is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from sharer.simulation.kubelet import ContainerSpec, Phase
from tests.faults.mps_steps import MpsStep
from tests.faults.policies import Cut
from tests.faults.telling import Told


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


class Place(StrEnum):
    """Where the agent or `sharer mps` writes."""

    RUN = "the run dir"
    PLUGINS = "the device-plugin dir"
    CDI = "the CDI dir"
    STATE = "the state dir"  # in which only MPS has anything


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


# -- pods


@dataclass(frozen=True, slots=True)
class StartPod(Told):
    """A pod is bound to the node."""

    name: str
    containers: tuple[ContainerSpec, ...]
    init_containers: tuple[ContainerSpec, ...] = ()
    static: bool = False


@dataclass(frozen=True, slots=True)
class EndPod(Told):
    """Its containers exit; the pod stays in the API."""

    name: str
    phase: Phase = Phase.SUCCEEDED


@dataclass(frozen=True, slots=True)
class DeletePod(Told):
    """A normal delete."""

    name: str


@dataclass(frozen=True, slots=True)
class ForceDeletePod(Told):
    """Gone for API and kubelet, while its containers live on."""

    name: str


@dataclass(frozen=True, slots=True)
class EndRemnants(Told):
    """What force deletes left behind ends, all of it."""


@dataclass(frozen=True, slots=True)
class RestartContainer(Told):
    """The first app container of a pod exits and is started again."""

    name: str
    cgroup_goes: bool = False  # in between it backs off, and has no cgroup


# -- the kubelet


@dataclass(frozen=True, slots=True)
class KillKubelet(Told):
    """SIGKILL."""


@dataclass(frozen=True, slots=True)
class StartKubelet(Told):
    """It comes back."""


@dataclass(frozen=True, slots=True)
class RestartKubelet(Told):
    """Both, with a pause before the sockets are wiped."""

    pause_s: float = 0.0


@dataclass(frozen=True, slots=True)
class HarmCheckpoint(Told):
    """The kubelet's file is not what it was."""

    harm: CheckpointHarm


@dataclass(frozen=True, slots=True)
class TroubleList(Told):
    """The next calls of `List` go wrong."""

    troubles: tuple[ListTrouble, ...]


@dataclass(frozen=True, slots=True)
class HidePod(Told):
    """One answer of `List` leaves a pod out."""

    name: str


# -- the agent


@dataclass(frozen=True, slots=True)
class KillAgent(Told):
    """SIGKILL, some time after what was done before."""

    after_s: float = 0.0


@dataclass(frozen=True, slots=True)
class StopAgent(Told):
    """SIGTERM."""


@dataclass(frozen=True, slots=True)
class StartAgent(Told):
    """The next one starts."""


@dataclass(frozen=True, slots=True)
class FillDisk(Told):
    """No file of the agent's can be written any more, or it can again."""

    full: bool


@dataclass(frozen=True, slots=True)
class RefuseWrites(Told):
    """A folder of the agent's is mounted read-only, or can be written again."""

    place: Place
    refused: bool


@dataclass(frozen=True, slots=True)
class LoseSpecs(Told):
    """Somebody clears the CDI dir of all that is ours, as a reboot does."""


@dataclass(frozen=True, slots=True)
class JumpClock(Told):
    """Somebody sets the wall clock."""

    ahead_s: float


# -- limits


@dataclass(frozen=True, slots=True)
class LiftLimits(Told):
    """Somebody on the node lifts the driver's limits of a pod's containers."""

    name: str


@dataclass(frozen=True, slots=True)
class HangLimits(Told):
    """After so many more changes of a limit the driver answers no further one, until the agent is dead."""

    after: int


# -- policy, GPUs, API


@dataclass(frozen=True, slots=True)
class EditPolicy(Told):
    """The operator wants another cut."""

    cut: Cut


@dataclass(frozen=True, slots=True)
class SpoilPolicy(Told):
    """The operator makes a mistake."""

    text: str


@dataclass(frozen=True, slots=True)
class HoldPolicy(Told):
    """The Node's label sharer.dev/hold comes or goes."""

    held: bool


@dataclass(frozen=True, slots=True)
class FailDriver(Told):
    """The driver answers some calls of a function about a GPU with an error."""

    function: str
    code: int
    number: int
    times: int


@dataclass(frozen=True, slots=True)
class HangDriver(Told):
    """The driver answers no call of a function any more."""

    function: str


@dataclass(frozen=True, slots=True)
class FreeDriver(Told):
    """It answers again."""


@dataclass(frozen=True, slots=True)
class CutGpu(Told):
    """Somebody turns MIG mode on, and makes one device."""

    number: int


@dataclass(frozen=True, slots=True)
class LoseGpu(Told):
    """It falls off the bus."""

    number: int


@dataclass(frozen=True, slots=True)
class BreakGpu(Told):
    """A fatal XID, after which the driver asks for a reset."""

    number: int


@dataclass(frozen=True, slots=True)
class RepairGpu(Told):
    """It answers again, wants no reset any more, and is not in MIG mode."""

    number: int


@dataclass(frozen=True, slots=True)
class Xid(Told):
    """An XID that is no news, or no lasting one."""

    number: int
    xid: int


@dataclass(frozen=True, slots=True)
class TroubleApi(Told):
    """The API server does something."""

    trouble: ApiTrouble


DriverStep = HangLimits | FailDriver | HangDriver | FreeDriver | CutGpu | LoseGpu | BreakGpu | RepairGpu | Xid

NodeStep = (
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
    | RefuseWrites
    | LoseSpecs
    | JumpClock
    | LiftLimits
    | EditPolicy
    | SpoilPolicy
    | HoldPolicy
    | TroubleApi
)

Step = NodeStep | DriverStep | MpsStep
