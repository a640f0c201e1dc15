"""sharer's own policy format: located text in, a `Policy` out, or every problem at once (DESIGN §4).

What one value may be stands in `values`, what rules owe each other in `checks`. A policy is kept in one
form: the strategy's default resource name is None even where it is written out, and `percent: auto` is None where the
strategy cannot hold a share of compute. So equal wishes are equal policies.
"""

from __future__ import annotations

from sharer.core.device_id import Strategy
from sharer.core.policy.checks import check_list_size, check_rules
from sharer.core.policy.enforcers import (
    COMPUTE_ENFORCERS,
    DRIVER,
    LEAVABLE,
    MEMORY_ENFORCERS,
    WATCHING,
    why_without_effect,
)
from sharer.core.policy.fields import Block, Problems, Schema
from sharer.core.policy.located import LocatedMapping, LocatedNode
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
    Rivals,
    Rule,
    Sharing,
    TimeSlicing,
    default_resource,
    made_by,
    usual_request_max,
)
from sharer.core.policy.values import (
    MAX_USER_ID,
    amount,
    amount_or_zero,
    boolean,
    comparison,
    compute_percent,
    duration,
    gpu_uuid,
    integer,
    memory_limit,
    one_of,
    oversubscribe,
    request_max,
    resource_name,
    text,
)
from sharer.core.values import replace

API_VERSION = "sharer.dev/v1alpha1"
KIND = "SharingPolicy"
STRATEGIES = tuple(strategy.policy_name for strategy in Strategy)

_NVIDIA = "it belongs to the NVIDIA plugin's config format, a document with version: v1 and without apiVersion and kind"
SCHEMA = Schema(
    blocks={
        "": ("apiVersion", "kind", "rules", "health", "quarantine", "drain", "rollout", "rivals"),
        "rules[]": (
            "match", "resource", "strategy", "slices", "sliceMemory", "memory", "compute", "placement", "request",
            "mps",
        ),
        "rules[].match": ("product", "memory", "uuid", "migProfile"),
        "rules[].memory": (
            "limit", "total", "reserve", "oversubscribe", "enforce", "required", "guarantee", "onExceed", "evictAfter",
        ),
        "rules[].compute": ("percent", "enforce"),
        "rules[].request": ("max",),
        "rules[].mps": ("user",),
        "health": ("ignore", "transient"),
        "health.transient": ("xids", "recoverAfter"),
        "quarantine": ("timeout",),
        "drain": ("patience",),
        "rollout": ("window",),
    },
    foreign={
        "version": _NVIDIA, "flags": _NVIDIA, "sharing": _NVIDIA,
        "replicas": "sharer's word is 'slices', in an entry of rules",
        "metadata": "a policy has no metadata; its name is its key in the ConfigMap",
        "data": "give sharer the text under one key of the ConfigMap's data, not the ConfigMap",
    },
)  # fmt: skip


def is_nvidia_format(document: LocatedNode) -> bool:
    """Whether this is meant as the NVIDIA plugin's config, in whatever letter case, and not as sharer's own format."""
    keys = {key.text.lower() for key, _ in document.entries} if isinstance(document, LocatedMapping) else set()
    return bool(keys & {"version", "flags", "sharing"}) and not keys & {"apiversion", "kind"}


def read_policy(document: LocatedNode, source: str) -> Policy:
    """Read a policy. Raises PolicyError with all its problems in the order of the text.

    `source` names the file or ConfigMap key in messages.
    """
    problems = Problems(source)
    root = Block.of_document(document, SCHEMA, problems)
    root.needed("apiVersion", one_of(API_VERSION), API_VERSION)
    root.needed("kind", one_of(KIND), KIND)
    if not root.has("rules"):
        root.problem("rules", "is missing; write a list of rules, each with match, strategy and slices")
    read = [(_rule(block), block) for block in root.blocks("rules")]
    rules = [(rule, block) for rule, block in read if rule is not None]
    check_rules(rules)
    usual = Policy(rules=())
    policy = Policy(
        rules=tuple(rule for rule, _ in rules),
        health=_health(root.block("health")),
        quarantine_timeout_s=root.block("quarantine").value("timeout", duration, usual.quarantine_timeout_s),
        drain_patience_s=root.block("drain").value("patience", duration, usual.drain_patience_s),
        rollout_window_s=root.block("rollout").value("window", duration, usual.rollout_window_s),
        rivals=Rivals(root.value("rivals", one_of(*Rivals), usual.rivals)),
        source=source,
    )
    problems.refuse()
    return replace(policy, warnings=problems.warnings())


