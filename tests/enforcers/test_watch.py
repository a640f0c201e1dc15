"""Watching says what the process lists show, and never that something is fine which they do not show."""

from __future__ import annotations

from sharer.core.device_id import DeviceId
from sharer.core.edits import ContainerEdits, NodeFacts
from sharer.core.grant import make_grant
from sharer.core.limits.limits import MemoryBound, Tenant
from sharer.core.limits.usage import Usage
from sharer.core.policy.enforcers import Choice, Promise
from sharer.core.policy.model import MemoryPolicy
from sharer.core.quantities import GIB
from sharer.core.slices.cut import Target
from sharer.enforcers.watch import WatchEnforcer
from tests.core.builders import gpu, gpu_uuid, node
from tests.core.evidence import process, reading
from tests.enforcers.out_of_reach import NOTHING

A = gpu_uuid(0)
ENFORCER = WatchEnforcer(NOTHING)
BOUND = MemoryBound(uuid=A, at_least_bytes=GIB, at_most_bytes=GIB, policy=MemoryPolicy(), choice=Choice(by="watch"))
MAIN = Tenant(uid="p", container="main", container_id="1" * 64, held=frozenset({A}), memory=(BOUND,))


def problem(*used_bytes: int | None, asked: bool = True, tenant: Tenant = MAIN) -> str | None:
    processes = (process("p", used, container_id="1" * 64) for used in used_bytes)
    lists = reading(*processes, asked=[A] if asked else [])
    verdicts = ENFORCER.verify([tenant], Usage(lists, node(gpu(0))))
    return verdicts[tenant.key, Promise.MEMORY, A].problem


def test_a_container_that_keeps_its_promise_is_held() -> None:
    assert problem(GIB // 2, GIB // 2) is None
    assert problem() is None


def test_a_container_above_it_is_not_even_if_some_of_its_use_is_unknown() -> None:
    assert problem(GIB, 1) == "it uses more than the 1 GiB it was promised"
    assert problem(2 * GIB, None) == "it uses more than the 1 GiB it was promised"


def test_what_is_not_known_is_never_fine() -> None:
    assert problem(None) == "what it uses is not known: the driver does not say how much process 7 uses"
    assert problem(asked=False) == "what it uses is not known: there is no list of the processes on it"
    nowhere = Tenant(uid="p", container="main", held=frozenset({A}), memory=(BOUND,))
    assert problem(tenant=nowhere) == "what it uses is not known: which cgroup is its own is not known"


def test_it_works_on_any_gpu_and_changes_nothing() -> None:
    assert ENFORCER.available(Target(gpu=gpu(0), mig=None)) is None
    assert ENFORCER.edits(make_grant([DeviceId.parse(f"{A}::ts-0-1024")]), NodeFacts(injection=())) == ContainerEdits()
    assert (ENFORCER.apply([MAIN]), ENFORCER.release([MAIN])) == ({}, None)


def test_a_pod_as_a_whole_is_not_watched() -> None:
    assert ENFORCER.verify([Tenant(uid="p", container=None, memory=(BOUND,))], Usage(None, None)) == {}
