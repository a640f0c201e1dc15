"""A node that went from policy to policy, with slices that are held, and its report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from sharer.core.change.transition import Listing, step
from sharer.core.holders.evidence import Evidence, GpuProcess, Holder, ProcessReading, SliceKey
from sharer.core.holders.ledger import Entry, Ledger, State
from sharer.core.inventory import Inventory, Topology
from sharer.core.known import About, Known
from sharer.core.offers import Faults, make_offers
from sharer.core.policy.model import MemoryPolicy, Policy
from sharer.core.report.account import report_node
from sharer.core.report.node import NodeReport
from sharer.core.slices.plan import make_plan
from tests.core.builders import gpu_uuid, policy

SHARED = "nvidia.com/gpu.shared"
ABOUT = About(node_name="node-7", version="1.2.3", kernel="6.1.0")
UNLIMITED = MemoryPolicy(limit=None)
NOW_S = 1000.0


def holder(number: int = 1, container: str = "c") -> Holder:
    return Holder(uid=f"uid-{number}", namespace="default", pod=f"train-{number}", container=container)


def key(replica: int, limit_mib: int | None = None, *, index: int = 0, resource: str = SHARED) -> SliceKey:
    limit = "" if limit_mib is None else f"-{limit_mib}"
    return resource, f"{gpu_uuid(index)}::ts-{replica}{limit}"


def held(*keys: SliceKey) -> dict[SliceKey, Entry]:
    """Each held by a pod of its own."""
    return {
        one: Entry(state=State.HELD, owner=holder(number), reason="the kubelet says so")
        for number, one in enumerate(keys, start=1)
    }


def known(
    inventory: Inventory,
    *policies: Policy,
    entries: Mapping[SliceKey, Entry] | None = None,
    faults: Faults | None = None,
    processes: ProcessReading | None = None,
    every_s: float = 10.0,
    **parts: object,
) -> Known:
    """A node that went from policy to policy, with the slices of the end held all the time."""
    ledger = Ledger(entries=entries or {}, evidence=Evidence(processes=processes))
    listing, plan = Listing(), make_plan(inventory, policy())
    for number, wanted in enumerate(policies):
        plan = make_plan(inventory, wanted)
        for passed_s in (0.0, 3.0):
            now_s = NOW_S - every_s * (len(policies) - 1 - number) + passed_s - 3.0
            listing = step(listing, plan, ledger, now_s, patience_s=600.0)
    offers = make_offers(plan, listing, ledger, inventory, faults or {}, Topology())
    whole = Known(inventory=inventory, plan=plan, listing=listing, ledger=ledger, offers=offers, faults=faults or {})
    return replace(whole, **parts)  # type: ignore[arg-type]  # of `Known`


def report(what: Known) -> NodeReport:
    return report_node(what, ABOUT, NOW_S, lambda at_s: f"at {at_s:g}")


def process(
    uid: str | None, used_bytes: int | None, *, index: int = 0, attributed: bool = True, pid: int = 7
) -> GpuProcess:
    return GpuProcess(
        pid=pid,
        gpu_uuid=gpu_uuid(index),
        used_bytes=used_bytes,
        command="python",
        uid=uid,
        container_id=None,
        attributed=attributed,
    )


def reading(*processes: GpuProcess, asked: Iterable[int] = (0,)) -> ProcessReading:
    return ProcessReading(processes=processes, asked=frozenset(gpu_uuid(index) for index in asked))