def _rule(block: Block) -> Rule | None:
    """One rule; None where it has no usable strategy and slices, which is then a problem."""
    strategy = block.needed("strategy", one_of(*STRATEGIES), "time-slicing")
    match = _match(block.block("match"), strategy)
    resource = block.value("resource", resource_name(mig=strategy in {"mig", None}), None)
    sharing = _sharing(block, strategy)
    memory = _memory(block.block("memory"), sharing)
    compute = _compute(block.block("compute"), strategy)
    placement = Placement(block.value("placement", one_of(*Placement), Placement.PACKED))
    most = block.block("request").value("max", request_max, usual_request_max(sharing))
    if sharing is None:
        return None
    rule = Rule(
        match=match,
        resource=None if resource == default_resource(sharing) else resource,
        sharing=sharing,
        memory=memory,
        compute=compute,
        placement=placement,
        request_max=most,
        where=block.path,
    )
    check_list_size(rule, block, "slices")
    return rule


def _match(block: Block, strategy: str | None) -> Match:
    if block.has("migProfile") and strategy not in {"mig", None}:
        block.problem(
            "migProfile", f"is for rules with strategy: mig; this one has {strategy}, which looks at whole GPUs"
        )
    return Match(
        product=block.value("product", text, None),
        memory=block.value("memory", comparison, None),
        uuids=block.values("uuid", gpu_uuid, (), at_least=1) or None,
        mig_profile=block.value("migProfile", text, None),
    )


def _sharing(block: Block, strategy: str | None) -> Sharing | None:
    slices = block.value("slices", integer(1), None)
    slice_memory_bytes = block.value("sliceMemory", amount(), None)
    user_id = block.block("mps").value("user", integer(0, MAX_USER_ID), None)
    if block.has("mps") and strategy not in {"mps", None}:
        block.problem("mps", f"is for rules with strategy: mps; this one has {strategy}; remove it")
    if strategy == "exclusive":
        for key in ("slices", "sliceMemory"):
            if block.has(key):
                block.problem(
                    key, "strategy exclusive offers a GPU whole, once; remove this, or choose another strategy"
                )
        return Exclusive()
    if strategy == "mig":
        if block.has("sliceMemory"):
            block.problem(
                "sliceMemory", "a MIG device has the memory of its profile; use slices to offer it more than once"
            )
        return None if block.has("slices") and slices is None else Mig(replicas=slices or 1)
    if strategy is None:
        return None
    if block.has("slices") and block.has("sliceMemory"):
        block.problem("sliceMemory", "slices and sliceMemory exclude each other; keep one of them")
    elif not block.has("slices") and not block.has("sliceMemory"):
        block.problem("slices", f"is missing; strategy {strategy} needs slices (a count) or sliceMemory (a quantity)")
    if slices is None and slice_memory_bytes is None:
        return None
    if strategy == "mps":
        return Mps(slices=slices, slice_memory_bytes=slice_memory_bytes, user_id=user_id)
    return TimeSlicing(slices=slices, slice_memory_bytes=slice_memory_bytes)


def _memory(block: Block, sharing: Sharing | None) -> MemoryPolicy:
    usual = MemoryPolicy()
    memory = MemoryPolicy(
        limit=block.value("limit", memory_limit, usual.limit),
        total_bytes=block.value("total", amount(), None),
        reserve_bytes=block.value("reserve", amount_or_zero, usual.reserve_bytes),
        oversubscribe=block.value("oversubscribe", oversubscribe, usual.oversubscribe),
        enforce=block.values("enforce", one_of(*MEMORY_ENFORCERS), usual.enforce),
        required=block.value("required", boolean, usual.required),
        guarantee=block.value("guarantee", boolean, usual.guarantee),
        on_exceed=OnExceed(block.value("onExceed", one_of(*OnExceed), usual.on_exceed)),
        evict_after_s=block.value("evictAfter", duration, usual.evict_after_s),
    )
    _check_promise(block, memory)
    _check_means(block, memory, sharing)
    _check_eviction(block, memory)
    if sharing is not None and made_by(sharing)[1]:
        _check_whole(block, memory, "GPU" if isinstance(sharing, Exclusive) else "MIG device")
    return memory


