"""How a GPU gets into a container: which way a node uses, and what a container is given by it.

`container_edits` is a pure function of a grant and the node's facts. The kubelet replays an answer for ever, over every
restart of ours (kubelet-contract §7), so the same IDs under the same facts always give the same one, and nothing is
named that a container runtime could not find at this moment.

Who overrides whom was measured (runtime-facts §1.3): image < plugin variable < the pod's own < CDI. So with `cdi` what
a container is told travels in sharer's own CDI spec, one device a slice. Several slices in one container would
override each other there (the later device wins), so then the sums travel as plugin variables.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import assert_never

from sharer.core.device_id import DeviceId
from sharer.core.edits import ContainerEdits, DeviceFacts, DeviceNode, Injection, Mount, NodeFacts, OptIns
from sharer.core.enforcer import Editor
from sharer.core.errors import RequestError
from sharer.core.grant import Grant, make_grant
from sharer.core.quantities import MIB

SLICE_KIND = "sharer.dev/slice"  # of sharer's own CDI devices; each is named by a device ID
DEVICE_LIST_ROOT = "/var/run/nvidia-container-devices"  # NVIDIA's runtime reads mounts of /dev/null below it as a list

_KIND_PART = re.compile(r"[A-Za-z](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?")
_UNKNOWN = DeviceFacts()


def choose_injection(
    requested: tuple[Injection, ...] | None, cdi_problem: str | None
) -> tuple[tuple[Injection, ...], str]:
    """The ways of a node, and the reason in words that also say what was not verified.

    `requested` None is `auto`. `cdi_problem`: why no CDI spec of this node names one of its devices; None: one does.
    That is all that can be seen of a container runtime; whether it reads the specs shows in the first container.
    """
    if requested is not None:
        return requested, "set by --injection"
    if cdi_problem is None:
        return (Injection.CDI,), (
            "auto: a CDI spec of this node names its devices; not verified: that the container runtime has CDI enabled"
        )
    return (Injection.VOLUME_MOUNTS, Injection.DEVICE_NODES), (
        f"auto: {cdi_problem}; not verified: that NVIDIA's runtime starts the containers and has"
        " accept-nvidia-visible-devices-as-volume-mounts = true"
    )


def injection_warnings(injection: Sequence[Injection]) -> tuple[str, ...]:
    """What the operator should know about these ways."""
    if Injection.ENVVAR in injection and not {Injection.CDI, Injection.VOLUME_MOUNTS} & {*injection}:
        return (
            "with --injection envvar a pod can set NVIDIA_VISIBLE_DEVICES itself and take any GPU;"
            " prefer cdi or volume-mounts",
        )
    return ()


def container_edits(grant: Grant, facts: NodeFacts, enforcers: Sequence[Editor]) -> ContainerEdits:
    """What a container with this grant is given on a node with these facts.

    Raises RequestError for what cannot run: a limit of 0, which enforcers read as "unlimited" (bug case P23), a device
    that the container runtime would not find, a promise that its strategy cannot keep on this node.
    """
    _check_promises(grant)
    env: dict[str, str] = {}
    mounts: set[Mount] = set()
    nodes: set[DeviceNode] = set()
    names: list[str] = []
    for injection in facts.injection:
        match injection:
            case Injection.CDI:
                names += [_cdi_name(share.uuid, facts) for share in grant.shares]
                names += opt_in_names(facts.opt_ins, facts.cdi_kind)
            case Injection.VOLUME_MOUNTS:
                mounts.update(_listed(share.uuid) for share in grant.shares)
                mounts.update(_listed(f"imex/{channel}") for channel in facts.opt_ins.imex_channels)
                env.update(_features(facts.opt_ins), NVIDIA_VISIBLE_DEVICES=DEVICE_LIST_ROOT)
            case Injection.DEVICE_NODES:
                nodes.update(facts.shared_nodes)
                for share in grant.shares:
                    nodes.update(facts.devices.get(share.uuid, _UNKNOWN).nodes)
            case Injection.ENVVAR:
                env.update(_features(facts.opt_ins))
                if facts.opt_ins.imex_channels:
                    env["NVIDIA_IMEX_CHANNELS"] = ",".join(map(str, facts.opt_ins.imex_channels))
                if Injection.VOLUME_MOUNTS not in facts.injection:
                    env["NVIDIA_VISIBLE_DEVICES"] = ",".join(share.uuid for share in grant.shares)
            case _:
                assert_never(injection)
    for enforcer in enforcers:
        held = enforcer.edits(grant, facts)
        env.update(held.env)
        mounts.update(held.mounts)
        nodes.update(held.device_nodes)
        names += held.cdi_names
    if _has_slice_spec(grant, facts):
        names.append(f"{SLICE_KIND}={grant.ids[0]}")
    else:
        env.update(container_variables(grant))
    return ContainerEdits(
        env=tuple(sorted(env.items())),
        mounts=tuple(sorted(mounts)),
        device_nodes=tuple(sorted(nodes)),
        cdi_names=tuple(names),
    )


def container_variables(grant: Grant) -> dict[str, str]:
    """What a container is told about its grant (DESIGN §6). Information, not enforcement; unknown is left out."""
    variables = {
        "SHARER_DEVICE_IDS": ",".join(map(str, grant.ids)),
        "SHARER_GPU_UUIDS": ",".join(share.uuid for share in grant.shares),
        "SHARER_STRATEGY": ",".join(dict.fromkeys(share.strategy.policy_name for share in grant.shares)),
    }
    limits = [f"{share.uuid}={share.memory_bytes}" for share in grant.shares if share.memory_bytes is not None]
    percents = [f"{share.uuid}={share.percent}" for share in grant.shares if share.percent is not None]
    if limits:
        variables["SHARER_MEMORY_LIMIT_BYTES"] = ",".join(limits)
    if percents:
        variables["SHARER_COMPUTE_PERCENT"] = ",".join(percents)
    return variables


def slice_variables(device_id: DeviceId, facts: NodeFacts, enforcers: Sequence[Editor]) -> dict[str, str]:
    """What sharer's CDI spec sets in a container that holds just this slice. Raises RequestError as `container_edits`.

    The enforcers' variables are set here and as plugin variables: a hook reads the first entry of a name, the process
    the last (gpu-limits §2). NVIDIA_VISIBLE_DEVICES is not here: the driver's own spec switches it off.
    """
    grant = make_grant([device_id])
    _check_promises(grant)
    variables = container_variables(grant)
    for enforcer in enforcers:
        variables.update(enforcer.edits(grant, facts).env)
    return variables


def opt_in_names(opt_ins: OptIns, cdi_kind: str) -> list[str]:
    """The CDI devices that stand for the operator's opt-ins, of the same vendor as the GPUs."""
    vendor = cdi_kind.partition("/")[0]
    channels = [f"{vendor}/imex-channel={channel}" for channel in opt_ins.imex_channels]
    return channels + [f"{vendor}/{feature}=all" for feature in _asked(opt_ins)]


