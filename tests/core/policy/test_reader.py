"""sharer's own policy format: what it says, what it defaults to, and how it is refused."""

from __future__ import annotations

import pytest

from sharer.core.policy.model import (
    Auto,
    Comparison,
    ComputePolicy,
    Exclusive,
    HealthPolicy,
    Match,
    MemoryPolicy,
    Mig,
    Mps,
    OnExceed,
    Placement,
    Policy,
    Rivals,
    Rule,
    TimeSlicing,
)
from sharer.core.quantities import GIB, MIB
from tests.core.policies import HEAD, only, read, read_rule, read_rules, refusal, refused_rules

UUID = "GPU-5a3fc4a0-1f0e-4c5e-9d2b-7e6f1a2b3c4d"
TS4 = "strategy: time-slicing, slices: 4"


def test_a_policy_with_every_field_is_read_as_it_stands() -> None:
    text = f"""
apiVersion: sharer.dev/v1alpha1
kind: SharingPolicy
rules:
  - match: {{product: "*A100*", memory: ">=40Gi", uuid: [{UUID}]}}
    resource: example.com/gpu.quarter
    strategy: mps
    slices: 4
    memory:
      limit: 9Gi
      total: 40Gi
      reserve: 512Mi
      oversubscribe: 1.5
      enforce: [driver, mps]
      required: true
      guarantee: false
      onExceed: evict
      evictAfter: 90s
    compute: {{percent: 20, enforce: [mps]}}
    placement: spread
    request: {{max: 2}}
  - {{match: {{migProfile: "1g.*"}}, strategy: mig, slices: 2}}
health:
  ignore: [13, 31]
  transient: {{xids: [94, 95], recoverAfter: 10m}}
quarantine: {{timeout: 5m}}
drain: {{patience: 1h30m}}
rollout: {{window: 1d}}
rivals: ignore
"""
    assert read(text) == Policy(
        rules=(
            Rule(
                match=Match(product="*A100*", memory=(Comparison.AT_LEAST, 40 * GIB), uuids=(UUID,)),
                resource="example.com/gpu.quarter",
                sharing=Mps(slices=4, slice_memory_bytes=None),
                memory=MemoryPolicy(
                    limit=9 * GIB,
                    total_bytes=40 * GIB,
                    reserve_bytes=512 * MIB,
                    oversubscribe=1.5,
                    enforce=("driver", "mps"),
                    required=True,
                    on_exceed=OnExceed.EVICT,
                    evict_after_s=90.0,
                ),
                compute=ComputePolicy(percent=20),
                placement=Placement.SPREAD,
                request_max=2,
            ),
            Rule(match=Match(mig_profile="1g.*"), sharing=Mig(replicas=2)),
        ),
        health=HealthPolicy(ignore=frozenset({13, 31}), transient=frozenset({94, 95}), recover_after_s=600.0),
        quarantine_timeout_s=300.0,
        drain_patience_s=5400.0,
        rollout_window_s=86400.0,
        rivals=Rivals.IGNORE,
    )


def test_the_example_of_the_design_is_accepted() -> None:
    policy = read(
        """
apiVersion: sharer.dev/v1alpha1
kind: SharingPolicy
rules:                                # first match decides, per GPU or MIG device
  - match: {product: "*A100*", memory: ">=40Gi"}
    resource: nvidia.com/gpu.shared
    strategy: time-slicing            # time-slicing | mps | mig | exclusive
    slices: 4                         # or sliceMemory: 10Gi (count follows from the GPU)
    memory:
      limit: auto
      reserve: 512Mi
      oversubscribe: 1.0              # above 1 must be asked for
      enforce: [driver, watch]        # strongest available holds it
      required: false
      onExceed: report                # report | evict
    compute: {percent: auto, enforce: [mps]}
    placement: packed                 # packed | spread
    request: {max: 1}
health:
  ignore: [13, 31, 43, 45, 68, 109]
  transient: {xids: [94], recoverAfter: 5m}
quarantine: {timeout: 10m}
drain: {patience: 10m}
rollout: {window: 10m}
"""
    )
    assert policy == Policy(
        rules=(
            Rule(
                match=Match(product="*A100*", memory=(Comparison.AT_LEAST, 40 * GIB)),
                sharing=TimeSlicing(slices=4, slice_memory_bytes=None),
                memory=MemoryPolicy(reserve_bytes=512 * MIB),
            ),
        ),
        rollout_window_s=600.0,
    )


