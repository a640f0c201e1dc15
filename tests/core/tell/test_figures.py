"""The values of metrics: what is counted, and what is left out because it is not known."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharer.core.change.rollout import PolicyInForce
from sharer.core.enforcement import Hold
from sharer.core.holders.evidence import SourceStatus
from sharer.core.holders.findings import Finding, FindingKind
from sharer.core.holders.ledger import Entry, Remnant, State
from sharer.core.known import Known
from sharer.core.policy.model import Mig
from sharer.core.quantities import GIB
from sharer.core.tell.figures import SOURCES, STATES, Moment, Tallies, figures
from sharer.core.tell.metrics import METRICS, MOST_HOLDERS, Durations, Figure, Histogram, Labels
from tests.core.builders import gpu, gpu_uuid, mig, node, policy, rule, time_slicing
from tests.core.evidence import SHARED, held, holder, key, process, reading
from tests.core.nodes import ABOUT, NOW_S, UNLIMITED, known

FOUR = policy(time_slicing(4))


def all_figures(what: Known, tallies: Tallies | None = None, **moment: object) -> list[Figure | Histogram]:
    at = replace(Moment(now_s=NOW_S, started_s=NOW_S - 60.0), **moment)  # type: ignore[arg-type]  # of `Moment`
    return list(figures(what, ABOUT, tallies or Tallies(), at))


def values(what: Known, name: str, tallies: Tallies | None = None, **moment: object) -> dict[Labels, float]:
    [found] = [one for one in all_figures(what, tallies, **moment) if one.metric.name == name]
    assert isinstance(found, Figure)
    return dict(found.values)


def states(what: Known, index: int = 0, resource: str = SHARED) -> dict[str, float]:
    """Of one GPU, without those that are 0."""
    return {
        labels[2]: count
        for labels, count in values(what, "sharer_slices").items()
        if labels[:2] == (resource, gpu_uuid(index)) and count
    }


def quarantined(since_s: float) -> Entry:
    left = Remnant(holder=holder(9), since_s=since_s, known=True)
    return Entry(state=State.QUARANTINED, remnants=(left,), reason="r", is_busy_for_nobody=True)


# ---- all of them


@pytest.mark.parametrize("what", [Known(), known(node(gpu(0)), FOUR, entries=held(key(0, 20480)))])
def test_every_metric_is_there_once_in_its_order_and_with_its_labels(what: Known) -> None:
    found = all_figures(what)
    assert [one.metric for one in found] == list(METRICS)
    for one in found:
        series = one.values if isinstance(one, Figure) else one.durations
        assert {len(labels) for labels in series} <= {len(one.metric.labels)}


def test_names_and_labels_are_ones_that_prometheus_takes_and_end_in_their_unit() -> None:
    for metric in METRICS:
        assert metric.name.startswith("sharer_")
        assert metric.name.replace("_", "").isalnum()
        assert metric.name.endswith("_total") == (metric.kind.value == "counter")
        assert len(set(metric.labels)) == len(metric.labels)
    assert len({metric.name for metric in METRICS}) == len(METRICS)


# ---- slices


def test_each_state_of_each_device_exists_from_the_start() -> None:
    found = values(known(node(gpu(0), gpu(1)), FOUR), "sharer_slices")
    assert {labels[2] for labels in found} == set(STATES)
    assert len(found) == 2 * len(STATES)


def test_a_slice_counts_once_by_what_it_is() -> None:
    entries = {**held(key(0, 20480), key(1, 20480)), key(2, 20480): quarantined(NOW_S)}
    assert states(known(node(gpu(0)), FOUR, entries=entries)) == {"held": 2, "quarantined": 1, "free": 1}


def test_held_slices_of_a_faulty_gpu_stay_held_and_its_free_ones_are_unhealthy() -> None:
    what = known(node(gpu(0), gpu(1)), FOUR, entries=held(key(0, 20480)), faults={gpu_uuid(0): "XID 79"})
    assert states(what) == {"held": 1, "unhealthy": 3}
    assert states(what, 1) == {"free": 4}
    assert values(what, "sharer_gpu_healthy") == {(gpu_uuid(0),): 0, (gpu_uuid(1),): 1}


def test_held_slices_of_an_earlier_cut_drain_while_new_ones_wait() -> None:
    eight, two = policy(rule(time_slicing(8), memory=UNLIMITED)), policy(rule(time_slicing(2), memory=UNLIMITED))
    what = known(node(gpu(0)), eight, two, entries=held(key(5), key(6)))
    assert states(what) == {"draining": 2, "waiting": 2, "withdrawn": 4}


@given(st.lists(st.sampled_from(["free", "held", "quarantined", "allocated"]), min_size=8, max_size=8), st.booleans())
def test_the_states_of_a_device_add_up_to_its_slices(kinds: list[str], at_fault: bool) -> None:
    """P38: no slice is counted twice or lost, whatever it is."""
    entries = {
        key(number, 10240): {
            "held": Entry(state=State.HELD, owner=holder(number)),
            "quarantined": quarantined(NOW_S),
            "allocated": Entry(state=State.ALLOCATED),
        }[kind]
        for number, kind in enumerate(kinds)
        if kind != "free"
    }
    faults = {gpu_uuid(0): "XID 79"} if at_fault else {}
    what = known(node(gpu(0)), policy(time_slicing(8)), entries=entries, faults=faults)
    assert sum(values(what, "sharer_slices").values()) == 8


def test_the_oldest_quarantine_of_a_device_is_told_and_0_where_there_is_none() -> None:
    entries = {key(0, 20480): quarantined(NOW_S - 30.0), key(1, 20480): quarantined(NOW_S - 7.0)}
    found = values(known(node(gpu(0), gpu(1)), FOUR, entries=entries), "sharer_quarantine_age_seconds")
    assert found == {(SHARED, gpu_uuid(0)): 30.0, (SHARED, gpu_uuid(1)): 0.0}


# ---- holders


def test_each_held_slice_has_its_pod_container_id_and_gpu_as_labels_of_their_own() -> None:
    """P39: 2 GPUs of 4 slices, 5 pods, one with two containers."""
    keys = [key(0, 20480), key(1, 20480), key(2, 20480), key(0, 20480, index=1), key(1, 20480, index=1)]
    entries = held(*keys)
    second = key(3, 20480)
    entries[second] = Entry(state=State.HELD, owner=holder(1, "sidecar"), reason="the kubelet says so")
    found = values(known(node(gpu(0), gpu(1)), FOUR, entries=entries), "sharer_slice_promise_bytes")
    assert len(found) == 6
    assert found[(*second, gpu_uuid(0), "default", "train-1", "sidecar")] == 20 * GIB
    assert {labels[4] for labels in found} == {f"train-{number}" for number in range(1, 6)}
    turned = dict(reversed(entries.items()))
    assert values(known(node(gpu(0), gpu(1)), FOUR, entries=turned), "sharer_slice_promise_bytes") == found


def test_what_a_container_uses_is_told_where_it_is_known_and_left_out_where_it_is_not() -> None:
    entries = held(key(0, 20480), key(1, 20480))
    lists = reading(process("uid-1", 3 * GIB), process("uid-2", None))
    what = known(node(gpu(0)), FOUR, entries=entries, processes=lists)
    assert values(what, "sharer_container_used_bytes") == {(gpu_uuid(0), "default", "train-1", "c"): 3 * GIB}


def test_a_limit_counts_as_verified_only_by_the_enforcer_that_was_seen_to_hold_it() -> None:
    entries = held(key(0, 20480), key(1, 20480), key(2, 20480))
    what = known(node(gpu(0)), FOUR, entries=entries)
    assert values(what, "sharer_container_limit_verified") == {}, "nothing was looked at yet"
    holds = {
        ("uid-1", "c", gpu_uuid(0)): Hold(by="driver", reason=None),
        ("uid-2", "c", gpu_uuid(0)): Hold(by=None, reason="no driver limits"),
    }
    found = values(replace(what, holds=holds), "sharer_container_limit_verified")
    assert {(labels[2], labels[4]): value for labels, value in found.items()} == {
        ("train-1", "driver"): 1, ("train-2", "none"): 0, ("train-3", "none"): 0,
    }  # fmt: skip


def test_slices_without_a_promise_promise_nothing_rather_than_0() -> None:
    what = known(node(gpu(0)), policy(rule(time_slicing(4), memory=UNLIMITED)), entries=held(key(0)))
    assert values(what, "sharer_slice_promise_bytes") == {}
    assert states(what) == {"held": 1, "free": 3}


def test_who_holds_a_slice_is_told_also_where_it_promises_nothing() -> None:
    """Neighbour of P39: time slicing as the NVIDIA plugin has it, and GPUs whose memory nobody knows."""
    entries = held(key(0), key(2))
    what = known(node(gpu(0)), policy(rule(time_slicing(4), memory=UNLIMITED)), entries=entries)
    found = values(what, "sharer_slice_held")
    assert found == {
        (*key(0), gpu_uuid(0), "default", "train-1", "c"): 1,
        (*key(2), gpu_uuid(0), "default", "train-2", "c"): 1,
    }
    named = replace(entries[key(2)], owner=replace(holder(1), namespace="other"))
    both = values(replace(what, ledger=replace(what.ledger, entries={**entries, key(2): named})), "sharer_slice_held")
    assert {labels[3:5] for labels in both} == {("default", "train-1"), ("other", "train-1")}, "namesakes stay apart"


def test_the_holder_of_a_mig_device_has_the_instance_and_the_physical_gpu_is_joined_by_it() -> None:
    """Neighbour of P39: with MIG the UUID in the ID is the instance's; two replicas of one instance are two series."""
    device = mig(1, "1g.10gb")
    name = "nvidia.com/mig-1g.10gb"
    keys = [(name, f"{device.uuid}::mig-{replica}") for replica in range(2)]
    shared = policy(rule(Mig(replicas=2), memory=UNLIMITED))
    what = known(node(gpu(0, mig_enabled=True, mig_devices=(device,))), shared, entries=held(*keys))
    assert {labels[:3] for labels in values(what, "sharer_slice_held")} == {(*one, device.uuid) for one in keys}
    assert [labels[:2] for labels in values(what, "sharer_gpu_info")] == [(device.uuid, gpu_uuid(0))]


