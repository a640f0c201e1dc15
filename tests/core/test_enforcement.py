"""What is reported as held was seen held; what changed is told, with what was found."""

from __future__ import annotations

from collections.abc import Collection

from hypothesis import given
from hypothesis import strategies as st

from sharer.core.enforcement import MAX_LIFTS, Enforcement, Hold, after_verdicts
from sharer.core.enforcer import Verdict
from sharer.core.limits.limits import ComputeBound, MemoryBound, PromiseKey, Tenant
from sharer.core.policy.enforcers import Choice, Promise
from sharer.core.policy.model import MemoryPolicy
from sharer.core.quantities import GIB

POD, OTHER = "0e1f8a3b-0000-4000-8000-00000000000a", "0e1f8a3b-0000-4000-8000-00000000000b"
GPU = "GPU-a"
DRIVER = Choice(by="driver", instead_of=())
ESCAPES = {"driver": ("managed memory",)}


def tenant(
    uid: str = POD, container: str | None = "main", start: int = 1, choice: Choice = DRIVER, percent: int | None = None
) -> Tenant:
    bound = MemoryBound(uuid=GPU, at_least_bytes=GIB, at_most_bytes=GIB, policy=MemoryPolicy(), choice=choice)
    compute = () if percent is None else (ComputeBound(uuid=GPU, percent=percent, choice=Choice(by=None)),)
    container_id = None if container is None else f"{start:064x}"
    return Tenant(uid=uid, container=container, container_id=container_id, memory=(bound,), compute=compute)


def key(one: Tenant) -> PromiseKey:
    return (one.key, Promise.MEMORY, GPU)


def look(
    before: Enforcement,
    *tenants: Tenant,
    now_s: float,
    problem: str | None = None,
    repaired: Collection[Tenant] = (),
    pods: Collection[str] | None = None,
) -> Enforcement:
    verdicts = {key(one): Verdict(problem=problem) for one in tenants}
    found = {key(one): "no limit is in force" for one in repaired}
    return after_verdicts(before, tenants, verdicts, found, ESCAPES, now_s, pods=pods)


NOTHING = Enforcement()


def held(enforcement: Enforcement) -> Hold:
    return enforcement.by_container()[POD, "main", GPU]


def test_a_promise_is_held_since_it_was_first_seen_so() -> None:
    first = look(NOTHING, tenant(), now_s=1.0)
    assert held(first) == Hold(by="driver", reason=None, escapes=("managed memory",), since_s=1.0, verified_s=1.0)
    again = held(look(first, tenant(), now_s=11.0))
    assert (again.since_s, again.verified_s) == (1.0, 11.0)


def test_what_is_not_held_says_why_and_when_it_last_was() -> None:
    lost = held(look(look(NOTHING, tenant(), now_s=1.0), tenant(), now_s=2.0, problem="it uses 2 GiB"))
    assert lost == Hold(by=None, reason="driver: it uses 2 GiB", verified_s=1.0)


def test_a_break_begins_a_new_since() -> None:
    broken = look(look(NOTHING, tenant(), now_s=1.0), tenant(), now_s=2.0, problem="it uses 2 GiB")
    assert held(look(broken, tenant(), now_s=3.0)).since_s == 3.0


def test_a_limit_that_somebody_lifted_is_counted_and_remembered_in_words() -> None:
    repaired = look(look(NOTHING, tenant(), now_s=1.0), tenant(), now_s=20.0, repaired=[tenant()])
    assert (repaired.lift_count, held(repaired).since_s) == (1, 20.0)
    assert [(lift.key, lift.found) for lift in repaired.lifts] == [(key(tenant()), "no limit is in force")]


def test_what_a_toolkits_hook_overwrites_in_a_containers_first_moments_is_no_lift() -> None:
    repaired = look(look(NOTHING, tenant(), now_s=1.0), tenant(), now_s=1.1, repaired=[tenant()])
    assert (repaired.lift_count, held(repaired).by) == (0, "driver")


def test_the_first_limit_of_a_container_is_no_lift() -> None:
    assert look(NOTHING, tenant(), now_s=100.0, repaired=[tenant()]).lift_count == 0


