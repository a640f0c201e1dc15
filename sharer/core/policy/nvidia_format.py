"""The NVIDIA device plugin's own config format (`version: v1`), read into a `Policy`, so that its users can move.

Same slices and names as that plugin gives (as its source of 2022 to 2026 reads), with these decisions:

* Strict where it is lenient. It drops unknown keys (P01), and it ignores `rename`, a choice of `devices` and a
  `resources` block of one's own with a line in its log. Here each of these is refused with the way to say it in
  sharer's format, unless it says what the plugin does anyway.
* Time slicing promises neither memory nor compute there, so it does not here. MPS divides both and holds the memory.
* `failRequestsGreaterThanOne: true` is `request.max: 1`; without it a container may ask for any number:
  `request.max: none`. Under MPS it is always so; the latest sources let one lift that, which is refused here.
* `replicas: 1`, with which the plugin does not start (P03), means: not shared, under the plain name.
* What `sharing` does not list is offered plain: whole GPUs as nvidia.com/gpu, MIG devices as `migStrategy` says. A GPU
  in MIG mode is never offered whole, and with `single` a GPU without MIG mode is not offered, because one name would
  stand for two things; a warning says so.
* `flags` and `imex` are about how a process runs: `nvidia_flags` checks them and names sharer's settings.
"""

from __future__ import annotations

import re

from sharer.core.policy.checks import check_list_size
from sharer.core.policy.enforcers import DRIVER, MPS, WATCH
from sharer.core.policy.fields import Block, Problems, Schema
from sharer.core.policy.located import LocatedList, LocatedMapping, LocatedNode, LocatedScalar
from sharer.core.policy.model import (
    Auto,
    ComputePolicy,
    Exclusive,
    Match,
    MemoryPolicy,
    Mig,
    Mps,
    Policy,
    Rule,
    Sharing,
    TimeSlicing,
    default_resource,
)
from sharer.core.policy.nvidia_flags import check_flags, check_imex, check_names, with_prefix
from sharer.core.policy.values import boolean, describe, integer, one_of, shown, text
from sharer.core.values import dataclass

_OURS = "it belongs to sharer's own format, a document with apiVersion and kind and without version"
_SHARING_KEYS = ("renameByDefault", "failRequestsGreaterThanOne", "resources")
_ENTRY_KEYS = ("name", "rename", "devices", "replicas")
SCHEMA = Schema(
    blocks={
        "": ("version", "flags", "resources", "sharing", "imex"),
        "flags": (
            "migStrategy", "failOnInitError", "mpsRoot", "nvidiaDriverRoot", "nvidiaDevRoot", "gdrcopyEnabled",
            "gdsEnabled", "mofedEnabled", "useNodeFeatureAPI", "deviceDiscoveryStrategy", "plugin", "gfd",
        ),
        "flags.plugin": (
            "passDeviceSpecs", "deviceListStrategy", "deviceIDStrategy", "cdiAnnotationPrefix", "nvidiaCTKPath",
            "containerDriverRoot", "kubeletSocket", "cdiFeatureFlags",
        ),
        "flags.gfd": ("oneshot", "noTimestamp", "sleepInterval", "outputFile", "machineTypeFile"),
        "resources": ("gpus", "mig"),
        "resources.gpus[]": ("pattern", "name"),
        "resources.mig[]": ("pattern", "name"),
        "sharing": ("timeSlicing", "mps"),
        "sharing.timeSlicing": _SHARING_KEYS,
        "sharing.timeSlicing.resources[]": _ENTRY_KEYS,
        "sharing.mps": _SHARING_KEYS,
        "sharing.mps.resources[]": _ENTRY_KEYS,
        "imex": ("channelIDs", "required"),
    },
    foreign={"apiVersion": _OURS, "kind": _OURS, "rules": _OURS, "health": _OURS},
)  # fmt: skip


