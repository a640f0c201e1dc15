"""A policy as YAML in sharer's own format, for `policy convert` and to show what is in force.

What is printed reads back as an equal policy. What stands at its default is left out, or printed too on request.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from typing import assert_never

from sharer.core.device_id import Strategy
from sharer.core.policy.model import (
    Auto,
    ComputePolicy,
    Exclusive,
    HealthPolicy,
    Match,
    MemoryPolicy,
    Mig,
    Mps,
    OnExceed,
    Placement,
    Policy,
    Rule,
    Sharing,
    TimeSlicing,
    default_resource,
    usual_request_max,
)
from sharer.core.policy.reader import API_VERSION, KIND
from sharer.core.quantities import duration, quantity

_FLOW_WIDTH = 80  # a mapping that would be longer on one line gets a line for each of its keys
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9]*(?:[-./][A-Za-z0-9]+)*")
_NOT_PLAIN = {"true", "false", "yes", "no", "on", "off", "y", "n", "null"}  # not text to every YAML parser


def to_yaml(policy: Policy, *, defaults: bool = False) -> str:
    """The policy as text; with `defaults`, also every field that stands at its default."""
    usual = Policy(rules=())
    lines = [f"apiVersion: {API_VERSION}", f"kind: {KIND}", "rules:"]
    for rule in policy.rules:
        first, *rest = _rule(rule, defaults)
        lines += [f"  - {first}", *(f"    {line}" for line in rest)]
    lines += _health(policy.health, defaults)
    for block, key, amount_s, usual_s in (
        ("quarantine", "timeout", policy.quarantine_timeout_s, usual.quarantine_timeout_s),
        ("drain", "patience", policy.drain_patience_s, usual.drain_patience_s),
        ("rollout", "window", policy.rollout_window_s, usual.rollout_window_s),
    ):
        if defaults or amount_s != usual_s:
            lines += _mapping(block, [(key, duration(amount_s))])
    if defaults or policy.rivals is not usual.rivals:
        lines.append(f"rivals: {policy.rivals.value}")
    return "\n".join(lines) + "\n"


def _rule(rule: Rule, defaults: bool) -> list[str]:
    strategy, cut = _sharing(rule.sharing, defaults)
    lines = _mapping("match", _match(rule.match)) or ["match: {}"]
    if defaults or rule.resource is not None:
        lines.append(f"resource: {_text(rule.resource or default_resource(rule.sharing))}")
    lines.append(f"strategy: {strategy}")
    lines += [f"{key}: {value}" for key, value in cut]
    lines += _mapping("memory", _memory(rule, defaults))
    lines += _mapping("compute", _compute(rule, defaults))
    if defaults or rule.placement is not Placement.PACKED:
        lines.append(f"placement: {rule.placement.value}")
    if defaults or rule.request_max != usual_request_max(rule.sharing):
        lines += _mapping("request", [("max", "none" if rule.request_max is None else str(rule.request_max))])
    return lines


Fields = list[tuple[str, str]]
"""Keys and their values as YAML."""


def _match(match: Match) -> Fields:
    memory = None if match.memory is None else f"{match.memory[0].value}{quantity(match.memory[1])}"
    uuids = None if match.uuids is None else _list(match.uuids)
    texts = {"product": match.product, "memory": memory, "migProfile": match.mig_profile}
    written = {key: _text(value) for key, value in texts.items() if value is not None}
    return [*written.items(), *([] if uuids is None else [("uuid", uuids)])]


def _sharing(sharing: Sharing, defaults: bool) -> tuple[str, Fields]:
    match sharing:
        case TimeSlicing(slices=slices, slice_memory_bytes=each_bytes):
            return Strategy.TIME_SLICING.policy_name, _slices(slices, each_bytes)
        case Mps(slices=slices, slice_memory_bytes=each_bytes, user_id=user_id):
            user = [] if user_id is None else [("mps", f"{{user: {user_id}}}")]
            return Strategy.MPS.policy_name, _slices(slices, each_bytes) + user
        case Mig(replicas=replicas):
            return Strategy.MIG.policy_name, [("slices", str(replicas))] if defaults or replicas != 1 else []
        case Exclusive():
            return Strategy.EXCLUSIVE.policy_name, []
        case _:
            assert_never(sharing)


def _slices(slices: int | None, each_bytes: int | None) -> Fields:
    return [("slices", str(slices))] if each_bytes is None else [("sliceMemory", quantity(each_bytes))]


def _memory(rule: Rule, defaults: bool) -> Fields:
    memory, usual = rule.memory, MemoryPolicy()
    shares = not isinstance(rule.sharing, Exclusive) and rule.sharing != Mig(replicas=1)
    defaults_here = defaults and shares  # a whole GPU has all its memory, and most fields would say nothing about it
    fields: list[tuple[str, str, bool]] = [
        ("limit", _auto(memory.limit, quantity), defaults or memory.limit != usual.limit),
        ("total", quantity(memory.total_bytes or 0), memory.total_bytes is not None),
        (
            "reserve",
            quantity(memory.reserve_bytes) if memory.reserve_bytes else "0",
            defaults_here or memory.reserve_bytes != 0,
        ),
        ("oversubscribe", _factor(memory.oversubscribe), defaults_here or memory.oversubscribe != usual.oversubscribe),
        ("enforce", _list(memory.enforce), defaults or memory.enforce != usual.enforce),
        ("required", _boolean(memory.required), defaults_here or memory.required),
        ("guarantee", _boolean(memory.guarantee), defaults_here or memory.guarantee),
        ("onExceed", memory.on_exceed.value, defaults or memory.on_exceed != usual.on_exceed),
        (
            "evictAfter",
            duration(memory.evict_after_s),
            memory.evict_after_s != usual.evict_after_s or (defaults and memory.on_exceed is OnExceed.EVICT),
        ),
    ]
    return [(key, value) for key, value, printed in fields if printed]


def _compute(rule: Rule, defaults: bool) -> Fields:
    usual = ComputePolicy(percent=Auto.AUTO if isinstance(rule.sharing, Mps) else None)
    fields: Fields = []
    if defaults or rule.compute.percent != usual.percent:
        fields.append(("percent", _auto(rule.compute.percent, str)))
    if rule.compute.enforce != usual.enforce or (defaults and isinstance(rule.sharing, Mps)):
        fields.append(("enforce", _list(rule.compute.enforce)))
    return fields


def _health(health: HealthPolicy, defaults: bool) -> list[str]:
    usual = HealthPolicy()
    transient: Fields = []
    if defaults or health.transient != usual.transient:
        transient.append(("xids", _xids(health.transient)))
    if defaults or health.recover_after_s != usual.recover_after_s:
        transient.append(("recoverAfter", duration(health.recover_after_s)))
    lines = _mapping("transient", transient)
    if defaults or health.ignore != usual.ignore:
        lines.insert(0, f"ignore: {_xids(health.ignore)}")
    return ["health:", *(f"  {line}" for line in lines)] if lines else []


def _mapping(key: str, fields: Fields) -> list[str]:
    """The lines of a mapping; none if it is empty."""
    line = f"{key}: {{{', '.join(f'{inner}: {value}' for inner, value in fields)}}}"
    if len(line) > _FLOW_WIDTH:
        return [f"{key}:", *(f"  {inner}: {value}" for inner, value in fields)]
    return [line] if fields else []


def _list(items: Iterable[str]) -> str:
    return "[" + ", ".join(items) + "]"


def _xids(xids: Iterable[int]) -> str:
    return _list(str(xid) for xid in sorted(xids))


def _auto(value: Auto | int | None, written: Callable[[int], str]) -> str:
    if isinstance(value, Auto):
        return value.value
    return "none" if value is None else written(value)


def _factor(factor: float) -> str:
    return f"{factor:.6f}".rstrip("0").rstrip(".")  # a policy has at most six decimals, and no exponent


def _boolean(value: bool) -> str:
    return "true" if value else "false"


def _text(text: str) -> str:
    """Text, in quotes unless every YAML parser takes it for text without them."""
    if _PLAIN.fullmatch(text) and text.lower() not in _NOT_PLAIN:
        return text
    return json.dumps(text, ensure_ascii=False)  # what JSON escapes, YAML reads alike
