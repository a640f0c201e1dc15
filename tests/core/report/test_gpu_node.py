"""What is published of a node: the NodeReport's status without what changes by itself, and of a bounded size."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sharer.core.change.rollout import PolicyInForce
from sharer.core.enforcement import Hold
from sharer.core.holders.findings import Finding, FindingKind
from sharer.core.holders.ledger import Entry, Remnant, State
from sharer.core.known import Known
from sharer.core.policy.model import Mig
from sharer.core.quantities import GIB
from sharer.core.report.gpu_node import GpuNode, make_gpu_node
from sharer.core.report.gpu_node_size import MOST_BYTES, MOST_HOLDERS, MOST_WARNINGS, size_bytes
from tests.core.builders import gpu, gpu_uuid, mig, node, policy, rule, time_slicing
from tests.core.evidence import SHARED, held, holder, key, process, reading
from tests.core.nodes import ABOUT, NOW_S, UNLIMITED, known, report
from tests.core.report.sliced import crowded, sliced

LATER_S = NOW_S + 3600.0


def stamp(at_s: float) -> str:
    return f"at {at_s:g}"


def publish(what: Known, before: GpuNode | None = None, now_s: float = NOW_S) -> GpuNode:
    return make_gpu_node(what, ABOUT, before, now_s, stamp)


def fields(what: Known) -> Any:  # JSON
    return json.loads(json.dumps(publish(what).status_fields()))


def found(kind: FindingKind, message: str, **more: Any) -> Finding:
    return Finding(kind=kind, message=message, cure="do this", **more)


# ---- the same schema as the NodeReport's


def test_it_says_what_the_node_report_says_but_for_used_bytes() -> None:
    what = replace(sliced(holders=2), ledger=replace(sliced(holders=2).ledger))
    told = report(what)
    published = fields(what)

    def camel(value: Any) -> Any:
        if isinstance(value, dict):
            return {
                "".join([first, *(word.capitalize() for word in rest)]): camel(inner)
                for name, inner in value.items()
                for first, *rest in [name.split("_")]
                if name != "used_bytes"
            }
        return [camel(one) for one in value] if isinstance(value, list) else value

    expected = camel(msgspec.json.decode(msgspec.json.encode(told.status)))
    assert {**published, "summary": None} == {**expected, "summary": None}


def test_no_used_bytes_are_in_it_at_any_depth() -> None:
    """Memory in use changes all the time; a fleet that told of it would never be silent."""
    entries = held(key(0))
    what = known(node(gpu(0)), policy(time_slicing(2)), entries=entries, processes=reading(process("uid-1", 5 * GIB)))
    assert report(what).status.gpus[0].used_bytes == 5 * GIB
    text = json.dumps(fields(what))
    assert "usedBytes" not in text
    assert str(5 * GIB) not in text


def test_what_is_not_known_is_null() -> None:
    published = fields(Known())
    assert published["node"]["driver"] is None
    assert published["summary"] == {
        "gpus": None, "products": None, "resources": "", "slices": 0, "held": 0, "free": 0, "quarantined": 0,
        "draining": 0, "unhealthy": 0, "policy": None, "state": "driver does not answer, no policy",
    }  # fmt: skip


# ---- nothing changes by itself


def test_a_node_on_which_nothing_happens_stays_the_same_object_of_the_same_time() -> None:
    what = sliced(holders=1)
    first = publish(what)
    assert publish(what, first, LATER_S) is first
    assert publish(sliced(holders=2), first, LATER_S).status.observed_at == stamp(LATER_S)


def test_more_memory_in_use_is_no_change() -> None:
    def using(used_bytes: int) -> Known:
        where = gpu_uuid(0)
        message = (
            f"process 7 (python) uses {used_bytes // GIB} GiB of {where}, and belongs to the host and not to a pod"
        )
        foreign = found(FindingKind.FOREIGN, message, gpu_uuid=where, pid=7, used_bytes=used_bytes)
        over = found(FindingKind.OVER_PROMISE, "container c uses more", gpu_uuid=where, uid="1", used_bytes=used_bytes)
        return replace(sliced(holders=1), findings=(foreign, over))

    first = publish(using(3 * GIB))
    assert publish(using(4 * GIB), first, LATER_S) is first
    assert first.status.warnings[0].message.startswith("process 7 (python) uses memory of GPU-")


def test_a_limit_that_is_seen_in_force_again_and_again_is_no_change() -> None:
    """`verifiedAt` is since when, not when last: each look would otherwise be a write."""

    def looked(verified_s: float) -> Known:
        hold = Hold(by="driver", reason=None, since_s=900.0, verified_s=verified_s)
        return replace(sliced(holders=1), holds={("uid-1", "c", gpu_uuid(0)): hold})

    first = publish(looked(1000.0))
    (only,) = first.status.holders
    assert (only.held_by, only.verified_at) == ("driver", stamp(900.0))
    assert publish(looked(1010.0), first, LATER_S) is first


def test_a_warning_says_since_when_it_is_there() -> None:
    rival = found(FindingKind.CONTESTED, "another plugin")
    first = publish(replace(sliced(), findings=(rival,)))
    later = publish(replace(sliced(), findings=(rival, found(FindingKind.UNSERVED, "no slice"))), first, LATER_S)
    assert [one.since for one in first.status.warnings] == [stamp(NOW_S)]
    assert [one.since for one in later.status.warnings] == [stamp(NOW_S), stamp(LATER_S)]


@pytest.mark.parametrize(
    ("change", "is_fleetwide"),
    [
        ({"policy": PolicyInForce(refused="no")}, True),
        ({"inventory": replace(node(gpu(0)), driver_version="999")}, True),
        ({"faults": {gpu_uuid(0): "XID 79"}}, False),
    ],
)
def test_what_the_whole_fleet_may_say_at_once_is_told_apart(change: dict[str, Any], is_fleetwide: bool) -> None:
    """P33."""
    first = publish(sliced())
    after = publish(replace(sliced(), **change), first)
    assert after is not first
    assert after.is_fleet_news(first) is is_fleetwide


# ---- one counting rule, and one line for kubectl


def test_its_summary_adds_up_what_the_resources_say() -> None:
    """P38: more held than healthy never shows as a negative or a huge number."""
    what = replace(sliced(gpus=2, holders=6), faults={gpu_uuid(0): "XID 79"})
    published = fields(what)
    summary, (resource,) = published["summary"], published["resources"]
    for name in ("slices", "held", "free", "quarantined", "draining", "unhealthy"):
        assert summary[name] == resource[name] >= 0
    assert (summary["slices"], summary["held"], summary["unhealthy"]) == (8, 6, 4)
    assert summary["state"] == "no policy, 1 unhealthy, 2 over"


def test_kubectl_is_given_products_as_one_text() -> None:
    """`.gpus[*].product` would print the first one only (api-server-facts §3)."""
    one = known(node(gpu(0), gpu(1)), policy())
    assert publish(one).summary.products == "NVIDIA A100-SXM4-80GB"
    both = known(node(gpu(0), gpu(1), gpu(2, product="NVIDIA T4"), gpu(3, product=None)), policy())
    assert publish(both).summary.products == "2x NVIDIA A100-SXM4-80GB, 1x NVIDIA T4, 1x unknown"


@pytest.mark.parametrize(
    ("source", "name"),
    [("configmap gpu/policies key a100", "a100"), ("/etc/sharer/policy.yaml", "/etc/sharer/policy.yaml")],
)
def test_a_policy_is_called_by_its_key_or_its_file(source: str, name: str) -> None:
    standing = PolicyInForce(policy=replace(policy(), source=source))
    assert publish(replace(sliced(), policy=standing)).summary.policy == name


def test_its_state_is_ok_only_if_nothing_is_to_be_looked_at() -> None:
    good = replace(sliced(holders=2), policy=PolicyInForce(policy=policy()))
    assert publish(good).summary.state == "ok"
    leaked = found(FindingKind.LEAKED, "a process")
    worse = replace(good, findings=(leaked, leaked), driver_problem="it hangs")
    assert publish(worse).summary.state == "driver does not answer, 2 leaked"


# ---- size


def test_160_holders_on_16_gpus_are_all_in_it_and_within_64_kib() -> None:
    hold = Hold(by="driver", reason=None, since_s=900.0, verified_s=1000.0)
    what = crowded(160, "training-job-of-some-team-7d9f8b6c5d")
    owners = [(entry.owner, one[1]) for one, entry in what.ledger.entries.items()]
    holds = {(str(one.uid), str(one.container), id_.partition("::")[0]): hold for one, id_ in owners if one is not None}
    published = publish(replace(what, holds=holds)).status_fields()
    assert len(published["holders"]) == 160  # type: ignore[arg-type]  # a list
    assert published["holdersOmitted"] == 0
    assert 40_000 < size_bytes(published) <= MOST_BYTES


def test_more_than_160_holders_are_counted_and_those_to_look_at_come_first() -> None:
    what = crowded(192, "p")
    first, *_, last = what.ledger.entries
    remnant = Remnant(holder=replace(holder(), uid="gone"), since_s=0.0, known=True)
    quarantined = Entry(state=State.QUARANTINED, remnants=(remnant,), reason="something of it still runs")
    entries = {**what.ledger.entries, last: quarantined}
    status = publish(replace(what, ledger=replace(what.ledger, entries=entries))).status
    assert (len(status.holders), status.holders_omitted) == (MOST_HOLDERS, 32)
    assert status.holders[0].id == first[1]
    assert (status.holders[-1].id, status.holders[-1].uid) == (last[1], "gone")


def repeated(character: str, count: int) -> str:
    return character * count


text = st.builds(repeated, st.characters(), st.integers(0, 5000))  # a control character takes six bytes, an emoji four
findings = st.builds(found, st.sampled_from(FindingKind), text)


def many_migs(gpus: int, each: int = 7) -> Known:
    """GPUs cut into MIG devices, each of which is held."""
    made = (
        gpu(index, mig_enabled=True, mig_devices=tuple(mig(index * each + n, "1g.10gb") for n in range(each)))
        for index in range(gpus)
    )
    what = known(node(*made), policy(rule(Mig(), memory=UNLIMITED)))
    entries = held(*((resource.name, str(one.id)) for resource in what.plan.resources for one in resource.slices))
    return replace(what, ledger=replace(what.ledger, entries=entries))


@settings(max_examples=80, deadline=None)
@given(
    shape=st.sampled_from([lambda holders, pod: crowded(holders, "p" * pod), lambda *_: many_migs(16)]),
    holders=st.integers(0, 192),
    pod=st.integers(1, 240),
    reason=text,
    fault=text,
    refused=text,
    warnings=st.lists(findings, max_size=60),
)
def test_it_never_takes_more_than_64_kib_whatever_the_texts_say_and_counts_what_it_leaves_out(
    shape: Callable[[int, int], Known],
    holders: int,
    pod: int,
    reason: str,
    fault: str,
    refused: str,
    warnings: list[Finding],
) -> None:
    what = shape(holders, pod)
    entries = {one: replace(entry, reason=reason) for one, entry in what.ledger.entries.items()}
    what = replace(
        what,
        ledger=replace(what.ledger, entries=entries),
        faults={gpu_uuid(index): fault for index in range(16)},
        policy=PolicyInForce(refused=refused),
        findings=tuple(warnings),
    )
    told, status = report(what).status, publish(what).status_fields()
    assert size_bytes(status) <= MOST_BYTES
    for name, there_are in (("holders", len(told.holders)), ("gpus", len(told.gpus))):
        kept, omitted = status[name], status[f"{name}Omitted"]
        assert isinstance(kept, list)
        assert isinstance(omitted, int)
        assert len(kept) + omitted == there_are
    assert len(status["holders"]) <= MOST_HOLDERS  # type: ignore[arg-type]  # a list
    assert len(status["warnings"]) <= MOST_WARNINGS  # type: ignore[arg-type]  # a list


def test_a_node_in_112_mig_devices_has_them_all_and_names_some_holders() -> None:
    status = publish(many_migs(16)).status
    assert (len(status.gpus), status.gpus_omitted) == (112, 0)
    assert len(status.holders) >= 12
    assert len(status.holders) + status.holders_omitted == 112


def test_a_node_in_56_mig_devices_has_all_of_them_and_every_holder() -> None:
    status = publish(many_migs(8)).status
    assert (len(status.gpus), len(status.holders), status.holders_omitted) == (56, 56, 0)


def test_devices_beyond_what_there_is_room_for_are_counted_and_those_to_look_at_come_first() -> None:
    """No GPU can be cut like this; what is sure is that nothing grows without an end, and nothing is lost unsaid."""
    what = many_migs(16, each=16)
    last = what.inventory.gpus[-1].mig_devices[-1].uuid if what.inventory is not None else ""
    published = publish(replace(what, ledger=replace(what.ledger, entries={}), faults={last: "XID 79"}))
    status = published.status
    assert status.gpus_omitted == 256 - len(status.gpus) > 100
    assert status.gpus[-1].uuid == last
    assert (published.summary.slices, published.summary.state) == (256, "no policy, 1 unhealthy")
    assert size_bytes(published.status_fields()) <= MOST_BYTES


def test_where_there_is_room_no_text_is_cut_for_the_sake_of_another() -> None:
    reason = "a sentence of some length that is needed to the end " * 3
    status = publish(replace(many_migs(16), faults={gpu_uuid(0): reason})).status
    assert {gpu.reason for gpu in status.gpus} == {None, reason}


def test_warnings_beyond_32_are_counted() -> None:
    many = tuple(found(FindingKind.LEAKED, f"process {number}") for number in range(40))
    warnings = publish(replace(sliced(), findings=many)).status.warnings
    assert len(warnings) == MOST_WARNINGS
    assert warnings[-1].message.startswith("9 more warnings")


def test_a_resource_is_named_with_its_slices() -> None:
    assert publish(sliced()).summary.resources == SHARED