def read_nvidia_format(document: LocatedNode, source: str) -> Policy:
    """Read the NVIDIA plugin's config. Raises PolicyError with all its problems in the order of the text."""
    problems = Problems(source)
    root = Block.of_document(document, SCHEMA, problems)
    root.value("version", one_of("v1"), None)
    flags = root.block("flags")
    check_flags(flags)
    check_imex(root)
    check_names(root.block("resources"))
    shared = _read_sharing(root.block("sharing"))
    mig_strategy = _mig_strategy(flags, shared)
    if mig_strategy == "single":
        flags.warning(
            "migStrategy",
            "GPUs without MIG mode are not offered: nvidia.com/gpu stands for MIG devices here. For nodes with both,"
            " write rules with different resources in sharer's own format",
        )
    rules = _rules(mig_strategy, shared)
    problems.refuse()
    return Policy(rules=rules, source=source, warnings=problems.warnings())


# --- sharing -------------------------------------------------------------------------------------------------------

_GPU = "nvidia.com/gpu"
_MIG_NAME = r"nvidia\.com/mig-(?P<size>[0-9]+g\.[0-9]+gb)(?:\.(?P<extras>[A-Za-z0-9.]+))?"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shared:
    """One entry of `sharing.*.resources`."""

    name: str  # nvidia.com/gpu or nvidia.com/mig-…
    offered_as: str
    profile: str | None  # of MIG devices, None for nvidia.com/gpu
    replicas: int
    mps: bool
    request_max: int | None
    block: Block


def _read_sharing(sharing: Block) -> list[_Shared]:
    if sharing.has("timeSlicing") and sharing.has("mps"):
        sharing.problem(
            "mps",
            "timeSlicing and mps exclude each other in this format; keep one of them. In sharer's own format every rule"
            " has a strategy of its own",
        )
    return [
        entry
        for kind in ("timeSlicing", "mps")
        if sharing.has(kind)
        for entry in _read_kind(sharing.block(kind), mps=kind == "mps")
    ]


def _read_kind(kind: Block, *, mps: bool) -> list[_Shared]:
    renames = kind.value("renameByDefault", boolean, False)
    at_most_one = kind.value("failRequestsGreaterThanOne", boolean, mps)
    if mps and not at_most_one:
        kind.problem(
            "failRequestsGreaterThanOne",
            "a container has one slice at most under mps, because an MPS limit is one process's; remove this",
        )
    if not kind.has("resources"):
        kind.problem("resources", "is missing; write a list of entries with name and replicas")
    entries: dict[str, _Shared] = {}
    for block in kind.blocks("resources"):
        entry = _read_entry(block, renames=renames, mps=mps, request_max=1 if at_most_one else None)
        if entry is not None and entries.setdefault(entry.name, entry) is not entry:
            block.problem(
                "name", f"{entry.name} is already listed at {entries[entry.name].block.path}; keep one of the two"
            )
    return list(entries.values())


def _read_entry(block: Block, *, renames: bool, mps: bool, request_max: int | None) -> _Shared | None:
    name = block.needed("name", _resource_name, _GPU)
    replicas = block.needed("replicas", integer(1), "4")
    block.value("devices", _all_devices, None)
    if name is None or replicas is None:
        return None
    offered_as = f"{name}.shared" if renames and replicas > 1 else name
    rename = block.value("rename", text, None)
    if rename is not None and with_prefix(rename) != offered_as:
        block.problem(
            "rename",
            f"the NVIDIA plugin ignores this and offers {offered_as}; remove it to keep that name, or write a rule with"
            f" resource: {rename} in sharer's own format",
        )
    profile = _profile(name)
    if mps and profile is not None:
        block.problem("name", "MPS does not share MIG devices; use timeSlicing for them, or list nvidia.com/gpu")
    return _Shared(
        name=name,
        offered_as=offered_as,
        profile=profile,
        replicas=replicas,
        mps=mps,
        request_max=None if replicas == 1 else request_max,
        block=block,
    )


def _resource_name(node: LocatedNode) -> str:
    """A resource that the plugin makes; the prefix may be left out."""
    typed = text(node)
    name = with_prefix(typed)
    if name != _GPU and re.fullmatch(_MIG_NAME, name) is None:
        cure = "; for names with .shared set renameByDefault: true" if name.endswith(".shared") else ""
        raise ValueError(
            f"no GPU has the resource {shown(typed)} in the NVIDIA plugin{cure}; it makes nvidia.com/gpu and, of MIG"
            " devices, nvidia.com/mig-<profile>, such as nvidia.com/mig-1g.10gb"
        )
    return name