def _check_promise(block: Block, memory: MemoryPolicy) -> None:
    """Whether there is something to hold and to guarantee, and enough of it."""
    if memory.oversubscribe > 1:
        factor = f"{memory.oversubscribe:g}"
        block.warning(
            "oversubscribe", f"slices promise up to {factor} times the memory there is; containers can run out of it"
        )
    if memory.required and memory.limit is None:
        block.problem("required", "is true and limit is none: there is nothing to hold; set a limit or remove required")
    if memory.guarantee and memory.limit is None:
        block.problem(
            "guarantee", "is true and limit is none: there is nothing to guarantee; set a limit or remove guarantee"
        )
    if memory.guarantee and memory.oversubscribe > 1:
        block.problem(
            "guarantee", "is true and oversubscribe is above 1: memory promised twice cannot be guaranteed; keep one"
        )


def _check_means(block: Block, memory: MemoryPolicy, sharing: Sharing | None) -> None:
    """Whether something that `enforce` names can do for slices made that way what the policy wants done."""
    strategy, is_whole = (None, False) if sharing is None else made_by(sharing)
    effective = []
    for name in memory.enforce:
        why = None if strategy is None else why_without_effect(name, strategy, whole=is_whole)
        if why is None:
            effective.append(name)
        elif block.has("enforce"):
            block.warning("enforce", f"{name} has no effect: {why}")
    if is_whole:
        return  # the device itself holds the container, and is all reserved for it
    not_enough = WATCHING | LEAVABLE
    if memory.required and not_enough.issuperset(effective):
        holding = ", ".join(name for name in MEMORY_ENFORCERS if name not in not_enough)
        block.problem("required", f"is true and enforce has none of {holding} that could hold a limit of this rule")
    if memory.guarantee and DRIVER not in effective:
        block.warning("guarantee", "has no effect: only driver reserves memory, and it holds no slices of this rule")


def _check_eviction(block: Block, memory: MemoryPolicy) -> None:
    if block.has("evictAfter") and memory.on_exceed is not OnExceed.EVICT:
        block.warning("evictAfter", "has no effect without onExceed: evict")
    if memory.on_exceed is OnExceed.EVICT and not memory.evicts:
        block.warning("onExceed", "evict has no effect: enforce does not name watch, which sees who is to be evicted")


def _check_whole(block: Block, memory: MemoryPolicy, whole: str) -> None:
    """A rule that gives a container a whole device, which that word names."""
    if isinstance(memory.limit, int):
        block.problem("limit", f"this rule gives a container a whole {whole} with all its memory; remove the limit")
    for key in ("total", "reserve", "oversubscribe", "required", "guarantee"):
        if block.has(key):
            block.warning(key, f"has no effect: this rule gives a container a whole {whole} with all its memory")


def _compute(block: Block, strategy: str | None) -> ComputePolicy:
    enforce = block.values("enforce", one_of(*COMPUTE_ENFORCERS), ComputePolicy().enforce)
    if strategy == "mps":
        return ComputePolicy(percent=block.value("percent", compute_percent, Auto.AUTO), enforce=enforce)
    percent = block.value("percent", compute_percent, None)
    if strategy is not None and percent is Auto.AUTO:
        block.warning(
            "percent", f"no share of compute is promised: only strategy mps can hold one, and this rule has {strategy}"
        )
    elif strategy is not None and percent is not None:
        block.problem(
            "percent",
            f"only strategy mps can hold a share of compute, and this rule has {strategy}; write none or auto",
        )
    return ComputePolicy(percent=None, enforce=enforce)


def _health(block: Block) -> HealthPolicy:
    usual = HealthPolicy()
    passing = block.block("transient")
    ignore = frozenset(block.values("ignore", integer(0), tuple(usual.ignore)))
    transient = frozenset(passing.values("xids", integer(0), tuple(usual.transient)))
    if block.has("ignore") and passing.has("xids"):
        for xid in sorted(ignore & transient):
            passing.problem("xids", f"XID {xid} is in health.ignore too; keep it in one of the two lists")
    elif block.has("ignore"):
        transient -= ignore  # what is written beats a default
    else:
        ignore -= transient
    return HealthPolicy(
        ignore=ignore,
        transient=transient,
        recover_after_s=passing.value("recoverAfter", duration, usual.recover_after_s),
    )
