"""What must be true of a node's MPS slices, compute modes and supervisor, beside what was done to them."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator

from sharer.core.mps.compute_modes import EXCLUSIVE_PROCESS
from sharer.core.report.node import SliceReport
from tests.faults.mps import DEFAULT_MODE, MpsSide
from tests.faults.policies import MPS, C
from tests.faults.world import World

NOTICED_S = 9.0  # a daemon that has ended: its supervisor looks every 3 s, and so does the agent
DEAF_S = 24.0  # nothing is heard of it: it is believed for 15 s, or asked four questions of 4 s; and then these
HEALTHY_S = (
    24.0  # it is up: a server that must stay for 2 s, a daemon that failed for 10 s (core.mps.service), two looks
)
MAX_THREADS = 12
MAX_FILES = 32


def wrong_mps(world: World, rows: Collection[SliceReport]) -> Iterator[str]:
    """What is not (yet) as it must be. Kubelet and agent run; nothing, where the node has no MPS."""
    mps = world.mps
    if mps is None:
        return
    listed = [row for row in rows if row.resource == MPS and row.listed and row.withdrawn_s is None]
    yield from _offered(mps, [row for row in listed if row.state == "offered"])
    yield from _modes(world, mps, is_wanted=bool(listed))
    yield from _supervisor(mps)


def _offered(mps: MpsSide, free: Collection[SliceReport]) -> Iterator[str]:
    """Free slices can be had only while the daemon serves, and then soon."""
    now_s = time.monotonic()
    healthy = [row.id for row in free if row.healthy]
    if not healthy:
        mps.unnoticed_s = None
    if mps.unnoticed_s is not None:
        yield f"{healthy} were not Unhealthy since the MPS daemon failed {now_s - mps.unnoticed_s:.0f} s ago"
    down_s = 0.0 if mps.down_since_s is None else now_s - mps.down_since_s
    if healthy and down_s > (DEAF_S if mps.is_deaf else NOTICED_S):
        yield f"{healthy} are Healthy, and nobody serves them for {down_s:.0f} s"
    for row in free:
        if mps.is_read_only and not row.healthy and "read-only" not in row.reason:
            yield f"{row.id} is Unhealthy, and nobody says that its folder is read-only: {row.reason}"
    up_s = mps.serves_for_s()
    if up_s > HEALTHY_S:
        for row in free:
            if not row.healthy:
                yield f"{row.id} is Unhealthy, and its daemon is up for {up_s:.0f} s: {row.reason}"


def _modes(world: World, mps: MpsSide, *, is_wanted: bool) -> Iterator[str]:
    """Only what is under MPS is in exclusive compute mode. Who cannot write what it was, does not change it."""
    for gpu in world.gpus:
        mode = world.node.gpus.compute_mode(gpu.uuid)
        if gpu != C and mode != DEFAULT_MODE:
            yield f"{gpu.uuid} is shared by time, and in compute mode {mode}"
        wanted = EXCLUSIVE_PROCESS if is_wanted else DEFAULT_MODE
        if gpu == C and mps.supervisor is not None and not mps.is_read_only and mode != wanted:
            yield f"{gpu.uuid} is in compute mode {mode}, and not in {wanted}"


def _supervisor(mps: MpsSide) -> Iterator[str]:
    if mps.supervisor is not None:
        threads, files = mps.supervisor.threads(), len(mps.supervisor.open_files())
        if threads > MAX_THREADS:
            yield f"sharer mps has {threads} threads"
        if files > MAX_FILES:
            yield f"sharer mps has {files} open files"