def _all_devices(node: LocatedNode) -> None:
    if isinstance(node, LocatedScalar) and node.text == "all":
        return
    if isinstance(node, LocatedMapping):
        keys = ", ".join(shown(key.text) for key, _ in node.entries[:3])
        raise ValueError(
            f"expected all, found a mapping with {keys or 'no keys'}; devices has no keys in the NVIDIA plugin"
        )
    if isinstance(node, LocatedList):
        raise ValueError(
            "the NVIDIA plugin ignores this list and shares every GPU; write devices: all to keep that, or a rule with"
            " match: {uuid: [GPU-…]} in sharer's own format (`sharer devices` shows the UUIDs)"
        )
    if not node.quoted and node.text.isdecimal():
        raise ValueError(
            "the NVIDIA plugin ignores this count and shares every GPU; write devices: all to keep that, or choose GPUs"
            " by product, memory or UUID with match in sharer's own format"
        )
    raise ValueError(f"expected all, found {describe(node)}")


def _profile(name: str) -> str | None:
    """The MIG profile that a resource is named for: nvidia.com/mig-1g.10gb.me is the profile 1g.10gb+me."""
    found = re.fullmatch(_MIG_NAME, name)
    if found is None:
        return None
    return found["size"] if found["extras"] is None else f"{found['size']}+{found['extras']}"


# --- rules ---------------------------------------------------------------------------------------------------------


def _mig_strategy(flags: Block, shared: list[_Shared]) -> str:
    """none, single or mixed; mixed too where MIG resources are listed and nothing is said."""
    strategy = flags.value("migStrategy", one_of("none", "single", "mixed"), None)
    of_mig = [entry for entry in shared if entry.profile is not None]
    if of_mig and not flags.has("migStrategy"):
        of_mig[0].block.warning(
            "name", "flags.migStrategy is not set; mixed is assumed, without which there are no such resources"
        )
        return "mixed"
    for entry in of_mig:
        if strategy in {"none", "single"}:
            entry.block.problem("name", f"there is no {entry.name} with flags.migStrategy: {strategy}; set it to mixed")
    return strategy or "none"


def _rules(mig_strategy: str, shared: list[_Shared]) -> tuple[Rule, ...]:
    """What is shared first, then everything else plain."""
    of_gpu = next((entry for entry in shared if entry.profile is None), None)
    if mig_strategy == "single":
        return (_rule(of_gpu, Mig(replicas=1 if of_gpu is None else of_gpu.replicas)),)
    of_mig = [_rule(entry, Mig(replicas=entry.replicas)) for entry in shared if entry.profile is not None]
    if mig_strategy == "mixed":
        of_mig.append(Rule(sharing=Mig(), request_max=None, where="flags.migStrategy"))
    if of_gpu is None or of_gpu.replicas == 1:
        return (*of_mig, _rule(of_gpu, Exclusive()))
    make = Mps if of_gpu.mps else TimeSlicing
    return (*of_mig, _rule(of_gpu, make(slices=of_gpu.replicas, slice_memory_bytes=None)))


def _rule(entry: _Shared | None, sharing: Sharing) -> Rule:
    """The rule for one entry; without one, for what is called nvidia.com/gpu and not shared."""
    name = _GPU if entry is None else entry.offered_as
    memory = MemoryPolicy() if entry is None or entry.replicas == 1 else MemoryPolicy(limit=None)
    if isinstance(sharing, Mps):
        memory = MemoryPolicy(enforce=(DRIVER, MPS, WATCH))
    rule = Rule(
        match=Match(mig_profile=None if entry is None else entry.profile),
        resource=None if name == default_resource(sharing) else name,
        sharing=sharing,
        memory=memory,
        compute=ComputePolicy(percent=Auto.AUTO if isinstance(sharing, Mps) else None),
        request_max=None if entry is None else entry.request_max,
        where="sharing" if entry is None else entry.block.path,
    )
    if entry is not None:
        check_list_size(rule, entry.block, "replicas")
    return rule
