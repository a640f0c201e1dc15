"""What must be true of a node once it is quiet: the agent's report beside what the fake kubelet knows.

Each rule yields a sentence for everything that is not (yet) so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sharer.core.report.node import HolderReport, NodeReport, SliceReport
from sharer.simulation.kubelet import (
    ContainerKind,
    ContainerState,
    CorruptCheckpoint,
    FakeKubelet,
    PodStatus,
    read_checkpoint,
)
from tests.faults.files import wrong_files
from tests.faults.history import promised
from tests.faults.limits import wrong_limits
from tests.faults.mps_truth import wrong_mps
from tests.faults.policies import CUTS, MEMORY_MIB, MPS, MPS_CUTS
from tests.faults.world import World, digest

Key = tuple[str, str]  # resource and ID

MAX_THREADS = 48
MAX_FILES = 96
UNCLAIMED_S = 62.0  # an Allocate that came to nothing is remembered for 60 s
NO_REASONS = ("", "nobody holds it")


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """What the kubelet, its checkpoint file and the host know, at one moment."""

    owners: Mapping[Key, frozenset[tuple[str, str]]]  # -> UID and container of living pods
    secret: frozenset[Key]  # of these only init containers, and the checkpoint file does not name them
    in_file: frozenset[tuple[str, Key]]  # UID and slice, by the checkpoint file
    file_is_damaged: bool  # and so what it said before may still stand
    alive: Mapping[
        Key, frozenset[str]
    ]  # -> UIDs with a running container that was given it, known to the kubelet or not
    living: frozenset[str]  # UIDs with a running container
    names: Mapping[str, tuple[str, str]]  # UID -> namespace and name
    listed: Mapping[Key, bool]  # in the latest list -> Healthy


def truth_of(kubelet: FakeKubelet) -> Truth:
    """The truth now."""
    pods = {pod.uid: pod for pod in kubelet.pods()}
    owners: dict[Key, set[tuple[str, str]]] = {}
    for (uid, container, resource), ids in kubelet.records().items():
        if uid in pods and not pods[uid].phase.terminal:
            for one in ids:
                owners.setdefault((resource, one), set()).add((uid, container))
    in_file = _in_file(kubelet)
    alive: dict[Key, set[str]] = {}
    running = list(_running(kubelet))
    for uid, key in running:
        alive.setdefault(key, set()).add(uid)
    secret = {
        key
        for key, holders in owners.items()
        if all(_is_init(pods[uid], name) and (uid, key) not in in_file for uid, name in holders)
    }
    names = {pod.uid: (pod.namespace, pod.name) for pod in pods.values()}
    names |= {one.uid: (one.namespace, one.name) for one in kubelet.remnants()}
    return Truth(
        owners={key: frozenset(holders) for key, holders in owners.items()},
        secret=frozenset(secret),
        in_file=in_file,
        file_is_damaged=_is_damaged(kubelet),
        alive={key: frozenset(uids) for key, uids in alive.items()},
        living=frozenset(uid for uid, _ in running),
        names=names,
        listed={
            (stream.resource, device.id): device.health == "Healthy"
            for stream in kubelet.live_streams()
            if stream.messages
            for device in stream.messages[-1].devices
        },
    )


def _is_init(pod: PodStatus, container: str) -> bool:
    return pod.container(container).kind is ContainerKind.INIT


def _in_file(kubelet: FakeKubelet) -> frozenset[tuple[str, Key]]:
    try:
        entries, _ = read_checkpoint(kubelet.checkpoint)
    except CorruptCheckpoint:
        return frozenset()
    return frozenset(
        (entry.pod_uid, (entry.resource, one)) for entry in entries for ids in entry.ids_by_numa.values() for one in ids
    )


def _is_damaged(kubelet: FakeKubelet) -> bool:
    try:
        read_checkpoint(kubelet.checkpoint)
    except CorruptCheckpoint:
        return True
    return False


def _running(kubelet: FakeKubelet) -> Iterator[tuple[str, Key]]:
    found = [(pod.uid, pod.containers) for pod in kubelet.pods() if not pod.phase.terminal]
    found += [(remnant.uid, remnant.containers) for remnant in kubelet.remnants()]
    for uid, containers in found:
        if any(one.state is ContainerState.RUNNING for one in containers):  # a pod's cgroup is for all of them
            for one in containers:
                for resource, ids in one.ids.items():
                    yield from ((uid, (resource, device_id)) for device_id in ids)


def wrong(world: World, report: NodeReport) -> list[str]:
    """What is not as it must be. Both kubelet and agent run."""
    kubelet = world.node.kubelet
    if not kubelet.sources_ready:
        return ["the kubelet does not know its pods yet"]
    truth = truth_of(kubelet)
    rows = {(one.resource, one.id): one for one in report.slices}
    holders = {(one.resource, one.id): one for one in report.status.holders if one.state in _OWNING}
    remains: dict[Key, list[HolderReport]] = {}
    for one in report.status.holders:
        if one.state in ("quarantined", "remnant"):
            remains.setdefault((one.resource, one.id), []).append(one)
    return [
        *_policy(world, report),
        *_lists(rows, truth, kubelet),
        *_owned(world, truth, rows, holders),
        *_free(world, truth, rows, holders, remains),
        *_health(world, report, rows),
        *_promises(truth, rows),
        *_plan(world, report, rows),
        *wrong_limits(world, truth.in_file),
        *wrong_mps(world, rows.values()),
        *wrong_files(world, report),
        *_process(world),
    ]


_OWNING = ("held", "allocated", "releasing")


def _policy(world: World, report: NodeReport) -> Iterator[str]:
    told = report.status.policy
    if told.hash == digest(world.wanted.text):
        world.in_force = world.wanted
    elif world.spoiled is None and told.staged is not None:
        # An agent that started on a full disk goes on with the last policy that it could keep.
        cuts = CUTS if world.mps is None else MPS_CUTS
        world.in_force = next((cut for cut in cuts if digest(cut.text) == told.hash), world.in_force)
    if world.spoiled is None:
        waits = told.staged is not None and told.staged.waits_for is not None and world.api is not None
        if told.hash != digest(world.wanted.text) and not waits:
            yield f"policy {world.wanted.name} is not in force"
        if told.refused is not None:
            yield f"a good policy is refused: {told.refused}"
        return
    if told.hash != digest(world.in_force.text):
        yield f"policy {world.in_force.name} is not in force any more, though the new one is wrong"
    if told.refused is None or str(world.node.policy_file) not in told.refused:
        yield f"a wrong policy is not refused in words: {told.refused}"


def _lists(rows: Mapping[Key, SliceReport], truth: Truth, kubelet: FakeKubelet) -> Iterator[str]:
    """The kubelet was shown what the report says."""
    told = {key: row.healthy for key, row in rows.items() if row.listed}
    for key in sorted(told.keys() | truth.listed.keys()):
        if told.get(key) != truth.listed.get(key):
            yield f"{key}: the kubelet was shown {truth.listed.get(key)}, and the report says {told.get(key)}"
    for resource in sorted({resource for resource, _ in told}):
        live = len(kubelet.live_streams(resource))
        if live != 1:
            yield f"{resource} has {live} streams"


def _owned(
    world: World, truth: Truth, rows: Mapping[Key, SliceReport], holders: Mapping[Key, HolderReport]
) -> Iterator[str]:
    for key, who in sorted(truth.owners.items()):
        row, holder = rows.get(key), holders.get(key)
        if key in truth.secret and world.is_crippled and holder is None:
            continue
        if row is None or holder is None or row.state != "held":
            yield f"{key} belongs to {_named(truth, who)} and is {None if row is None else row.state}"
            continue
        if not row.listed:
            yield f"{key} is held and not listed"
        uids = {uid for uid, _ in who}
        is_told = (holder.uid, key) in truth.in_file  # by a file of an earlier moment: nothing shows that it is one
        if holder.uid is not None and holder.uid not in uids and not (world.is_crippled and is_told):
            yield f"{key} belongs to {_named(truth, who)}, not to {holder.namespace}/{holder.pod} {holder.uid}"
        if holder.pod is not None and (holder.namespace, holder.pod) not in {truth.names[uid] for uid in uids}:
            yield f"{key} belongs to {_named(truth, who)}, not to {holder.namespace}/{holder.pod}"
        if holder.container not in {container for _, container in who}:
            yield f"{key} belongs to {_named(truth, who)}, not to a container {holder.container}"


def _named(truth: Truth, who: frozenset[tuple[str, str]]) -> str:
    return ", ".join(f"{truth.names[uid][1]}/{container}" for uid, container in sorted(who))


def _free(
    world: World,
    truth: Truth,
    rows: Mapping[Key, SliceReport],
    holders: Mapping[Key, HolderReport],
    remains: Mapping[Key, list[HolderReport]],
) -> Iterator[str]:
    """Nobody owns them: offered, or quarantined for a reason that is true."""
    allocated = [key for key, row in rows.items() if row.state == "allocated" and key not in truth.owners]
    unclaimed_s = world.unclaimed_for_s(allocated)
    for key, row in sorted(rows.items()):
        if key in truth.owners:
            continue
        alive = truth.alive.get(key, frozenset())
        match row.state:
            case "offered":
                named = {uid for uid, held in truth.in_file if held == key}
                if alive & named:
                    yield f"{key} is offered, and {sorted(alive & named)}, by the checkpoint, lives on it"
            case "quarantined":
                dead = [one.pod or one.uid for one in remains.get(key, ()) if one.uid not in truth.living]
                if dead or not remains.get(key):
                    yield f"{key} is quarantined for {dead}, who is dead"
                if row.healthy:
                    yield f"{key} is quarantined and Healthy"
            case "allocated" if unclaimed_s[key] < UNCLAIMED_S:
                pass
            case "held" if _cannot_be_told(holders[key], truth):
                pass
            case state:
                yield f"{key} is {state}, and nobody holds it"
    for key, found in remains.items():
        for one in found:
            if one.state == "remnant" and one.uid not in truth.living:
                yield f"{key} is said to have a remnant of {one.pod or one.uid}, who is dead"


def _cannot_be_told(holder: HolderReport, truth: Truth) -> bool:
    """Of a pod that `List` never named, only the checkpoint speaks; it lives, and nobody says that it was deleted."""
    if holder.uid is None or holder.pod is not None:
        return False
    key = (holder.resource, holder.id)
    return holder.uid in truth.living and (truth.file_is_damaged or (holder.uid, key) in truth.in_file)


def _health(world: World, report: NodeReport, rows: Mapping[Key, SliceReport]) -> Iterator[str]:
    faulty = world.driver.faulty
    for gpu in report.status.gpus:
        if (gpu.health == "unhealthy") != (gpu.uuid in faulty) and not (gpu.uuid in faulty and gpu.health == "unknown"):
            yield f"{gpu.uuid} is {gpu.health}: {gpu.reason}"
    for key, row in rows.items():
        uuid = key[1].partition("::")[0]
        if row.healthy and uuid in faulty:
            yield f"{key} is Healthy, and its GPU is not"
        if uuid in world.driver.sliced:
            if row.healthy and row.state == "offered":
                yield f"{key} is offered of a whole GPU that is in MIG mode"
            continue
        if not row.listed or row.healthy or uuid in faulty:
            continue
        if row.state in _OWNING and not row.overdue:
            yield f"{key} is {row.state}, on a good GPU, and Unhealthy: {row.reason}"
        if row.state == "offered" and row.withdrawn_s is None and row.resource != MPS:  # for these: `wrong_mps`
            yield f"{key} is offered, stays, is on a good GPU, and is Unhealthy: {row.reason}"
        if row.reason in NO_REASONS:
            yield f"{key} is Unhealthy and nobody says why"


def _promises(truth: Truth, rows: Mapping[Key, SliceReport]) -> Iterator[str]:
    secret = {key for key in truth.secret if key not in rows}
    held = {one for key in truth.owners.keys() - secret for one in (key[1],)}
    counted = held | {key[1] for key, healthy in truth.listed.items() if healthy}
    counted |= {key[1] for key, row in rows.items() if row.state == "quarantined"}
    for uuid, promised_mib in promised(counted).items():
        if promised_mib > MEMORY_MIB:
            yield f"{promised_mib} MiB of {uuid} are promised, and it has {MEMORY_MIB}"
    for key in truth.owners:
        others = [other for other, healthy in truth.listed.items() if other[1] == key[1] and other[0] != key[0]]
        if any(truth.listed[other] or other in truth.owners for other in others):
            yield f"{key} is held, and the same ID is Healthy or held under {others}"


def _plan(world: World, report: NodeReport, rows: Mapping[Key, SliceReport]) -> Iterator[str]:
    """No slice of the policy is lost: it is listed, or its GPU says what it waits for."""
    cut = world.in_force
    if report.status.policy.hash != digest(cut.text):
        return
    known = {gpu.uuid: gpu for gpu in report.status.gpus}
    for key, uuid in cut.ids.items():
        row = rows.get(key)
        if row is not None and row.listed and row.planned:
            continue
        if uuid in world.driver.sliced:
            continue
        if uuid in world.driver.faulty and (uuid not in known or known[uuid].index is None):
            continue  # lost before this agent started: nothing is known of it but its IDs
        if uuid not in known or known[uuid].waiting is None:
            yield f"{key} of the policy is not listed, and nobody says why"


def _process(world: World) -> Iterator[str]:
    if world.agent is None:
        return
    threads, files = world.agent.threads(), len(world.agent.open_files())
    if threads > MAX_THREADS:
        yield f"the agent has {threads} threads"
    if files > MAX_FILES:
        yield f"the agent has {files} open files"


def refusals(world: World) -> Iterator[str]:
    """Pods that were turned away without a sentence that helps."""
    for pod in world.node.kubelet.pods():
        words = [pod.message, *(one.message for one in pod.containers)]
        for text in words:
            _, found, said = text.partition("desc = ")
            if "Traceback" in text or "Exception calling application" in text or (found and len(said.split()) < 4):
                yield f"{pod.name} was refused in these words: {text}"


def unfinished(world: World, report: NodeReport, *, dropped: bool) -> list[str]:
    """What is missing of the end: nobody is there, and every slice of the policy can be had. Both run.

    `dropped`: also that nothing else is listed any more, and nothing waits for a pod that never came.
    """
    cut, found = world.wanted, []
    rows = {(one.resource, one.id): one for one in report.slices}
    states = ("offered",) if dropped else ("offered", "allocated")
    for key in cut.ids:
        row = rows.get(key)
        if row is None or not row.healthy or row.state not in states:
            found.append(f"{key} cannot be had: {row}")
    for resource in {name for name, _ in cut.ids}:
        numbers, count = world.node.kubelet.capacity(resource), sum(name == resource for name, _ in cut.ids)
        if numbers is None or numbers.allocatable != count:
            found.append(f"the node has {numbers} {resource}, and the policy {count}")
    if dropped:
        found += [f"{key} is still listed" for key in rows if key not in cut.ids]
    return found
