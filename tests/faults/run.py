"""One seed: let the sequence happen, and after each burst wait until the node is as it must be."""

from __future__ import annotations

import contextlib
import io
import itertools
import multiprocessing
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field

from sharer.cli.report.command import read_report
from sharer.core.errors import NodeError
from sharer.core.report.node import NodeReport
from sharer.simulation.kubelet import KubeletPanic
from tests.faults.history import wrong_moments
from tests.faults.opening import open_world
from tests.faults.sequence import Burst, Sequence, sequence
from tests.faults.truth import refusals, truth_of, unfinished, wrong
from tests.faults.world import API_S, FORBIDDEN_S, SETTLING_S, World

LOOK_S = 0.04  # between two looks at the report; nobody tells when to look again
BUSY = 2.5  # so much longer than the stated lag a machine that is busy with other seeds may take
UNCLAIMED_S = 62.0  # an Allocate that came to nothing holds its slice so long
DROPPED_S = 40.0  # withdrawn IDs are dropped half a minute later
REST_S = 1.5
MOST_BUSY = 0.25  # of a processor, at rest; measured: 0.02
LOG_LINES = 40


class Broken(Exception):  # noqa: N818
    """A rule does not hold."""


@dataclass(slots=True, kw_only=True)
class Outcome:
    """How a seed went."""

    seed: int
    lines: list[str] = field(default_factory=list)  # what was done, and how long it took to settle
    problem: str | None = None
    lags_s: list[float] = field(default_factory=list)
    took_s: float = 0.0

    @property
    def slowest_s(self) -> float:
        """The longest time to settle."""
        return max(self.lags_s, default=0.0)


def run(wanted: Sequence, tell: Callable[[str], None] = lambda _: None) -> Outcome:
    """Run a sequence. `tell` hears each line as it comes."""
    outcome = Outcome(seed=wanted.seed)
    began_s = time.monotonic()

    def note(line: str) -> None:
        outcome.lines.append(line)
        tell(line)

    try:
        with open_world(
            wanted.seed,
            with_api=wanted.with_api,
            backend=wanted.backend,
            clock_jumps=wanted.clock_jumps,
            with_cdi=wanted.with_cdi,
            mps=wanted.mps,
        ) as world:
            try:
                _happen(world, wanted, outcome, note)
            except (Broken, AssertionError, KubeletPanic, TimeoutError) as problem:
                outcome.problem = "\n".join([f"{type(problem).__name__}: {problem}", *_evidence(world)])
                world.node.kubelet.take_panics()
    except Exception:  # noqa: BLE001 - one seed's boundary: the others go on, and this one is told in full
        outcome.problem = outcome.problem or traceback.format_exc()  # of the node's own end, say
    outcome.took_s = time.monotonic() - began_s
    return outcome


def run_many(seeds: Iterable[int], bursts: int, jobs: int, *, until_s: float = float("inf")) -> Iterator[Outcome]:
    """These seeds, so many at a time, each in a process of its own. As they end. None begins after `until_s`."""
    context = multiprocessing.get_context("spawn")  # gRPC does not survive a fork
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        waiting, running = iter(seeds), set[Future[Outcome]]()
        while True:
            while len(running) < jobs and time.monotonic() < until_s and (seed := next(waiting, None)) is not None:
                running.add(pool.submit(run_quietly, seed, bursts))
            if not running:
                return
            done, running = wait(running, return_when=FIRST_COMPLETED)
            yield from (one.result() for one in done)


def run_quietly(seed: int, bursts: int) -> Outcome:
    """The sequence of a seed. What the node prints at its end goes nowhere."""
    with contextlib.redirect_stdout(io.StringIO()):
        return run(sequence(seed, bursts))


def _happen(world: World, wanted: Sequence, outcome: Outcome, note: Callable[[str], None]) -> None:
    api = "with" if wanted.with_api else "without"
    clock = "a clock that jumps" if wanted.clock_jumps else "the true time"
    means = f"limits by {wanted.backend.name}, {'CDI' if wanted.with_cdi else 'device nodes'}, {wanted.mps.value}"
    note(f"seed {wanted.seed}: {api} the API, {clock}, {means}, {len(wanted.bursts)} bursts")
    world.start()
    _settle(world, outcome, note)
    numbers = itertools.count(1)
    for burst in wanted.bursts:
        _burst(world, numbers, burst, outcome, note)
    note("end: everything is repaired, then every pod ends")
    world.repair_everything()
    _settle(
        world, outcome, note, more_s=0.0 if world.api is None else FORBIDDEN_S if world.api.was_forbidden else API_S
    )
    world.empty()
    _settle(world, outcome, note)
    _await(world, lambda report: unfinished(world, report, dropped=False), SETTLING_S + UNCLAIMED_S)
    if wanted.waits_for_drops:
        _await(world, lambda report: unfinished(world, report, dropped=True), UNCLAIMED_S + DROPPED_S)
    _check_rest(world)
    if world.mps is not None:
        world.mps.end()
    _check_moments(world)
    world.node.check()