def test_what_is_left_out_has_the_defaults_of_the_design() -> None:
    policy = read_rules(TS4)
    assert policy.rules[0] == Rule(
        match=Match(),
        resource=None,
        sharing=TimeSlicing(slices=4, slice_memory_bytes=None),
        memory=MemoryPolicy(
            limit=Auto.AUTO,
            total_bytes=None,
            reserve_bytes=0,
            oversubscribe=1.0,
            enforce=("driver", "watch"),
            required=False,
            guarantee=False,
            on_exceed=OnExceed.REPORT,
            evict_after_s=60.0,
        ),
        compute=ComputePolicy(percent=None, enforce=("mps",)),
        placement=Placement.PACKED,
        request_max=1,
    )
    assert policy.health == HealthPolicy(
        ignore=frozenset({13, 31, 43, 45, 68, 109}), transient=frozenset({94}), recover_after_s=300.0
    )
    assert (policy.quarantine_timeout_s, policy.drain_patience_s, policy.rollout_window_s) == (600.0, 600.0, 0.0)
    assert policy.warnings == ()


def test_every_strategy_is_read() -> None:
    assert read_rule(TS4).sharing == TimeSlicing(slices=4, slice_memory_bytes=None)
    assert read_rule("strategy: mps, sliceMemory: 10Gi").sharing == Mps(slices=None, slice_memory_bytes=10 * GIB)
    assert read_rule("strategy: mps, slices: 4").compute.percent is Auto.AUTO
    assert read_rule("strategy: mig").sharing == Mig(replicas=1)
    assert read_rule("strategy: exclusive").sharing == Exclusive()


def test_equal_wishes_are_equal_policies_however_they_are_written() -> None:
    plain = read_rules(TS4)
    assert read_rules(f"resource: nvidia.com/gpu.shared, {TS4}") == plain
    assert read_rules(f"match: {{}}, {TS4}, compute: {{percent: none}}, placement: packed") == plain
    assert read_rules(f"{TS4}, compute: {{percent: auto}}") == plain
    assert read_rules('resource: "nvidia.com/mig-{profile}", strategy: mig') == read_rules("strategy: mig")


def test_a_policy_in_json_is_read_too() -> None:
    rule = '{"match": {"product": "*A100*"}, "strategy": "time-slicing", "slices": 4}'
    text = f'{{"apiVersion": "sharer.dev/v1alpha1", "kind": "SharingPolicy", "rules": [{rule}]}}'
    assert read(text).rules[0].match.product == "*A100*"


# --- the document ---


def test_version_and_kind_must_be_there_and_right() -> None:
    assert refusal(f"rules: [{{{TS4}}}]") == [
        "node.yaml:1:1: apiVersion: is missing; write apiVersion: sharer.dev/v1alpha1",
        "node.yaml:1:1: kind: is missing; write kind: SharingPolicy",
    ]
    assert refusal(f"apiVersion: sharer.dev/v1\nkind: ConfigMap\nrules: [{{{TS4}}}]") == [
        "node.yaml:1:13: apiVersion: 'sharer.dev/v1' is unknown; did you mean 'sharer.dev/v1alpha1'?"
        " Allowed: sharer.dev/v1alpha1",
        "node.yaml:2:7: kind: 'ConfigMap' is unknown; allowed: SharingPolicy",
    ]


def test_a_policy_has_at_least_one_rule() -> None:
    assert only(refusal(HEAD)) == "rules: is missing; write a list of rules, each with match, strategy and slices"
    assert only(refusal(HEAD + "rules: []")) == "rules: the list is empty; it needs at least one entry"
    assert only(refusal(HEAD + "rules: {strategy: mps}")) == (
        "rules: expected a list (each entry begins with '- '), found a mapping"
    )


def test_a_document_that_is_no_mapping_is_refused() -> None:
    assert only(refusal("- 1")) == (
        "a policy is a mapping with the keys apiVersion, kind, rules, health, quarantine, drain, rollout, rivals;"
        " found a list"
    )


