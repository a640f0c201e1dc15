"""A container above its promise is evicted after the policy's patience, and never on one reading."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from sharer.core.holders.findings import FindingKind
from sharer.core.holders.observations import PodPhase, PodSeen
from sharer.core.limits.excess import Excess, ExcessKey, measure
from sharer.core.limits.limits import MemoryBound, Tenant
from sharer.core.limits.usage import Usage
from sharer.core.policy.enforcers import Choice
from sharer.core.policy.model import MemoryPolicy, OnExceed
from sharer.core.quantities import GIB
from tests.core.builders import gpu, gpu_uuid, node
from tests.core.evidence import process, reading

A = gpu_uuid(0)
UID, MAIN = "0e1f8a3b-0000-4000-8000-00000000000a", "1" * 64
EVICT = MemoryPolicy(on_exceed=OnExceed.EVICT, evict_after_s=60.0)


def tenant(policy: MemoryPolicy = EVICT) -> Tenant:
    bound = MemoryBound(uuid=A, at_least_bytes=GIB, at_most_bytes=GIB, policy=policy, choice=Choice(by="watch"))
    return Tenant(uid=UID, container="main", container_id=MAIN, held=frozenset({A}), memory=(bound,))


def usage(used_bytes: int | None) -> Usage:
    """None: there is no list."""
    if used_bytes is None:
        return Usage(None, node(gpu(0)))
    return Usage(reading(process(UID, used_bytes, container_id=MAIN)), node(gpu(0)))


def watch(*readings: tuple[float, int | None], policy: MemoryPolicy = EVICT) -> Mapping[ExcessKey, Excess]:
    found: dict[ExcessKey, Excess] = {}
    for now_s, used_bytes in readings:
        found = measure(found, [tenant(policy)], usage(used_bytes), now_s)
    return found


def only(found: Mapping[ExcessKey, Excess]) -> Excess:
    (excess,) = found.values()
    return excess


def test_what_keeps_its_promise_is_no_excess() -> None:
    assert watch((0.0, GIB)) == {}
    assert watch((0.0, 2 * GIB), (5.0, GIB)) == {}


def test_an_excess_says_since_when_and_how_much() -> None:
    excess = only(watch((1.0, 2 * GIB), (6.0, 3 * GIB)))
    assert (excess.since_s, excess.used_bytes, excess.promise_bytes, excess.over_s) == (1.0, 3 * GIB, GIB, 5.0)


def test_the_policys_patience_is_waited_for() -> None:
    assert not only(watch((0.0, 2 * GIB), (59.0, 2 * GIB))).is_to_end
    assert only(watch((0.0, 2 * GIB), (30.0, 2 * GIB), (60.0, 2 * GIB))).is_to_end


def test_one_reading_is_never_enough_even_without_patience() -> None:
    impatient = MemoryPolicy(on_exceed=OnExceed.EVICT, evict_after_s=0.0)
    assert not only(watch((0.0, 2 * GIB), policy=impatient)).is_to_end
    assert only(watch((0.0, 2 * GIB), (0.0, 2 * GIB), policy=impatient)).is_to_end


def test_eviction_is_off_unless_the_policy_says_so_and_watches() -> None:
    long = ((0.0, 2 * GIB), (1000.0, 2 * GIB))
    assert not only(watch(*long, policy=MemoryPolicy())).is_to_end
    unwatched = MemoryPolicy(enforce=("driver",), on_exceed=OnExceed.EVICT)
    assert not only(watch(*long, policy=unwatched)).is_to_end


def test_time_without_a_reading_does_not_count_against_a_container() -> None:
    gap = watch((0.0, 2 * GIB), (10.0, 2 * GIB), (20.0, None), (500.0, 2 * GIB))
    assert (only(gap).over_s, only(gap).is_to_end) == (10.0, False)


def test_a_reading_that_cannot_tell_is_no_acquittal() -> None:
    unknown = only(watch((0.0, 2 * GIB), (10.0, None)))
    assert (unknown.used_bytes, unknown.is_to_end) == (2 * GIB, False)


def test_after_a_gap_one_reading_is_again_not_enough() -> None:
    before = [(0.0, 2 * GIB), (100.0, 2 * GIB), (110.0, None)]
    assert not only(watch(*before, (120.0, 2 * GIB))).is_to_end
    assert only(watch(*before, (120.0, 2 * GIB), (121.0, 2 * GIB))).is_to_end


def test_a_changed_policy_counts_at_the_next_reading() -> None:
    over = watch((0.0, 2 * GIB), (100.0, 2 * GIB))
    assert not only(measure(over, [tenant(MemoryPolicy())], usage(2 * GIB), 101.0)).is_to_end


def test_a_container_that_has_gone_is_forgotten() -> None:
    assert measure(watch((0.0, 2 * GIB)), [], usage(0), 5.0) == {}


@given(st.lists(st.tuples(st.floats(0.0, 50.0), st.sampled_from([2 * GIB, GIB, None])), max_size=12))
def test_whoever_is_to_end_was_seen_above_its_promise_twice_in_a_row_and_for_long_enough(
    steps: list[tuple[float, int | None]],
) -> None:
    now_s, readings = 0.0, []
    for step_s, used_bytes in steps:
        now_s += step_s
        readings.append((now_s, used_bytes))
    for excess in watch(*readings).values():
        if excess.is_to_end:
            last = [used_bytes for _, used_bytes in readings[-2:]]
            assert last == [2 * GIB, 2 * GIB]
            since_fine = [at_s for at_s, used_bytes in readings if used_bytes == GIB]
            assert readings[-1][0] - max(since_fine, default=0.0) >= 60.0


def test_a_finding_names_pod_promise_and_cure() -> None:
    excess = only(watch((0.0, 2 * GIB)))
    pod = PodSeen(uid="api", cgroup_uid=UID, namespace="train", name="job", phase=PodPhase.RUNNING)
    finding = excess.finding(pod)
    assert finding.kind is FindingKind.OVER_PROMISE
    assert (finding.namespace, finding.pod, finding.container, finding.used_bytes) == ("train", "job", "main", 2 * GIB)
    assert finding.message == (
        f"container main uses more of {A} than the 1 GiB it was promised; it is evicted after 1m of that"
    )
    assert excess.finding(None).pod is None