def test_only_the_last_lifts_are_remembered_and_all_are_counted() -> None:
    enforcement = look(NOTHING, tenant(), now_s=0.0)
    for number in range(1, 2 * MAX_LIFTS):
        enforcement = look(enforcement, tenant(), now_s=10.0 * number, repaired=[tenant()])
    assert (len(enforcement.lifts), enforcement.lift_count) == (MAX_LIFTS, 2 * MAX_LIFTS - 1)


def test_a_look_at_some_pods_leaves_the_others_as_they_were() -> None:
    before = look(NOTHING, tenant(), tenant(OTHER), now_s=1.0)
    after = look(before, now_s=2.0, pods={POD})
    assert set(after.holds) == {key(tenant(OTHER))}
    assert look(before, now_s=3.0).holds == {}


def test_a_container_that_starts_again_is_held_anew() -> None:
    enforcement = look(look(NOTHING, tenant(), now_s=1.0), tenant(start=2), now_s=50.0)
    assert held(enforcement).since_s == 50.0


def test_of_two_starts_the_one_that_is_not_held_counts() -> None:
    one, two = tenant(start=1), tenant(start=2)
    verdicts = {key(one): Verdict(problem="no limit"), key(two): Verdict()}
    for tenants in ([one, two], [two, one]):
        assert held(after_verdicts(NOTHING, tenants, verdicts, {}, ESCAPES, 1.0)).by is None


def test_what_nothing_can_hold_is_in_it_with_the_reasons() -> None:
    nothing = tenant(choice=Choice(by=None, instead_of=(("driver", "cgroup v1"),)))
    assert held(look(NOTHING, nothing, now_s=1.0)).reason == "driver: cgroup v1"
    unnamed = tenant(choice=Choice(by=None))
    assert held(look(NOTHING, unnamed, now_s=1.0)).reason == "the policy names nothing that could hold it"


def test_a_weaker_means_says_why_no_stronger_one_was_chosen() -> None:
    watched = tenant(choice=Choice(by="watch", instead_of=(("driver", "cgroup v1"),)))
    assert (held(look(NOTHING, watched, now_s=1.0)).by, held(look(NOTHING, watched, now_s=1.0)).reason) == (
        "watch",
        "driver: cgroup v1",
    )


def test_without_a_verdict_nothing_is_claimed() -> None:
    enforcement = after_verdicts(NOTHING, [tenant()], {}, {}, ESCAPES, 1.0)
    assert held(enforcement) == Hold(by=None, reason="driver: it was not looked at")
    pods = after_verdicts(NOTHING, [tenant(container=None)], {}, {}, ESCAPES, 1.0)
    assert pods.holds == {}


def test_memory_and_compute_stand_apart() -> None:
    enforcement = look(NOTHING, tenant(percent=25), now_s=1.0)
    assert held(enforcement).by == "driver"
    assert enforcement.by_container(Promise.COMPUTE)[POD, "main", GPU].by is None


@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=12))
def test_nothing_is_ever_called_held_that_was_not_verified_at_that_look(looks: list[tuple[bool, bool]]) -> None:
    enforcement, verified_s = NOTHING, None
    for number, (is_kept, was_lifted) in enumerate(looks):
        now_s = float(number)
        problem = None if is_kept else "no"
        enforcement = look(
            enforcement, tenant(), now_s=now_s, problem=problem, repaired=[tenant()] if was_lifted else []
        )
        verified_s = now_s if is_kept else verified_s
        hold = held(enforcement)
        assert (hold.by is not None) is is_kept
        assert hold.verified_s == verified_s
        assert hold.since_s is None or hold.since_s <= now_s


def test_promises_are_counted_by_what_holds_them_and_those_of_pods_as_a_whole_are_not() -> None:
    whole = tenant(container=None)
    looked = look(NOTHING, whole, tenant(percent=25), tenant(OTHER), now_s=1.0)
    assert looked.counts() == {(Promise.MEMORY, "driver"): 2, (Promise.COMPUTE, None): 1}
