"""What is worth an Event, on which object, in which words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from sharer.core.change.rollout import PolicyInForce
from sharer.core.enforcement import Enforcement, Hold
from sharer.core.holders.evidence import Evidence
from sharer.core.holders.findings import Finding, FindingKind
from sharer.core.holders.ledger import Entry, Ledger, State
from sharer.core.holders.observations import PodPhase, PodSeen
from sharer.core.limits.excess import Excess
from sharer.core.policy.enforcers import Promise
from sharer.core.quantities import GIB
from sharer.core.tell.news import News, Reason, find_news, recovered
from tests.core.builders import gpu, gpu_uuid, mig, node
from tests.core.evidence import held, holder, key, pod, seen

A, B = gpu_uuid(0), gpu_uuid(1)
JOB = pod("train-1", uid="uid-1")
NOT_HELD = Hold(by=None, reason="driver: no limit is in force")
OVER = Excess(
    key=(("uid-1", "c", "1" * 64), A),
    used_bytes=30 * GIB,
    promise_bytes=20 * GIB,
    since_s=0.0,
    readings=2,
    last_s=5.0,
)


def ledger(entries: Mapping[tuple[str, str], Entry] | None = None, *pods: PodSeen) -> Ledger:
    return Ledger(entries=entries or {}, evidence=Evidence(pods=seen(*pods)))


def find(
    *,
    policy: PolicyInForce | None = None,
    book: Ledger | None = None,
    faults: Mapping[str, str] | None = None,
    findings: tuple[Finding, ...] = (),
    holds: Mapping[str, Hold] | None = None,
    promise: Promise = Promise.MEMORY,
    excesses: tuple[Excess, ...] = (),
) -> list[News]:
    """`holds`: of container c of pod 1, by device."""
    return list(
        find_news(
            inventory=node(gpu(0, mig_devices=(mig(3, "1g.10gb"),)), gpu(1)),
            policy=policy or PolicyInForce(),
            ledger=book or ledger(held(key(0), key(0, index=1)), JOB),
            faults=faults or {},
            findings=findings,
            enforcement=Enforcement(
                holds={(("uid-1", "c", "1" * 64), promise, uuid): hold for uuid, hold in (holds or {}).items()}
            ),
            excesses=excesses,
        )
    )


def only(found: list[News]) -> News:
    (news,) = found
    return news


def test_a_node_on_which_all_is_well_has_no_news() -> None:
    assert find(holds={A: Hold(by="driver", reason=None)}) == []


# On the node.


def test_a_refused_policy_is_news_of_the_node() -> None:
    news = only(find(policy=PolicyInForce(refused="policy.yaml:3:1: slices is 0")))
    assert (news.reason, news.pod, news.is_warning) == (Reason.POLICY_REFUSED, None, True)
    assert news.message == "policy.yaml:3:1: slices is 0"


def test_each_gpu_at_fault_is_news_with_its_number_and_reason() -> None:
    found = find(faults={A: "XID 79 (GPU has fallen off the bus)", B: "it is lost"})
    assert [news.about for news in found] == [A, B]
    assert found[0].message == f"GPU 0, {A}, is at fault: XID 79 (GPU has fallen off the bus); its slices are Unhealthy"


def test_a_mig_device_at_fault_is_named_as_one() -> None:
    uuid = mig(3, "1g.10gb").uuid
    news = only(find(faults={uuid: "XID 94"}))
    assert news.message.startswith(f"MIG device 3 of GPU 0, {uuid}, is at fault")


def test_a_recovery_is_good_news_and_none_of_a_gpu_that_is_not_there() -> None:
    news = only(list(recovered(A, node(gpu(0)))))
    assert (news.reason, news.is_warning, news.message) == (
        Reason.GPU_RECOVERED, False, f"GPU 0, {A}, is healthy again",
    )  # fmt: skip
    assert list(recovered(B, node(gpu(0)))) == []


def test_quarantined_slices_are_one_news_a_gpu_however_many_they_are() -> None:
    kept = Entry(state=State.QUARANTINED, reason="its owner has ended, and something of it still runs")
    many = {key(replica): kept for replica in range(40)} | {key(0, index=1): kept}
    found = find(book=ledger(many))
    assert [(news.reason, news.about) for news in found] == [
        (Reason.SLICE_QUARANTINED, A), (Reason.SLICE_QUARANTINED, B),
    ]  # fmt: skip
    assert found[0].message.endswith("are in quarantine: 40 × its owner has ended, and something of it still runs")
    assert found[0].lasting_s > 0


def test_another_plugin_is_news_of_the_node_for_each_gpu() -> None:
    rival = Finding(kind=FindingKind.CONTESTED, message="another plugin offers it", cure="remove it", gpu_uuid=A)
    news = only(find(findings=(rival,)))
    assert (news.reason, news.pod, news.about) == (Reason.RIVAL_PLUGIN, None, A)
    assert news.message == "another plugin offers it; remove it"


# On pods.


def test_a_container_that_nothing_holds_is_news_of_its_pod_once_for_all_its_gpus() -> None:
    news = only(find(holds={A: NOT_HELD, B: NOT_HELD}))
    assert (news.reason, news.pod, news.is_warning) == (Reason.LIMIT_NOT_ENFORCED, JOB, True)
    assert news.message == (
        f"container c is not held to the memory it was promised on {A}, {B}: driver: no limit is in force"
    )
    assert news.lasting_s > 0  # a start is no news


def test_a_share_of_the_sms_that_nothing_holds_is_news_as_well() -> None:
    news = only(find(holds={A: NOT_HELD}, promise=Promise.COMPUTE))
    assert news.message.startswith("container c is not held to the compute it was promised")


def test_who_is_above_its_promise_is_told_for_that_and_not_twice() -> None:
    news = only(find(holds={A: NOT_HELD}, excesses=(OVER,)))
    assert (news.reason, news.pod) == (Reason.OVER_PROMISE, JOB)
    assert news.message == f"container c uses more of {A} than the 20 GiB it was promised"
    patient = only(find(excesses=(replace(OVER, evict_after_s=60.0),)))
    assert patient.message.endswith("; it is evicted after 1m of that")


def test_one_reading_above_a_promise_is_no_news() -> None:
    assert find(excesses=(replace(OVER, readings=1),)) == []


def test_the_news_is_the_same_whatever_is_used_just_now() -> None:
    first, second = (only(find(excesses=(replace(OVER, used_bytes=used * GIB),))) for used in (30, 31))
    assert first == second


def test_a_container_without_what_it_asks_for_is_news_of_its_pod() -> None:
    finding = Finding(
        kind=FindingKind.UNSERVED,
        message="it was given none",
        cure="delete it",
        uid="uid-1",
        container="c",
        resource="r",
    )
    news = only(find(findings=(finding,)))
    assert (news.reason, news.pod, news.about) == (Reason.UNSERVED, JOB, "c r")


@pytest.mark.parametrize("pods", [(), (replace(JOB, phase=PodPhase.FAILED),)], ids=["unknown", "ended"])
def test_a_pod_that_the_api_does_not_name_or_that_has_ended_is_told_nothing(pods: tuple[PodSeen, ...]) -> None:
    assert find(book=ledger(held(key(0)), *pods), holds={A: NOT_HELD}, excesses=(OVER,)) == []


def test_a_container_that_holds_nothing_any_more_is_no_news() -> None:
    """The checkpoint names init containers for as long as their pod lives."""
    other = {key(0): Entry(state=State.HELD, owner=holder(1, "app"), reason="")}
    assert find(book=ledger(other, JOB), holds={A: NOT_HELD}) == []


def test_the_event_of_a_static_pod_is_on_its_mirror() -> None:
    mirror = replace(JOB, uid="mirror")
    assert only(find(book=ledger(held(key(0)), mirror), holds={A: NOT_HELD})).pod == mirror
