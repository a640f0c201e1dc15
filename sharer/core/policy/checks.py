"""What the rules of a policy owe each other and the kubelet, whatever GPUs there are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from sharer.core.device_id import DeviceId, Strategy
from sharer.core.policy.fields import Block
from sharer.core.policy.list_size import MAX_LIST_BYTES, most_numbered_ids, worst_case_numbered_list_bytes
from sharer.core.policy.model import Exclusive, Match, Mig, Mps, Rule, Sharing, TimeSlicing, default_resource
from sharer.core.policy.resource_name import PROFILE
from sharer.core.quantities import MIB

_ANY_UUID = "GPU-00000000-0000-0000-0000-000000000000"


def check_rules(rules: Sequence[tuple[Rule, Block]]) -> None:
    """Rules that share a resource name agree; a rule that can never be reached is worth a warning."""
    by_name: dict[str, list[Rule]] = {}
    everything: dict[bool, Rule] = {}  # for MIG devices and for whole GPUs: the first rule that matches all
    for rule, block in rules:
        mig = isinstance(rule.sharing, Mig)
        if mig in everything:
            what = "MIG device" if mig else "GPU"
            block.warning(None, f"is never reached: {everything[mig].where} comes first and matches every {what}")
        elif rule.match == Match():
            everything[mig] = rule
        name = rule.resource or default_resource(rule.sharing)
        earlier = by_name.setdefault(name, [])
        other = next((one for one in earlier if PROFILE not in name or not _apart(one.match, rule.match)), None)
        if other is not None:
            _check_agreement(rule, block, other, name)
        earlier.append(rule)


def check_list_size(rule: Rule, block: Block, key: str) -> None:
    """Refuse a count whose IDs of one single GPU make a longer list than the kubelet receives (P04)."""
    count, strategy = _count(rule.sharing)
    if count is None:
        return
    limit_mib = None if rule.memory.limit is None else 1  # shortest; `make_plan` measures the real list
    if isinstance(rule.memory.limit, int):
        limit_mib = rule.memory.limit // MIB
    shortest = DeviceId(uuid=_ANY_UUID, strategy=strategy, replica=0, limit_mib=limit_mib)
    rest_bytes = len(str(shortest)) - 1
    size_bytes = worst_case_numbered_list_bytes(rest_bytes, count)
    if size_bytes > MAX_LIST_BYTES:
        block.problem(
            key,
            f"{count} slices of one GPU make a device list of {size_bytes} bytes, and the kubelet receives at most"
            f" {MAX_LIST_BYTES}; at most {most_numbered_ids(rest_bytes)} fit",
        )


def _count(sharing: Sharing) -> tuple[int | None, Strategy]:
    """How many slices one GPU or MIG device gives, None where its memory decides; and their strategy."""
    match sharing:
        case TimeSlicing(slices=slices):
            return slices, Strategy.TIME_SLICING
        case Mps(slices=slices):
            return slices, Strategy.MPS
        case Mig(replicas=replicas):
            return replicas, Strategy.MIG
        case Exclusive():
            return 1, Strategy.EXCLUSIVE
        case _:
            assert_never(sharing)


def _check_agreement(rule: Rule, block: Block, other: Rule, name: str) -> None:
    """One name is one promise to whoever asks for it, on every node."""
    here, there = _count(rule.sharing)[1].policy_name, _count(other.sharing)[1].policy_name
    differ = {
        "strategy": (here, there),
        "placement": (rule.placement.value, other.placement.value),
        "request.max": (_most(rule), _most(other)),
        "mps.user": (_user(rule), _user(other)),
    }
    for key, (mine, theirs) in differ.items():
        if mine != theirs:
            block.problem(
                key.partition(".")[0],
                f"{rule.where} and {other.where} offer the same resource {name} and differ in {key}: {mine} here,"
                f" {theirs} there; make them agree or give one of them another resource",
            )


def _most(rule: Rule) -> str:
    return "none" if rule.request_max is None else str(rule.request_max)


def _user(rule: Rule) -> str:
    """Of its MPS daemon, which is one for all GPUs under a resource name."""
    user_id = rule.sharing.user_id if isinstance(rule.sharing, Mps) else None
    return "any user" if user_id is None else str(user_id)


def _apart(earlier: Match, later: Match) -> bool:
    """Whether two MIG rules surely see different profiles, so that one template gives them different names."""
    if earlier.mig_profile is None or any(sign in earlier.mig_profile for sign in "*?["):
        return False
    takes_all = earlier == Match(mig_profile=earlier.mig_profile)  # then the later rule sees no device of this profile
    exact = later.mig_profile is not None and not any(sign in later.mig_profile for sign in "*?[")
    return takes_all or (exact and earlier.mig_profile != later.mig_profile)
