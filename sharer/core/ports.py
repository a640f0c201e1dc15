"""What the flows need from outside, as Protocols. `daemon` passes the adapters, so no flow imports one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Protocol

from sharer.core.device_id import DeviceId
from sharer.core.edits import ContainerEdits, NodeFacts
from sharer.core.holders.evidence import CgroupReading, CheckpointReading, ListReading
from sharer.core.holders.observations import ApiSync
from sharer.core.inventory import Inventory, Topology
from sharer.core.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedDevice:
    """One line of a ListAndWatch message."""

    id: str
    healthy: bool
    numa_node: int | None = None  # None for one device of a resource means None for all of them (kubelet-contract §14)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceOptions:
    """What the kubelet is told a resource's plugin can do."""

    pre_start_required: bool = False
    preferred_allocation: bool = True


class ResourceAnswers(Protocol):
    """The kubelet's questions about one resource. Called on gRPC threads; every answer comes from memory."""

    def allocate(self, ids: Sequence[str]) -> ContainerEdits:
        """What a container holding these IDs is given. Raises RequestError, whose text the pod's author reads."""
        ...

    def prefer(self, available: Sequence[str], must_include: Sequence[str], size: int) -> list[str]:
        """Exactly `size` of the available IDs (fewer only if there are fewer), the must-includes among them."""
        ...

    def pre_start(self, ids: Sequence[str]) -> None:
        """Called before each start of a container where `pre_start_required`. Raises RequestError to delay it."""
        ...


class KubeletLink(Protocol):
    """Our side of the device plugin API: any number of resources, each on its own socket."""

    def offer(
        self, resource: str, options: ResourceOptions, devices: Sequence[ListedDevice], answers: ResourceAnswers
    ) -> None:
        """Serve a resource and keep it registered for ever. Called again: replace the list (sent if it differs)."""
        ...

    def withdraw(self, resource: str) -> None:
        """Stop serving a resource: its stream ends, its socket goes, nothing of it is registered again."""
        ...

    def renew(self, resource: str) -> None:
        """Register a resource again, since the kubelet was seen to have another plugin under its name."""
        ...

    def registered(self) -> dict[str, bool]:
        """For each offered resource: whether the kubelet accepted it and reads its list."""
        ...

    def stop(self) -> None:
        """End every stream, remove our sockets, return within 5 seconds."""
        ...


class GpuDriver(Protocol):
    """The node's GPUs, as the driver reports them."""

    def discover(self) -> Inventory:
        """Everything that exists now. Raises NodeError while the driver is missing, late, mismatched or hanging."""
        ...


class Interruptible(Protocol):
    """Something that may keep whoever asks it waiting."""

    def interrupt(self) -> None:
        """Let nobody wait any longer."""
        ...


class Pausable(Protocol):
    """A driver that can be let go of for a while."""

    def pause(self, reason: str) -> None:
        """Close everything and answer nobody: who asks is told the reason, as a NodeError. Again: see that it is so.

        Raises NodeError if the driver does not let go soon.
        """
        ...

    def resume(self) -> None:
        """Answer again; the next question opens what it needs."""
        ...


class TopologySource(Protocol):
    """How the node's GPUs are linked."""

    def topology(self) -> Topology:
        """Every pair that can be asked. Slow on some drivers. Raises NodeError if the driver does not answer."""
        ...


