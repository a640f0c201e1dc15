"""What must be true of the files that the agent writes, as soon as it can write them."""

from __future__ import annotations

from collections.abc import Iterator

from sharer.adapters.policy_memory import FILE_NAME
from sharer.core.injection import SLICE_KIND
from sharer.core.report.node import NodeReport
from tests.faults.mps_truth import HEALTHY_S
from tests.faults.policies import MPS
from tests.faults.steps import Place
from tests.faults.world import World, digest


def wrong_files(world: World, report: NodeReport) -> Iterator[str]:
    """What is not (yet) as it must be, or is not told. Kubelet and agent run."""
    yield from _last_good(world)
    if world.has_cdi:
        yield from _specs(world, report)


def _last_good(world: World) -> Iterator[str]:
    """What a restart beside a wrong policy would go back to."""
    if world.in_force != world.wanted or world.spoiled is not None:
        return
    path = world.node.run_dir / FILE_NAME
    kept = path.read_text().partition("\n")[0] if path.exists() else "nothing"
    if digest(world.in_force.text) not in kept:
        if not world.disk_is_full and Place.RUN not in world.places.refusing:
            yield f"policy {world.in_force.name} is in force, and what is kept is {kept}"
        elif world.agent is not None and not world.agent.said("the last good policy cannot be kept"):
            yield f"policy {world.in_force.name} is not kept, and nobody says so"


def _specs(world: World, report: NodeReport) -> Iterator[str]:
    """Whatever a container was given resolves for as long as it may start again."""
    names = world.cdi_names() | _not_wanted(world, report)
    can_be_written = Place.CDI not in world.places.refusing and not world.disk_is_full
    for pod in world.node.kubelet.pods():
        for container in () if pod.phase.terminal or not can_be_written else pod.containers:
            if container.given is not None and (lost := set(container.given.cdi_names) - names):
                yield f"{pod.name}/{container.name} was given {sorted(lost)}, which no CDI spec has"
    missing = [row.id for row in report.slices if row.listed and f"{SLICE_KIND}={row.id}" not in names]
    if missing and can_be_written:
        yield f"{missing} are listed, and no CDI spec has them"
    elif missing and not any("cannot be written" in one.message for one in report.status.warnings):
        yield f"{missing} are listed, no CDI spec has them, and nobody says so"


def _not_wanted(world: World, report: NodeReport) -> set[str]:
    """Specs of MPS slices name their daemon's directories: without it they cannot be written, nor can anybody start."""
    is_up = world.mps is not None and world.mps.serves_for_s() > HEALTHY_S
    return set() if is_up else {f"{SLICE_KIND}={row.id}" for row in report.slices if row.resource == MPS}