def test_all_problems_are_told_at_once_in_the_order_of_the_text() -> None:
    problems = refusal(
        HEAD
        + """rules:
  - strategy: time-slicing
    slice: 4
    slices: "4"
    memory: {limit: 0, enforce: driver}
    placement: packet
quarantine: {timeout: 10}
"""
    )
    assert problems == [
        "node.yaml:5:5: rules[0].slice: unknown key; did you mean 'slices'?"
        " Known here: compute, match, memory, mps, placement, request, resource, sliceMemory, slices, strategy",
        "node.yaml:6:13: rules[0].slices: expected an integer of 1 or more, found the quoted text '4';"
        " write 4 without quotes",
        "node.yaml:7:21: rules[0].memory.limit: '0' is less than 1Mi; allowed: auto, none (no limit) or a quantity of"
        " at least 1Mi with a unit (Ki, Mi, Gi, Ti, k, M, G, T), such as 10Gi",
        "node.yaml:7:33: rules[0].memory.enforce: expected a list, found the text 'driver'; write [driver]",
        "node.yaml:8:16: rules[0].placement: 'packet' is unknown; did you mean 'packed'? Allowed: packed, spread",
        "node.yaml:9:23: quarantine.timeout: '10' is no duration; allowed: whole numbers with the units d, h, m, s,"
        " such as 10m or 1h30m, up to 365d",
    ]


# --- keys ---


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("slices: 4", "slices: unknown key; it belongs under rules[]."),
        ("Health: {}", "Health: unknown key; letter case counts, write 'health'."),
        ("recoverAfter: 5m", "recoverAfter: unknown key; it belongs under health.transient."),
        ("enforce: [mps]", "enforce: unknown key; it belongs under rules[].memory or under rules[].compute."),
        ("slice: 4", "slice: unknown key; did you mean 'slices', which belongs under rules[]?"),
        ("sharing: {}", "sharing: unknown key; it belongs to the NVIDIA plugin's config format"),
        ("zzz: 4", "zzz: unknown key. Known here: apiVersion, drain, health, kind, quarantine, rivals, rollout, rules"),
        ("drain: {patiense: 1m}", "drain.patiense: unknown key; did you mean 'patience'? Known here: patience"),
        ("'': 1", "'': unknown key."),
    ],
)
def test_a_key_at_the_wrong_place_is_refused_with_the_right_one(where: str, message: str) -> None:
    """P01: an option in the wrong block is never silently ignored."""
    assert only(refused_rules(TS4, rest=where)).startswith(message)


@pytest.mark.parametrize("key", ["match", "memory", "compute", "request"])
def test_an_unknown_key_is_refused_at_any_depth(key: str) -> None:
    """P01."""
    assert only(refused_rules(f"{TS4}, {key}: {{nonsense: 1}}")).startswith(f"rules[0].{key}.nonsense: unknown key.")


@pytest.mark.parametrize("key", ["match", "memory", "compute", "request"])
def test_a_block_that_is_no_mapping_is_refused(key: str) -> None:
    assert "found nothing (null); write {} or leave the key out" in only(refused_rules(f"{TS4}, {key}: "))
    assert f"rules[0].{key}: expected a mapping of " in only(refused_rules(f"{TS4}, {key}: 4"))


# --- rules together ---


@pytest.mark.parametrize(
    ("second", "key", "mine", "theirs"),
    [
        ("strategy: mps, slices: 2", "strategy", "mps", "time-slicing"),
        ("strategy: time-slicing, slices: 2, placement: spread", "placement", "spread", "packed"),
        ("strategy: time-slicing, slices: 2, request: {max: 2}", "request.max", "2", "1"),
        ("strategy: time-slicing, slices: 2, request: {max: none}", "request.max", "none", "1"),
    ],
)
def test_rules_that_share_a_resource_agree(second: str, key: str, mine: str, theirs: str) -> None:
    first = 'match: {product: "*A100*"}, ' + TS4
    problem = only(refused_rules(first, second))
    assert problem == (
        f"rules[1].{key.split('.')[0]}: rules[1] and rules[0] offer the same resource nvidia.com/gpu.shared and differ"
        f" in {key}: {mine} here, {theirs} there; make them agree or give one of them another resource"
    )
    assert len(read_rules(first, f"resource: example.com/gpu, {second}").rules) == 2