class Watcher(Protocol):
    """Tells when to look at a directory again."""

    def subscribe(self, directory: str, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` soon after anything in the directory changes, and every few seconds in any case.

        The directory may be missing and may come later. `changed` runs on the watcher's thread: it returns at once, and
        compares for itself, since most calls are news of nothing. Returns the function that ends the subscription.
        """
        ...


class FactsReader(Protocol):
    """How GPUs get into a container on this node."""

    def read(self, inventory: Inventory) -> NodeFacts:
        """Look at device nodes, CDI specs and paths. What is missing is said in the facts, never raised."""
        ...


class SliceSpecs(Protocol):
    """sharer's own CDI specs. Containers that were given one of their names need it at every start, also without us."""

    @property
    def is_behind(self) -> bool:
        """Whether something could not be written, and should be tried again though nothing else has changed."""
        ...

    def write(self, ids: Iterable[DeviceId], facts: NodeFacts) -> NodeFacts:
        """Have a spec in place for each of these slices; call it before any of them is listed. Nothing is taken away.

        Returns the facts as they are now: only devices whose slices are all in place are marked so, and what could not
        be written is said in the warnings, never raised. Cheap when nothing changed.
        """
        ...

    def keep_only(self, ids: Collection[DeviceId]) -> None:
        """Take away every spec, those of earlier runs too, but for these slices. Raises NodeError if a file resists."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyText:
    """A policy before it is read."""

    source: str  # "/etc/sharer/policy.yaml", for messages
    text: bytes
    digest: str  # SHA-256 of the text, hexadecimal


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyShelf:
    """Every policy there is in one place, as they are at one moment."""

    place: str  # "/etc/sharer/policies", "configmap gpu/policies"
    texts: Mapping[str, PolicyText]  # by key
    is_for_every_node: bool = False  # one file: no label chooses
    warnings: tuple[str, ...] = ()


class PolicySource(Protocol):
    """Where policies come from."""

    def shelf(self) -> PolicyShelf:
        """What is there now. Raises NodeError if it cannot be told, saying where it was looked for."""
        ...


class PolicyMemory(Protocol):
    """The last good policy, kept over a restart."""

    def keep(self, good: PolicyText) -> None:
        """Store a text that was accepted; cheap if it is stored. Failing to do so is logged, once, and never raised."""
        ...

    def last_good(self) -> PolicyText | None:
        """The text kept last; None if there is none or it cannot be read."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class XidEvent:
    """The driver reported an XID: an error number of NVIDIA's catalogue."""

    gpu_uuid: str | None  # of the physical GPU; None: the driver did not say which
    gpu_instance_id: int | None  # None: not on a MIG device (NVML's 0xFFFFFFFF)
    compute_instance_id: int | None
    xid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSigns:
    """What one look at a GPU says about its health. Cheap: no full discovery."""

    uuid: str
    lost: str | None  # None: it answers; otherwise the driver's reason
    monitored: bool | None  # its XIDs reach us; False: it cannot report any; None: asking failed
    monitored_problem: str | None  # why asking failed
    recovery_action: str | None  # "none", "GPU reset", "node reboot", …; None: this driver does not say


class HealthSource(Protocol):
    """Signs of faults, from the driver."""

    def signs(self) -> tuple[GpuSigns, ...]:
        """One look at every GPU that discovery found. Raises NodeError if the driver does not answer."""
        ...

    def wait_for_xid(self, timeout_s: float) -> XidEvent | None:
        """The next XID, or None after the timeout. On a thread of its own; never delays another call.

        Raises NodeError if waiting is not possible at once; the caller waits before it asks again.
        """
        ...


class ListSource(Protocol):
    """podresources `List`. For one thread."""

    def read(self) -> ListReading:
        """Who holds what now. Raises NodeError if the kubelet does not say: no news, never "nobody"."""
        ...


class CheckpointSource(Protocol):
    """The kubelet's checkpoint file."""

    def read(self) -> CheckpointReading | None:
        """What it says now; cheap if nothing changed. None: there is no file, so the kubelet has given nobody anything.

        Raises NodeError if it is damaged or cannot be read: then nothing is known.
        """
        ...

    def follow(self, changed: Callable[[], None]) -> None:
        """Call `changed`, on another thread, soon after the file was written; at the latest about a second later."""
        ...


class CgroupSource(Protocol):
    """The pod cgroups of the node."""

    def read(self) -> CgroupReading:
        """Which exist, and which have a process. Raises NodeError if they cannot be read: then nothing is known."""
        ...

    def follow(self, uids: Collection[str], changed: Callable[[], None]) -> None:
        """Call `changed`, on another thread, soon after a container of one of these pods starts or ends.

        It is also called every second or so, without news. Called again: follow these pods instead.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RawProcess:
    """A process that NVML found on a GPU or MIG device."""

    pid: int | None  # the host's; None: the driver does not say (it answers 0 or 4294967295)
    gpu_uuid: str  # of the MIG device where NVML names one, else of the physical GPU
    used_bytes: int | None
    is_mps_client: bool | None = None  # None: the driver has no list of those


@dataclass(frozen=True, slots=True, kw_only=True)
class RawProcesses:
    """NVML's process lists: compute, graphics and MPS clients, each process once per device."""

    processes: tuple[RawProcess, ...] = ()
    asked: frozenset[str] = frozenset()  # UUIDs of the GPUs and MIG devices whose lists are complete
    lost: frozenset[str] = frozenset()  # UUIDs of the GPUs that said instead that they are lost


class ProcessSource(Protocol):
    """The processes on the GPUs."""

    def processes(self) -> RawProcesses:
        """What runs on the GPUs now. Raises NodeError if the driver does not answer."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessIdentity:
    """Whose process it is."""

    pods: tuple[tuple[str, str | None], ...]  # UID and container ID, outermost first: clusters nest; empty: in no pod
    command: str | None  # the program's name, for people: a process may call itself anything


class ProcessTable(Protocol):
    """Looks processes up by the host's PIDs."""

    def sees_the_host(self) -> bool:
        """Whether PIDs here are the host's. If not, no process can be attributed."""
        ...

    def identify(self, pid: int) -> ProcessIdentity | None:
        """Whose process it is; None: there is no such process any more. Raises NodeError if it cannot be read."""
        ...


class Followed(Protocol):
    """Something that is followed through the API server."""

    @property
    def sync(self) -> ApiSync:
        """How current it is, and what is in the way."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiEvent:
    """News about an object, for `kubectl describe` and `kubectl events`."""

    kind: str  # "Pod" or "Node"
    namespace: str | None  # None: a cluster-scoped object
    name: str
    uid: str  # without it `kubectl describe` does not show the Event
    reason: str  # one word, "LimitNotEnforced"
    message: str
    about: str  # which part of the object, "main GPU-5a3f…"; with object and reason it names the Event
    is_warning: bool
    count: int  # how often it happened
    first_s: float  # on the wall clock, seconds since 1970
    last_s: float
    node_name: str  # where it was noticed


class Eviction(StrEnum):
    """What became of a wish to evict a pod."""

    ACCEPTED = "accepted"  # it is ending now, or was before
    BLOCKED = "blocked"  # a disruption budget does not allow it just now
    GONE = "gone"  # there is no pod of that name and UID any more


class ApiWriter(Protocol):
    """What sharer tells the API server about pods and nodes."""

    def tell(self, event: ApiEvent) -> None:
        """Publish an Event; the same object, reason and part of it update one Event. Raises NodeError."""
        ...

    def evict(self, namespace: str, name: str, uid: str) -> Eviction:
        """Ask for the end of exactly this pod, by its own grace period. Raises NodeError if nothing was decided."""
        ...
