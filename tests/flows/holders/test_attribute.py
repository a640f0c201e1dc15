"""Whose the processes on the GPUs are, and what is left open where that cannot be told."""

from __future__ import annotations

import pytest

from sharer.core.errors import NodeError
from sharer.core.holders.evidence import GpuProcess
from sharer.core.ports.holders import ProcessIdentity, RawProcess, RawProcesses
from sharer.flows.holders.attribute import NO_HOST_PIDS, Attributed, attribute
from tests.flows.sources import UUID, SaidBy, of_pod, running


def found(said: SaidBy, *known: str) -> Attributed:
    sources = said.sources()
    return attribute(sources.processes, sources.table, known)


def process(pid: int | None, uid: str | None, *, command: str | None = "python", attributed: bool = True) -> GpuProcess:
    return GpuProcess(
        pid=pid,
        gpu_uuid=UUID,
        used_bytes=2**30,
        command=command,
        uid=uid,
        container_id="f" * 64 if uid else None,
        attributed=attributed,
    )


def test_a_process_has_its_pod_container_and_program() -> None:
    said = SaidBy(processes=running(7, 8), identities={7: of_pod("uid-train"), 8: of_pod(None, "Xorg")})
    assert found(said).reading.processes == (process(7, "uid-train"), process(8, None, command="Xorg"))
    assert found(said).reading.asked == {UUID}
    assert found(said).problem is None


def test_a_process_that_has_ended_meanwhile_is_nobodys() -> None:
    """NVML listed it a moment ago; it must not stand for "somebody unknown"."""
    assert found(SaidBy(processes=running(7))).reading.processes == ()


def test_a_process_that_cannot_be_looked_at_may_be_anybodys_and_the_others_are_known() -> None:
    said = SaidBy(processes=running(7, 8), identities={7: NodeError("process 7: EACCES"), 8: of_pod("uid-train")})
    assert found(said).reading.processes == (
        process(7, None, command=None, attributed=False),
        process(8, "uid-train"),
    )
    assert found(said).problem == "process 7: EACCES"


def test_a_process_of_which_the_driver_gives_no_pid_may_be_anybodys() -> None:
    """gpu-limits §4."""
    nameless = RawProcesses(processes=(RawProcess(pid=None, gpu_uuid=UUID, used_bytes=2**30),), asked=frozenset({UUID}))
    assert found(SaidBy(processes=nameless)).reading.processes == (process(None, None, command=None, attributed=False),)


def test_without_the_hosts_pids_every_process_may_be_anybodys_and_an_empty_list_proves_nothing() -> None:
    said = SaidBy(processes=running(7), identities={7: of_pod("uid-train")}, host_pids=False)
    assert found(said).reading.processes == (process(7, None, command=None, attributed=False),)
    assert found(said).reading.asked == frozenset()
    assert found(said).problem == NO_HOST_PIDS


@pytest.mark.parametrize(("known", "uid"), [(["outer"], "outer"), (["inner"], "inner"), ([], "outer")])
def test_of_nested_clusters_the_one_that_this_kubelet_runs_counts(known: list[str], uid: str) -> None:
    """A pod may run a cluster of its own, and we may be on a node of either."""
    nested = ProcessIdentity(pods=(("outer", "f" * 64), ("inner", "f" * 64)), command="python")
    said = SaidBy(processes=running(7), identities={7: nested})
    assert found(said, *known).reading.processes == (process(7, uid),)
