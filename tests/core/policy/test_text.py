"""A policy printed as text is the same policy when it is read again."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from sharer.core.policy.enforcers import LEAVABLE, WATCHING, why_without_effect
from sharer.core.policy.model import (
    Auto,
    Comparison,
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
    made_by,
)
from sharer.core.policy.text import to_yaml
from sharer.core.policy.values import MAX_USER_ID
from sharer.core.quantities import GIB, MIB, TIB
from tests.core.policies import HEAD, read, read_rules

amounts = st.integers(MIB, 8 * TIB) | st.integers(1, 2**20).map(lambda count: count * MIB)
durations = st.integers(0, 365 * 86400).map(float)
counts = st.integers(1, 40_000)
printable = st.text(min_size=1, max_size=20).filter(str.isprintable)
names = st.sampled_from(["a.io/gpu", "nvidia.com/gpu.small", "example.com/on", "x/y_z"])
uuids = st.uuids().map(lambda uuid: f"GPU-{uuid}")
xids = st.frozensets(st.integers(0, 999_999_999), max_size=5)


def sharings() -> st.SearchStrategy[Sharing]:
    by_count = st.builds(TimeSlicing, slices=counts, slice_memory_bytes=st.none())
    users = st.none() | st.integers(0, MAX_USER_ID)
    by_memory = st.builds(Mps, slices=st.none(), slice_memory_bytes=amounts, user_id=users)
    return by_count | by_memory | st.builds(Mig, replicas=counts) | st.just(Exclusive())


@st.composite
def memories(draw: st.DrawFn, sharing: Sharing) -> MemoryPolicy:
    strategy, whole = made_by(sharing)
    limit: st.SearchStrategy[Auto | int | None] = st.sampled_from([Auto.AUTO, None])
    memory = MemoryPolicy(
        limit=draw(limit if whole else limit | amounts),
        total_bytes=draw(st.none() | amounts),
        reserve_bytes=draw(st.just(0) | amounts),
        oversubscribe=draw(st.integers(1_000_000, 100_000_000)) / 1_000_000,
        enforce=tuple(draw(st.lists(st.sampled_from(["driver", "mps", "mig", "watch"]), unique=True))),
        required=draw(st.booleans()),
        guarantee=draw(st.booleans()),
        on_exceed=draw(st.sampled_from(OnExceed)),
        evict_after_s=draw(durations),
    )
    holds = memory.limit is not None and any(
        name not in WATCHING | LEAVABLE and why_without_effect(name, strategy, whole=whole) is None
        for name in memory.enforce
    )
    guards = memory.limit is not None and memory.oversubscribe == 1
    return replace(memory, required=memory.required and holds, guarantee=memory.guarantee and guards)


@st.composite
def rules(draw: st.DrawFn) -> Rule:
    sharing = draw(sharings())
    is_mps = isinstance(sharing, Mps)
    percents = st.none() | st.just(Auto.AUTO) | st.integers(1, 100)
    return Rule(
        match=Match(
            product=draw(st.none() | printable),
            memory=draw(st.none() | st.tuples(st.sampled_from(Comparison), amounts)),
            uuids=draw(st.none() | st.lists(uuids, min_size=1, max_size=3, unique=True).map(tuple)),
            mig_profile=draw(st.none() | printable) if isinstance(sharing, Mig) else None,
        ),
        resource=draw(st.none() | names),
        sharing=sharing,
        memory=draw(memories(sharing)),
        compute=ComputePolicy(
            percent=draw(percents) if is_mps else None, enforce=draw(st.sampled_from([("mps",), ()]))
        ),
        placement=draw(st.sampled_from(Placement)),
        request_max=draw(st.none() | counts),
        where="rules[0]",
    )


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    ignore = draw(xids)
    return Policy(
        rules=(draw(rules()),),
        health=draw(
            st.just(HealthPolicy())
            | st.builds(
                HealthPolicy,
                ignore=st.just(ignore),
                transient=xids.map(lambda found: found - ignore),
                recover_after_s=durations,
            )
        ),
        quarantine_timeout_s=draw(durations),
        drain_patience_s=draw(durations),
        rollout_window_s=draw(durations),
        rivals=draw(st.sampled_from(Rivals)),
    )


@given(policies(), st.booleans())
def test_a_printed_policy_reads_back_equal(policy: Policy, defaults: bool) -> None:
    text = to_yaml(policy, defaults=defaults)
    assert read(text) == policy
    assert to_yaml(read(text), defaults=defaults) == text


def test_only_what_differs_from_the_defaults_is_printed() -> None:
    policy = read_rules('match: {product: "*A100*"}, strategy: mps, slices: 4, memory: {reserve: 512Mi}')
    assert to_yaml(policy) == (
        HEAD
        + """rules:
  - match: {product: "*A100*"}
    strategy: mps
    slices: 4
    memory: {reserve: 512Mi}
"""
    )


def test_the_defaults_are_printed_on_request() -> None:
    text = to_yaml(read_rules("strategy: mps, slices: 4"), defaults=True)
    assert text == (
        HEAD
        + """rules:
  - match: {}
    resource: nvidia.com/gpu.shared
    strategy: mps
    slices: 4
    memory:
      limit: auto
      reserve: 0
      oversubscribe: 1
      enforce: [driver, watch]
      required: false
      guarantee: false
      onExceed: report
    compute: {percent: auto, enforce: [mps]}
    placement: packed
    request: {max: 1}
health:
  ignore: [13, 31, 43, 45, 68, 109]
  transient: {xids: [94], recoverAfter: 5m}
quarantine: {timeout: 10m}
drain: {patience: 10m}
rollout: {window: 0s}
rivals: withhold
"""
    )
    assert read(text).warnings == ()


def test_text_that_yaml_would_take_for_something_else_is_quoted() -> None:
    for product in ("on", "null", "3090", "*A100*", "a: b", "#1", '"', "\\", "- x", "𝄞", "{a}"):
        policy = Policy(rules=(Rule(match=Match(product=product), sharing=Exclusive()),))
        assert read(to_yaml(policy)).rules[0].match.product == product


def test_the_longest_time_and_the_largest_amount_are_printed() -> None:
    policy = read_rules("strategy: mps, sliceMemory: 8Ti", rest="drain: {patience: 365d}")
    assert "sliceMemory: 8Ti" in to_yaml(policy)
    assert "drain: {patience: 365d}" in to_yaml(policy)
    assert policy.rules[0].sharing == Mps(slices=None, slice_memory_bytes=8192 * GIB)