def _burst(world: World, numbers: Iterator[int], burst: Burst, outcome: Outcome, note: Callable[[str], None]) -> None:
    for step in burst:
        note(f"{next(numbers):3}. {step}")
        world.look()
        world.do(step)
        world.note_tenants()
        if world.mirror is not None:
            world.mirror.follow()
    _settle(world, outcome, note)
    if found := list(refusals(world)):
        raise Broken("\n".join(found))


def _settle(world: World, outcome: Outcome, note: Callable[[str], None], *, more_s: float = 0.0) -> None:
    """Wait until all is as it must be. While something is down, nothing can settle: only look that the others live."""
    if (down := _down(world)) is not None:
        note(f"     ({down})")
        _check_panics(world)
        return
    began_s = time.monotonic()
    _await(world, lambda report: wrong(world, report), world.lag_s() + more_s)
    lag_s = time.monotonic() - began_s
    outcome.lags_s.append(lag_s)
    note(f"     settled after {lag_s:.2f} s")
    _check_moments(world)


def _down(world: World) -> str | None:
    """What keeps the node from settling; None: nothing."""
    if world.agent is None:
        return "the agent is down"
    if world.cannot_register:
        return "the agent cannot register"
    if world.driver.hangs:
        return "the driver hangs"
    return None if world.node.kubelet.running else "the kubelet is down"


def _await(world: World, missing: Callable[[NodeReport], list[str]], within_s: float) -> None:
    """Wait until nothing is missing any more. Raises Broken with what is."""
    until_s = time.monotonic() + within_s * BUSY
    found = ["there is no report"]
    while True:
        _check_panics(world)
        world.look()
        if world.mirror is not None:
            world.mirror.follow()
        try:
            found = missing(read_report(world.node.run_dir))
        except NodeError as error:
            found = [str(error)]
        if not found:
            return
        if time.monotonic() > until_s:
            raise Broken(f"not within {within_s * BUSY:.0f} s:\n" + "\n".join(found))
        threading.Event().wait(LOOK_S)


def _check_rest(world: World) -> None:
    """An agent with nothing to do does nothing."""
    assert world.agent is not None
    before_s = world.agent.cpu_s()
    threading.Event().wait(REST_S)
    busy = (world.agent.cpu_s() - before_s) / REST_S
    if busy > MOST_BUSY:
        raise Broken(f"the agent has nothing to do, and takes {busy:.0%} of a processor")


def _check_panics(world: World) -> None:
    if panics := world.node.kubelet.take_panics():
        raise panics[0]
    if world.agent is not None and not world.agent.running:
        raise Broken("the agent has ended")
    if world.mps is not None and world.mps.supervisor is not None and not world.mps.supervisor.running:
        raise Broken("sharer mps has ended")


def _check_moments(world: World) -> None:
    if found := list(wrong_moments(world.node.kubelet.streams())):
        raise Broken("\n".join(found[:5]))
    supervisors = [] if world.mps is None else world.mps.supervisors
    if any("Traceback" in one.log for one in (*world.node.agents, *supervisors)):
        raise Broken("a traceback in a log")


def _evidence(world: World) -> list[str]:
    """What helps to find out why."""
    lines = ["", "-- the last report"]
    try:
        report = read_report(world.node.run_dir)
    except NodeError as error:
        lines.append(str(error))
    else:
        lines += [f"{row}" for row in report.slices]
        lines += [f"{row}" for row in report.status.holders]
        lines += [f"{row}" for row in report.status.gpus]
        lines += [f"{row}" for row in report.sources]
        lines.append(f"{report.status.policy}")
    truth = truth_of(world.node.kubelet)
    lines += ["", "-- the kubelet"]
    lines += [f"{key}: {sorted(who)}" for key, who in sorted(truth.owners.items())]
    lines += [
        f"{pod.namespace}/{pod.name} {pod.uid} {pod.phase} {pod.message}"
        + "".join(f"\n    {one.name} {one.state.value} {dict(one.ids)} {one.message}" for one in pod.containers)
        for pod in world.node.kubelet.pods()
    ]
    lines += [f"remnant {one.name} {one.uid}" for one in world.node.kubelet.remnants()]
    for number, agent in enumerate(world.node.agents):
        lines += ["", f"-- the log of agent {number}", *agent.lines[-LOG_LINES:]]
    for number, supervisor in enumerate(() if world.mps is None else world.mps.supervisors):
        lines += ["", f"-- the log of supervisor {number}", *supervisor.lines[-LOG_LINES:]]
    return lines