def test_mig_rules_for_different_profiles_need_not_agree() -> None:
    small, large, rest = 'match: {migProfile: "1g.10gb"}', 'match: {migProfile: "3g.40gb"}', "match: {}"
    spread = "strategy: mig, placement: spread"
    assert len(read_rules(f"{small}, strategy: mig", f"{large}, {spread}", f"{rest}, {spread}").rules) == 3
    globbed = 'match: {migProfile: "1g.*"}, strategy: mig'
    assert "differ in placement" in only(refused_rules(globbed, f"{rest}, {spread}"))
    some = 'match: {migProfile: "1g.10gb", product: "*A100*"}, strategy: mig'
    assert "differ in placement" in only(refused_rules(some, f"{rest}, {spread}"))


def test_a_rule_that_is_never_reached_warns() -> None:
    policy = read_rules(
        TS4, "strategy: mig", f'match: {{product: "*A100*"}}, {TS4}', 'match: {migProfile: "1g.*"}, strategy: mig'
    )
    assert [warning.split(": ", 1)[1] for warning in policy.warnings] == [
        "rules[2]: is never reached: rules[0] comes first and matches every GPU",
        "rules[3]: is never reached: rules[1] comes first and matches every MIG device",
    ]


# --- health ---


def test_xids_are_in_one_list_and_named_once() -> None:
    assert only(refused_rules(TS4, rest="health: {ignore: [13, 94], transient: {xids: [94]}}")) == (
        "health.transient.xids: XID 94 is in health.ignore too; keep it in one of the two lists"
    )
    assert "13 is already in the list, at ignore[0]" in only(refused_rules(TS4, rest="health: {ignore: [13, 13]}"))
    assert "health.ignore[0]: expected an integer of 0 or more" in only(
        refused_rules(TS4, rest="health: {ignore: [x]}")
    )


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("13", "health.ignore: expected a list, found the number 13; write [13]"),
        ("'13'", "health.ignore: expected a list, found the quoted text '13'; write [13]"),
        ("['13']", "found the quoted text '13'; write 13 without quotes"),
        ("null", "health.ignore: expected a list, found nothing (null); write []"),
        ("", "health.ignore: expected a list, found nothing (null); write []"),
        ("{13: true}", "health.ignore: expected a list, found a mapping"),
    ],
)
def test_xids_in_any_other_form_are_refused_with_the_one_to_write(written: str, said: str) -> None:
    """Neighbour of P02: no XID at all and the default six are far apart, so nothing is read into an empty value."""
    assert only(refused_rules(TS4, rest=f"health: {{ignore: {written}}}\n")).endswith(said)


@pytest.mark.parametrize("written", ["10", "10min", "1.5h", "1h 30m", "600s600s", "null", "-10m", "PT10M", "10m30"])
def test_a_time_without_a_unit_or_in_any_other_form_is_refused(written: str) -> None:
    """Neighbour of P02: Go takes 1.5h, systemd 10min, Java PT10M; and 10 of what?"""
    assert "whole numbers with the units d, h, m, s" in only(
        refused_rules(TS4, rest=f"drain: {{patience: {written}}}\n")
    )


def test_one_replica_of_a_mig_device_is_the_device_and_no_replica_is_none() -> None:
    """Neighbour of P03: with MIG 1 is the default, and a number below it is as wrong as anywhere."""
    assert read_rules("strategy: mig, slices: 1").rules == read_rules("strategy: mig").rules
    for count in (0, -1):
        assert "expected an integer of 1 or more" in only(refused_rules(f"strategy: mig, slices: {count}"))


def test_an_xid_that_is_written_leaves_the_default_of_the_other_list() -> None:
    assert read_rules(TS4, rest="health: {ignore: [94]}").health == HealthPolicy(
        ignore=frozenset({94}), transient=frozenset()
    )
    assert read_rules(TS4, rest="health: {transient: {xids: [13]}}").health == HealthPolicy(
        ignore=frozenset({31, 43, 45, 68, 109}), transient=frozenset({13})
    )


@pytest.mark.parametrize("patience", ["10", "0", "-5m", "1.5h", "10 m", "5m1h", "1m1m", "PT5M", "400d", "null", "[5m]"])
def test_a_duration_is_whole_numbers_with_units(patience: str) -> None:
    problem = only(refused_rules(TS4, rest=f"drain: {{patience: {patience}}}"))
    assert problem.startswith("drain.patience: ")
    assert problem.endswith("allowed: whole numbers with the units d, h, m, s, such as 10m or 1h30m, up to 365d")
