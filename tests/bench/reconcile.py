"""What it costs to bring a large node's ledger and lists up to date, without the sources themselves."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

from sharer.core.change.transition import Listing, step
from sharer.core.holders.evidence import (
    CgroupReading,
    CheckpointEntry,
    CheckpointReading,
    GpuProcess,
    Holder,
    ListReading,
    ProcessReading,
    Reading,
)
from sharer.core.holders.ledger import Ledger, observe_all
from sharer.core.holders.observations import PodPhase, PodSeen, PodsSeen
from sharer.core.inventory import Topology
from sharer.core.offers import make_offers
from sharer.core.policy.model import MemoryPolicy
from sharer.core.slices.plan import make_plan
from tests.core.builders import gpu, node, policy, rule, time_slicing

SLICES, PODS, GPUS = 2000, 250, 8
ROUNDS = 7
_NODE = node(*(gpu(number) for number in range(GPUS)))
_PLAN = make_plan(_NODE, policy(rule(time_slicing(SLICES // GPUS), memory=MemoryPolicy(limit=None))))


def readings(serial: int, ended: int = 0) -> list[Reading]:
    """What every source says when so many of the pods have ended, the first ones."""
    resource = _PLAN.resources[0].name
    ids = [str(one.id) for one in _PLAN.slices()]
    each = SLICES // PODS
    given = {f"{number:08x}-0000-4000-8000-000000000000": number for number in range(PODS)}
    alive = {uid: number for uid, number in given.items() if number >= ended}
    return [
        CheckpointReading(
            serial=serial,
            entries=tuple(
                CheckpointEntry(
                    uid=uid, container="main", resource=resource, ids=tuple(ids[number * each : (number + 1) * each])
                )
                for uid, number in given.items()
            ),
        ),
        CgroupReading(populated=dict.fromkeys(alive, True)),
        ProcessReading(
            processes=tuple(
                GpuProcess(
                    pid=1000 + number,
                    gpu_uuid=ids[number * each].partition("::")[0],
                    used_bytes=2**30,
                    command="python",
                    uid=uid,
                    container_id=None,
                    attributed=True,
                )
                for uid, number in alive.items()
            ),
            asked=frozenset(one.uuid for one in _NODE.gpus),
        ),
        PodsSeen(
            pods={
                uid: PodSeen(uid=uid, cgroup_uid=uid, namespace="default", name=f"pod-{number}", phase=PodPhase.RUNNING)
                for uid, number in alive.items()
            },
            synced_at_s=float(serial),
            resource_version=str(serial),
        ),
        ListReading(
            serial=serial,
            holders={
                (resource, device_id): holder
                for number in alive.values()
                for holder in [Holder(uid=None, namespace="default", pod=f"pod-{number}", container="main")]
                for device_id in ids[number * each : (number + 1) * each]
            },
            pods=frozenset(("default", f"pod-{number}") for number in alive.values()),
        ),
    ]


def reconcile_ms(ended: int) -> float:
    """CPU milliseconds of one reconcile in which so many pods turn out to have ended; the best of some."""
    ledger, listing = Ledger(), Listing()
    for serial in (1, 2):
        ledger = observe_all(ledger, readings(serial), float(serial), quarantine_s=600.0)
        listing = step(listing, _PLAN, ledger, float(serial), patience_s=600.0)
    said = readings(3, ended)

    def reconcile() -> None:
        after = observe_all(ledger, said, 3.0, quarantine_s=600.0)
        if after.entries is not ledger.entries:  # as `flows/offer/offer` does
            make_offers(_PLAN, step(listing, _PLAN, after, 3.0, patience_s=600.0), after, _NODE, Topology())

    return min(_cpu_ms(reconcile) for _ in range(ROUNDS))


def _cpu_ms(work: Callable[[], object]) -> float:
    gc.collect()
    start_s = time.process_time()
    work()
    return (time.process_time() - start_s) * 1000