def test_series_of_holders_are_capped_and_how_many_are_left_out_is_told() -> None:
    many = MOST_HOLDERS + 20
    keys = [key(number, 64) for number in range(many)]
    what = known(node(gpu(0)), policy(time_slicing(81920 // 64)), entries=held(*keys))
    assert len(values(what, "sharer_slice_promise_bytes")) == MOST_HOLDERS
    assert values(what, "sharer_holders_omitted") == {(): 20}
    assert states(what)["held"] == many


# ---- the rest


def test_gpus_and_mig_devices_are_told_with_what_they_are() -> None:
    parts = (mig(0, "1g.10gb"),)
    found = values(known(node(gpu(0), gpu(1, mig_enabled=True, mig_devices=parts))), "sharer_gpu_info")
    product = "NVIDIA A100-SXM4-80GB"
    assert list(found) == [
        (gpu_uuid(0), gpu_uuid(0), "0", product, ""),
        (parts[0].uuid, gpu_uuid(1), "1", product, "1g.10gb"),
    ]


def test_what_was_counted_lies_over_what_is_expected_at_0() -> None:
    tallies = Tallies(
        requests={("Allocate", "OK"): 3},
        registrations={("a.b/c", "UNAVAILABLE"): 2},
        bounds_s=(0.001, 0.01),
        durations={"Allocate": Durations(counts=(2, 1, 0), sum_s=0.004)},
        api_errors={("list", "418"): 1},
    )
    requests = values(Known(), "sharer_kubelet_requests_total", tallies)
    assert (requests["Allocate", "OK"], requests["Allocate", "INVALID_ARGUMENT"]) == (3, 0)
    errors = values(Known(), "sharer_api_errors_total", tallies)
    assert (errors["list", "418"], errors["list", "403"]) == (1, 0)
    registrations = values(Known(), "sharer_registrations_total", tallies, registered={"a.b/c": True})
    assert (registrations["a.b/c", "UNAVAILABLE"], registrations["a.b/c", "OK"]) == (2, 0)
    [histogram] = [one for one in all_figures(Known(), tallies) if isinstance(one, Histogram)]
    assert histogram.durations[("Allocate",)].counts == (2, 1, 0)
    assert histogram.durations[("GetPreferredAllocation",)] == Durations(counts=(0, 0, 0), sum_s=0.0)


def test_the_age_of_a_source_that_never_answered_counts_from_the_start() -> None:
    what = Known(
        driver_read_s=NOW_S - 2.0,
        sources={"list": SourceStatus(read_s=NOW_S - 9.0), "pods": SourceStatus(problem="forbidden")},
    )
    found = values(what, "sharer_last_sync_seconds", followed_s={"node": None, "policies": NOW_S - 5.0})
    assert {name for (name,) in found} == {*SOURCES, "pods", "node", "policies"}
    assert (found["driver",], found["list",], found["policies",]) == (2.0, 9.0, 5.0)
    assert (found["pods",], found["node",], found["checkpoint",]) == (60.0, 60.0, 60.0)


def test_policies_are_told_by_the_digits_that_the_log_shows() -> None:
    standing = PolicyInForce(digest="a" * 64, wanted_digest="b" * 64, refused="rules: is missing")
    assert values(Known(policy=standing), "sharer_policy_info") == {("b" * 12, "a" * 12): 1}
    assert values(Known(policy=standing), "sharer_policy_refused") == {(): 1}
    assert values(Known(), "sharer_policy_info") == {("", ""): 1}


def test_findings_are_counted_by_kind() -> None:
    leaked = Finding(kind=FindingKind.LEAKED, message="m", cure="c")
    found = values(Known(findings=(leaked, leaked)), "sharer_process_findings")
    assert found["leaked",] == 2
    assert {kind for (kind,) in found} == {kind.value for kind in FindingKind}


def test_a_pause_and_the_versions_are_told() -> None:
    assert values(Known(), "sharer_paused") == {(): 0}
    assert values(Known(paused="by a label"), "sharer_paused") == {(): 1}
    assert values(known(node(gpu(0))), "sharer_agent_info") == {("1.2.3", "580.95.05"): 1}