def is_cdi_kind(text: str) -> bool:
    """Whether this can be the kind of CDI devices.

    >>> is_cdi_kind("nvidia.com/gpu"), is_cdi_kind("nvidia.com"), is_cdi_kind("nvidia.com/gpu=all")
    (True, False, False)
    """
    vendor, slash, kind_class = text.partition("/")
    return bool(slash and _KIND_PART.fullmatch(vendor) and _KIND_PART.fullmatch(kind_class))


def _has_slice_spec(grant: Grant, facts: NodeFacts) -> bool:
    return (
        len(grant.ids) == 1
        and Injection.CDI in facts.injection
        and facts.devices.get(grant.ids[0].uuid, _UNKNOWN).slice_spec
    )


def _cdi_name(uuid: str, facts: NodeFacts) -> str:
    """An unresolvable name would be retried for ever without a word to the pod's author (runtime-facts §1.7)."""
    device = facts.devices.get(uuid, _UNKNOWN)
    if device.cdi_name is None:
        raise RequestError(
            f"{uuid} cannot be given to a container: {device.unusable or 'no CDI spec of this node names it'}; delete"
            " the pod to get another GPU"
        )
    return device.cdi_name


def _listed(name: str) -> Mount:
    """NVIDIA's runtime takes a mount of just /dev/null as the wish for the device of that name."""
    return Mount(f"{DEVICE_LIST_ROOT}/{name}", "/dev/null", read_only=False)


def _features(opt_ins: OptIns) -> dict[str, str]:
    return {f"NVIDIA_{feature.upper()}": "enabled" for feature in _asked(opt_ins)}


def _asked(opt_ins: OptIns) -> Iterator[str]:
    for feature, asked in (("gds", opt_ins.gds), ("mofed", opt_ins.mofed), ("gdrcopy", opt_ins.gdrcopy)):
        if asked:
            yield feature


def _check_promises(grant: Grant) -> None:
    for share in grant.shares:
        if share.memory_bytes is not None and share.memory_bytes < MIB:
            raise RequestError(
                f"{share.uuid} was promised {share.memory_bytes} bytes; enforcers would read that as no limit"
            )
        if share.percent is not None and not 1 <= share.percent <= 100:
            raise RequestError(f"{share.uuid} was promised {share.percent} % of its SMs; 1 to 100 can be held")
