"""What is not as it should be on a node's GPUs, with whom it concerns and what to do. Nothing is done about it here.

* *leaked*: a process of a pod that has ended.
* *unauthorised*: a process on a GPU of which its pod holds no slice.
* *foreign*: a process of the host. The servers of MPS are no findings: they are how slices are held to their share.
* *contested*: another device plugin offers a GPU of which we offer slices, so the scheduler counts it twice.
* *unserved*: a running container asks for slices and was given none. The kubelet starts it all the same where the
  scheduler was not asked: with `nodeName`, and for static pods (kubelet-contract §22).

What cannot be told whose it is, is no finding: the source says that it is not complete.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import field
from enum import StrEnum

from sharer.core.device_id import recognise, uuid_part
from sharer.core.holders.evidence import Evidence, GpuProcess, SliceKey
from sharer.core.holders.ledger import Entry, Ledger, State
from sharer.core.holders.observations import PodPhase, pod_title
from sharer.core.inventory import Inventory
from sharer.core.quantities import format_bytes
from sharer.core.slices.plan import Plan
from sharer.core.unchanged import while_unchanged
from sharer.core.values import dataclass, replace

UNSERVED_AFTER_S = 30.0  # running without what it asks for; List and checkpoint have named it long before
_MPS = ("nvidia-cuda-mps-server", "nvidia-cuda-mps-control")
_MPS_CUT = "nvidia-cuda-mps"  # as the kernel remembers a command, in 15 characters
_UUID = r"(?:GPU|MIG)-[0-9a-f-]{36}"


class FindingKind(StrEnum):
    """What is wrong."""

    LEAKED = "leaked"
    UNAUTHORISED = "unauthorised"
    FOREIGN = "foreign"
    CONTESTED = "contested"
    UNSERVED = "unserved"
    OVER_PROMISE = "over-promise"  # core/limits/excess


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is not as it should be. What does not apply to its kind, or is not known, is None."""

    kind: FindingKind
    message: str  # a sentence without a full stop
    cure: str  # what to do, likewise
    gpu_uuid: str | None = None  # of the GPU or MIG device
    uid: str | None = None  # of the pod, as its cgroup is named
    namespace: str | None = None
    pod: str | None = None
    container: str | None = None
    resource: str | None = None
    pid: int | None = None
    command: str | None = None
    used_bytes: int | None = None

    @property
    def key(self) -> tuple[object, ...]:
        """What makes it this finding and no other: neither its words nor how much memory is used just now."""
        return (self.kind, self.gpu_uuid, self.uid, self.container, self.resource, self.pid)

    def without_use(self) -> Finding:
        """The same, without how much memory is used just now: the words stay for as long as the finding does."""
        if self.pid is None or self.used_bytes is None:
            return self
        said = self.message.replace(f" uses {format_bytes(self.used_bytes)} of ", " uses memory of ", 1)
        return replace(self, message=said, used_bytes=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """Everything that is not as it should be."""

    found: tuple[Finding, ...] = ()
    contested: frozenset[str] = frozenset()  # UUIDs of our GPUs and MIG devices that another plugin offers
    without_s: Mapping[tuple[str, str, str], float] = field(default_factory=dict)
    """Pod UID, container and resource of running containers without what they ask for -> since when."""


def find(
    before: Findings, ledger: Ledger, inventory: Inventory, plan: Plan, resources: Collection[str], now_s: float
) -> Findings:
    """What is wrong now. `resources` are the names that we offer or still list; `before` is what was found last."""
    rivals = _rivals(ledger.evidence, inventory, plan, resources)
    without_s = {key: before.without_s.get(key, now_s) for key in _without(ledger.evidence, resources)}
    found = [
        *_of_processes(ledger, inventory),
        *(_contested(uuid, names) for uuid, names in sorted(rivals.items())),
        *_unserved(ledger.evidence, without_s, now_s),
    ]
    return Findings(found=tuple(found), contested=frozenset(rivals), without_s=without_s)


def _of_processes(ledger: Ledger, inventory: Inventory) -> Iterator[Finding]:
    processes = ledger.evidence.processes
    if processes is None:
        return
    sight = _Sight(ledger, inventory)
    for process in sorted(processes.processes, key=lambda one: (one.gpu_uuid, one.pid or 0)):
        if not process.attributed or process.command in _MPS or process.command == _MPS_CUT:
            continue
        if process.uid is None:
            yield _foreign(process)
        elif process.uid in sight.holders(process.gpu_uuid):
            continue
        elif process.uid in sight.former_holders(process.gpu_uuid) or sight.has_ended(process.uid):
            yield _leaked(process, sight.name(process.uid))
        elif not sight.is_unclear(process.gpu_uuid):
            yield _unauthorised(process, sight.name(process.uid))


@dataclass(frozen=True, slots=True, kw_only=True)
class _ByDevice:
    """The ledger's entries, by UUID of the device."""

    holders: dict[str, set[str]] = field(default_factory=dict)  # UIDs of pods
    former: dict[str, set[str]] = field(default_factory=dict)
    unclear: set[str] = field(default_factory=set)  # devices with a slice of which it is not known yet whose it is
    names: dict[str, tuple[str | None, str | None]] = field(default_factory=dict)  # of the pods, by UID


@while_unchanged
def _by_device(entries: Mapping[SliceKey, Entry]) -> _ByDevice:
    found = _ByDevice()
    for (_, device_id), entry in entries.items():
        uuid = uuid_part(device_id)
        if entry.state is State.ALLOCATED or (entry.owner is not None and entry.owner.uid is None):
            found.unclear.add(uuid)
        if entry.owner is not None and entry.owner.uid is not None:
            found.holders.setdefault(uuid, set()).add(entry.owner.uid)
            found.names.setdefault(entry.owner.uid, (entry.owner.namespace, entry.owner.pod))
        for remnant in entry.remnants:
            if remnant.holder.uid is not None:
                found.former.setdefault(uuid, set()).add(remnant.holder.uid)
                found.names.setdefault(remnant.holder.uid, (remnant.holder.namespace, remnant.holder.pod))
    return found


class _Sight:
    """Who holds something of which device, and who is gone."""

    def __init__(self, ledger: Ledger, inventory: Inventory) -> None:
        self._ledger = ledger
        self._parts = {gpu.uuid: gpu.uuids for gpu in inventory.gpus}
        self._by_device = _by_device(ledger.entries)

    def holders(self, uuid: str) -> set[str]:
        """Pods with a slice of a device, or of a MIG device of it: an old driver may not tell on which of them."""
        return self._on(uuid, self._by_device.holders)

    def former_holders(self, uuid: str) -> set[str]:
        """Pods that had one and have ended."""
        return self._on(uuid, self._by_device.former)

    def is_unclear(self, uuid: str) -> bool:
        """Whether it cannot be told yet who holds a slice of this device."""
        return any(part in self._by_device.unclear for part in self._parts.get(uuid, (uuid,)))

    def name(self, uid: str) -> tuple[str | None, str | None]:
        """Namespace and name of a pod, as far as they are known."""
        return self._ledger.names.get(uid) or self._by_device.names.get(uid, (None, None))

    def has_ended(self, uid: str) -> bool:
        """Whether the API server says that a pod is over, or had it and has it no more."""
        seen = self._ledger.evidence.pods
        if seen is None:
            return False
        pod = next((one for one in seen.pods.values() if one.cgroup_uid == uid), None)
        return uid in self._ledger.names if pod is None else pod.phase.is_terminal

    def _on(self, uuid: str, by_device: Mapping[str, set[str]]) -> set[str]:
        return {uid for part in self._parts.get(uuid, (uuid,)) for uid in by_device.get(part, ())}


def _process(process: GpuProcess) -> str:
    used = "memory of unknown size" if process.used_bytes is None else format_bytes(process.used_bytes)
    name = f" ({process.command})" if process.command else ""
    return f"process {process.pid}{name} uses {used} of {process.gpu_uuid}"


def _leaked(process: GpuProcess, name: tuple[str | None, str | None]) -> Finding:
    return _made(
        FindingKind.LEAKED, process, name,
        message=f"{_process(process)}, and its {pod_title(process.uid, *name)} has ended",
        cure=f"end it on the node (kill {process.pid}); if it does not end, look for Xid lines in the kernel log, since"
        " the GPU may need a reset",
    )  # fmt: skip


def _unauthorised(process: GpuProcess, name: tuple[str | None, str | None]) -> Finding:
    return _made(
        FindingKind.UNAUTHORISED, process, name,
        message=f"{_process(process)}, and its {pod_title(process.uid, *name)} holds no slice of it",
        cure="let the pod ask for a slice, or delete it; an image that sets NVIDIA_VISIBLE_DEVICES gets every GPU where"
        " the NVIDIA runtime is the default and accept-nvidia-visible-devices-envvar-when-unprivileged is not false",
    )  # fmt: skip


def _foreign(process: GpuProcess) -> Finding:
    return _made(
        FindingKind.FOREIGN, process, (None, None),
        message=f"{_process(process)}, and belongs to the host and not to a pod",
        cure="stop it, or keep the GPU out of the policy: its memory is taken from what slices are promised",
    )  # fmt: skip


def _made(
    kind: FindingKind, process: GpuProcess, name: tuple[str | None, str | None], *, message: str, cure: str
) -> Finding:
    return Finding(
        kind=kind,
        message=message,
        cure=cure,
        gpu_uuid=process.gpu_uuid,
        uid=process.uid,
        namespace=name[0],
        pod=name[1],
        pid=process.pid,
        command=process.command,
        used_bytes=process.used_bytes,
    )


def _rivals(evidence: Evidence, inventory: Inventory, plan: Plan, resources: Collection[str]) -> dict[str, list[str]]:
    """The devices that we offer slices of and other plugins offer as well, with the names under which they do.

    IDs of our own form are no rival's: the file may still name a resource that we have given up. It is as old as the
    kubelet's last write, so a rival that is gone may be named until the next pod with devices starts.
    """
    ours: dict[str, set[str]] = {uuid: {uuid} for uuid in plan.rooms}
    for gpu in inventory.gpus:
        for mig in gpu.mig_devices:
            if mig.uuid in plan.rooms:
                ours.setdefault(gpu.uuid, set()).add(mig.uuid)
    rivals: dict[str, list[str]] = {}
    registered = {} if evidence.checkpoint is None else evidence.checkpoint.registered
    for name, ids in sorted(registered.items()):
        if name not in resources:
            theirs = {uuid for text in ids for uuid in ours.get(_uuid_in(text), ()) if recognise(text) is None}
            for uuid in theirs:
                rivals.setdefault(uuid, []).append(name)
    return rivals


def _uuid_in(text: str) -> str:
    """The UUID that an ID of another plugin carries, with whatever stands around it."""
    found = re.search(_UUID, text)
    return uuid_part(text) if found is None else found[0]


def _contested(uuid: str, names: list[str]) -> Finding:
    return Finding(
        kind=FindingKind.CONTESTED,
        message=f"another device plugin offers {uuid} as {', '.join(names)}, so it is given out twice",
        cure="remove the other plugin from this node, or leave the GPU out of sharer's policy; `rivals: ignore` in the"
        " policy offers it all the same",
        gpu_uuid=uuid,
        resource=names[0],
    )


def _without(evidence: Evidence, resources: Collection[str]) -> Iterator[tuple[str, str, str]]:
    """Running containers without what they ask for: pod UID, container, resource."""
    if evidence.pods is None or evidence.checkpoint is None:
        return  # init containers are known by the checkpoint alone, and stay "given" there for the life of their pod
    given = {(entry.uid, entry.container, entry.resource) for entry in evidence.checkpoint.entries}
    listed = {} if evidence.listed is None else evidence.listed.holders
    named = {(holder.namespace, holder.pod, holder.container, key[0]) for key, holder in listed.items()}
    for pod in evidence.pods.pods.values():
        if pod.phase is PodPhase.RUNNING and not pod.is_deleting:
            for container in pod.containers:
                for resource in container.limits.keys() & resources:
                    if (pod.cgroup_uid, container.name, resource) in given:
                        continue
                    if (pod.namespace, pod.name, container.name, resource) not in named:
                        yield pod.cgroup_uid, container.name, resource


_UNSERVED = "delete the pod and let the scheduler place it, without nodeName; if sharer came after it, just delete it"
_UNSERVED_STATIC = "make it a pod of the API server: a static pod is started whatever the node has"


def _unserved(evidence: Evidence, without_s: Mapping[tuple[str, str, str], float], now_s: float) -> Iterator[Finding]:
    pods = evidence.pods_by_cgroup()
    for (uid, container, resource), since_s in sorted(without_s.items()):
        pod = pods[uid]
        if now_s - since_s >= UNSERVED_AFTER_S:
            whose = f"container {container} of pod {pod.namespace}/{pod.name}"
            yield Finding(
                kind=FindingKind.UNSERVED,
                message=f"{whose} runs and asks for {resource}, but was given none",
                cure=_UNSERVED_STATIC if pod.is_static else _UNSERVED,
                uid=uid,
                namespace=pod.namespace,
                pod=pod.name,
                container=container,
                resource=resource,
            )
