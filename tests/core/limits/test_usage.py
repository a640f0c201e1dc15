"""What the process lists cannot tell is not known, and never nothing."""

from __future__ import annotations

from dataclasses import replace

from sharer.core.holders.evidence import GpuProcess, ProcessReading
from sharer.core.inventory import Inventory
from sharer.core.limits.limits import Tenant
from sharer.core.limits.usage import NOT_KNOWN, Usage, Use
from sharer.core.quantities import GIB
from tests.core import evidence
from tests.core.builders import gpu, gpu_uuid, mig, node

A, B = gpu_uuid(0), gpu_uuid(1)
UID, MAIN, SIDE = "0e1f8a3b-0000-4000-8000-00000000000a", "1" * 64, "2" * 64
TWO_GPUS = node(gpu(0), gpu(1))


def process(uuid: str = A, **changes: object) -> GpuProcess:
    """Of the main container, unless it is changed."""
    return replace(evidence.process(UID, on=uuid, container_id=MAIN), **changes)  # type: ignore[arg-type]  # its fields


def usage(*processes: GpuProcess, asked: tuple[str, ...] = (A, B), inventory: Inventory = TWO_GPUS) -> Usage:
    return Usage(evidence.reading(*processes, asked=asked), inventory)


def tenant(*held: str, container_id: str | None = MAIN) -> Tenant:
    return Tenant(uid=UID, container="main", container_id=container_id, held=frozenset(held))


def test_the_processes_of_a_container_add_up_on_each_gpu() -> None:
    found = usage(process(), process(used_bytes=2 * GIB), process(B), process(container_id=SIDE))
    assert found.of(UID, MAIN, A) == Use(known_bytes=3 * GIB)
    assert found.of(UID, MAIN, B) == Use(known_bytes=GIB)
    assert found.of(UID, SIDE, B) == Use(known_bytes=0)
    assert found.of("another", MAIN, A) == Use(known_bytes=0)


def test_without_a_list_nothing_is_known() -> None:
    assert usage(asked=(B,)).of(UID, MAIN, A).unknown == "there is no list of the processes on it"
    assert Usage(None, TWO_GPUS).of(UID, MAIN, A).unknown is not None


def test_a_process_of_unknown_size_makes_its_container_unknown_and_no_other() -> None:
    found = usage(process(used_bytes=None), process(used_bytes=2 * GIB), process(container_id=SIDE))
    assert found.of(UID, MAIN, A) == Use(known_bytes=2 * GIB, unknown="the driver does not say how much process 7 uses")
    assert found.of(UID, SIDE, A) == Use(known_bytes=GIB)


def test_a_process_of_a_pod_in_no_container_may_be_any_containers() -> None:
    found = usage(process(container_id=None))
    assert found.of(UID, MAIN, A).unknown == "which container process 7 is in is not known"
    assert found.of(UID, MAIN, B) == Use(known_bytes=0)
    assert found.of("another", MAIN, A) == Use(known_bytes=0)


def test_a_process_that_cannot_be_attributed_may_be_anybodys() -> None:
    found = usage(process(attributed=False, uid=None, container_id=None, pid=None))
    assert found.of(UID, MAIN, A).unknown == "whose a process is cannot be told"
    assert found.of(UID, MAIN, B) == Use(known_bytes=0)


def test_a_process_of_the_host_is_no_containers() -> None:
    found = usage(process(uid=None, container_id=None))
    assert found.of(UID, MAIN, A) == Use(known_bytes=0)
    assert found.why_not_confined(tenant(B)) is None


def test_a_container_that_is_not_known_uses_an_unknown_amount() -> None:
    assert usage().of(UID, None, A).unknown == NOT_KNOWN
    assert usage().why_not_confined(tenant(A, container_id=None)) == NOT_KNOWN


def test_a_container_is_confined_if_every_list_shows_it_on_its_own_devices_only() -> None:
    assert usage(process()).why_not_confined(tenant(A)) is None
    assert usage(process(), process(B)).why_not_confined(tenant(A)) == f"it uses {B}, of which it holds nothing"
    assert usage(process(), process(B)).why_not_confined(tenant(A, B)) is None
    assert usage(process(), asked=(A,)).why_not_confined(tenant(A)) == f"there is no list of the processes on {B}"


def test_a_process_that_cannot_be_attributed_on_another_gpu_may_be_a_stray() -> None:
    found = usage(process(), process(B, attributed=False, uid=None, container_id=None))
    assert found.why_not_confined(tenant(A)) == f"whose process 7 is cannot be told, on {B}"
    assert found.why_not_confined(tenant(A, B)) is None


def test_a_gpu_that_is_lost_needs_no_list() -> None:
    inventory = node(gpu(0), gpu(1, lost="it has fallen off the bus"))
    assert usage(asked=(A,), inventory=inventory).why_not_confined(tenant(A)) is None


def test_a_gpu_that_has_just_been_lost_takes_nobodys_verdict_on_another() -> None:
    """Its list is the first to miss, seconds before discovery looks again."""
    reading = ProcessReading(processes=(process(),), asked=frozenset({A}), lost=frozenset({B}))
    assert Usage(reading, TWO_GPUS).why_not_confined(tenant(A)) is None
    assert Usage(reading, TWO_GPUS).of(UID, MAIN, B).unknown is not None


def test_lists_of_all_mig_devices_are_a_list_of_their_gpu() -> None:
    one, two, lost = mig(0, "1g.10gb"), mig(1, "1g.10gb"), mig(2, "1g.10gb", lost="deleted")
    inventory = node(gpu(0, mig_enabled=True, mig_devices=(one, two, lost)))
    found = usage(process(one.uuid), asked=(one.uuid, two.uuid), inventory=inventory)
    assert found.why_not_confined(tenant(one.uuid)) is None
    assert found.why_not_confined(tenant(two.uuid)) == f"it uses {one.uuid}, of which it holds nothing"
    assert usage(asked=(one.uuid,), inventory=inventory).why_not_confined(tenant(one.uuid)) is not None


def test_a_process_on_a_gpu_whose_instance_is_not_told_is_no_stray_of_its_instances() -> None:
    one = mig(0, "1g.10gb")
    inventory = node(gpu(0, mig_enabled=True, mig_devices=(one,)))
    assert usage(process(A), asked=(A, one.uuid), inventory=inventory).why_not_confined(tenant(one.uuid)) is None
