"""Fleets to look at: one in which every state occurs, one with names that want to be HTML, a large one."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace

from sharer.core.cluster.account import Selection, report_cluster
from sharer.core.cluster.facts import ClusterFacts, GpuNodeFacts, NodeCapacity, Source
from sharer.core.cluster.pod_asks import Ask, PodAsk
from sharer.core.cluster.report import ClusterReport
from sharer.core.quantities import GIB
from sharer.core.report.node import GpuStatus, HolderReport, HostReport, PolicyReport, ResourceReport, WarningReport
from tests.core.evidence import SHARED

SEEN_AT = "2026-01-01T00:00:00Z"
NVIDIA = "nvidia.com/gpu"


def gpu(index: int, **parts: object) -> GpuStatus:
    uuid = f"GPU-{index:08}-0000-0000-0000-000000000000"
    whole: dict[str, object] = {
        "uuid": uuid, "gpu_uuid": uuid, "index": index, "product": "NVIDIA A100-SXM4-80GB", "mig_index": None,
        "mig_profile": None, "memory_bytes": 80 * GIB, "health": "healthy", "reason": None,
        "strategy": "time-slicing", "resource": SHARED, "slices": 4, "held": 0, "free": 4, "quarantined": 0,
        "draining": 0, "promised_bytes": 80 * GIB, "largest_free_bytes": 20 * GIB, "verified": 0, "not_verified": 0,
        "offers_nothing": None, "waiting": None,
    }  # fmt: skip
    return GpuStatus(**{**whole, **parts})  # type: ignore[arg-type]  # of `GpuStatus`


def holder(device: GpuStatus, replica: int, pod: str, **parts: object) -> HolderReport:
    whole: dict[str, object] = {
        "resource": SHARED, "id": f"{device.uuid}::ts-{replica}-20480", "state": "held", "namespace": "default",
        "pod": pod, "uid": f"uid-{pod}", "container": "main", "promise_bytes": 20 * GIB, "held_by": "driver",
        "verified_at": SEEN_AT, "reason": "the kubelet says so",
    }  # fmt: skip
    return HolderReport(**{**whole, **parts})  # type: ignore[arg-type]  # of `HolderReport`


def resource(gpus: tuple[GpuStatus, ...]) -> ResourceReport:
    return ResourceReport(
        name=SHARED,
        strategy="time-slicing",
        slices=sum(one.slices for one in gpus),
        held=sum(one.held for one in gpus),
        free=sum(one.free for one in gpus),
        over_by=0,
        quarantined=sum(one.quarantined for one in gpus),
        draining=sum(one.draining for one in gpus),
        unhealthy=0,
        waiting=0,
    )


def published(
    name: str,
    gpus: tuple[GpuStatus, ...],
    holders: tuple[HolderReport, ...] = (),
    warnings: tuple[WarningReport, ...] = (),
) -> GpuNodeFacts:
    policy = PolicyReport(
        wanted=None, wanted_hash=None, in_force="configmap gpu/policies key a100", hash="a" * 64, refused=None,
        unread=None, staged=None,
    )  # fmt: skip
    return GpuNodeFacts(
        name=name,
        lease=None,
        observed_at=SEEN_AT,
        agent="1.2.3",
        node=HostReport(driver="615.1", kernel="6.12", cgroup="v2", injection="cdi", injection_reason=None),
        policy=policy,
        resources=(resource(gpus),),
        gpus=gpus,
        holders=holders,
        holders_omitted=0,
        warnings=warnings,
    )


def every_state() -> ClusterReport:
    """A node with slices in every state, a cordoned one, and one without an agent."""
    first = gpu(0, held=3, free=1, draining=1, quarantined=1, verified=1, not_verified=2, used_bytes=3 * GIB)
    second = gpu(1, held=1, free=0, health="unhealthy", reason="XID 79", promised_bytes=20 * GIB, largest_free_bytes=0)
    unheld = {"held_by": None, "verified_at": None}
    why = "the kubelet says so; not held to its promise: no limit of the driver"
    holders = (
        holder(first, 0, "train-1"),
        holder(first, 1, "train-2", **unheld, reason=why),
        holder(first, 2, "train-3", **unheld, reason=why, namespace="team-b"),
        holder(first, 3, "gone", **unheld, state="quarantined", reason="what is left of gone is quarantined"),
        holder(second, 0, "train-4", **unheld),
    )
    leak = WarningReport(reason="leaked", message="process 7 of gone uses 3 GiB", since=None)
    nodes = (
        NodeCapacity(name="every-state", ready=True, capacity={SHARED: 8}, allocatable={SHARED: 4}),
        NodeCapacity(name="cordoned-1", ready=True, cordoned=True, capacity={SHARED: 8}, allocatable={SHARED: 8}),
        NodeCapacity(
            name="t4-1", ready=True, labels={"nvidia.com/gpu.product": "Tesla-T4"}, capacity={NVIDIA: 8},
            allocatable={NVIDIA: 8},
        ),
    )  # fmt: skip
    pods = tuple(
        PodAsk(
            node=node, namespace="default", name=name, uid=f"uid-{name}", phase="Running",
            deleting=False, asks=(Ask(resource=asked, requested=amount, running=amount),),
        )
        for node, name, asked, amount in (("every-state", "train-1", SHARED, 4), ("t4-1", "old", NVIDIA, 5))
    )  # fmt: skip
    facts = ClusterFacts(
        nodes=Source(items=nodes),
        pods=Source(items=pods),
        gpu_nodes=Source(
            items=(
                published("every-state", (first, second), holders, (leak,)),
                published("cordoned-1", (gpu(0), gpu(1))),
            )
        ),
        leases=Source(items=None, problem="403 Forbidden: no right to list leases"),
    )
    return report_cluster(facts, Selection(), cluster="https://api.example.com:6443", observed_at=SEEN_AT)


HOSTILE = (
    "</script><script>document.title='in'</script>",
    "--><img src=x onerror=\"document.title='in'\">",
    "'\"><svg onload=document.title='in'>",
    "{{script}} ${document.title='in'} \u2028\u2029\u0000\ud7ff <b>&lt;",
    "__proto__",
)


_WORDS_OF_OURS = ("ready", "cordoned", "held", "quarantined", "draining", "unhealthy", "leaked")


def hostile(report: ClusterReport) -> ClusterReport:
    """The report with every text in it turned against the page that shows it; equal ones are still equal."""
    found = _turned(report, {word: word for word in _WORDS_OF_OURS}, itertools.cycle(HOSTILE))
    assert isinstance(found, ClusterReport)
    return found


def _turned(value: object, known: dict[str, str], words: Iterator[str]) -> object:
    if isinstance(value, str):
        return known.get(value) or known.setdefault(value, f"{next(words)}{value}")
    if isinstance(value, tuple):
        return tuple(_turned(one, known, words) for one in value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{one.name: _turned(getattr(value, one.name), known, words) for one in fields(value)})
    return value


def many(report: ClusterReport, nodes: int) -> ClusterReport:
    """The first node of a report, so many times."""
    first = report.nodes[0]
    copies = tuple(replace(first, name=f"node-{number:05}") for number in range(nodes))
    return replace(report, nodes=copies, notes=())
