"""One rule of a policy: slices, memory, compute, match; what each may say and how it is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sharer.core.policy.model import Auto, Comparison, Mps, TimeSlicing
from sharer.core.quantities import GIB, MIB
from tests.core.policies import only, read_rule, read_rules, refused_rules

UUID = "GPU-5a3fc4a0-1f0e-4c5e-9d2b-7e6f1a2b3c4d"
TS4 = "strategy: time-slicing, slices: 4"


# --- slices ---


@pytest.mark.parametrize("strategy", ["time-slicing", "mps"])
def test_one_slice_is_a_valid_wish_and_zero_negative_or_missing_are_not(strategy: str) -> None:
    """P03."""
    assert read_rule(f"strategy: {strategy}, slices: 1").sharing in (
        TimeSlicing(slices=1, slice_memory_bytes=None),
        Mps(slices=1, slice_memory_bytes=None),
    )
    path = "rules[0].slices:"
    assert only(refused_rules(f"strategy: {strategy}, slices: 0")) == (
        f"{path} expected an integer of 1 or more, found the number 0"
    )
    assert only(refused_rules(f"strategy: {strategy}, slices: -1")) == (
        f"{path} expected an integer of 1 or more, found the number -1"
    )
    assert only(refused_rules(f"strategy: {strategy}")) == (
        f"{path} is missing; strategy {strategy} needs slices (a count) or sliceMemory (a quantity)"
    )


def test_slices_and_slice_memory_exclude_each_other() -> None:
    assert only(refused_rules("strategy: mps, slices: 4, sliceMemory: 5Gi")) == (
        "rules[0].sliceMemory: slices and sliceMemory exclude each other; keep one of them"
    )


def test_strategies_that_give_whole_devices_take_no_slice_memory() -> None:
    assert "a MIG device has the memory of its profile" in only(refused_rules("strategy: mig, sliceMemory: 5Gi"))
    assert "offers a GPU whole" in only(refused_rules("strategy: exclusive, sliceMemory: 5Gi"))
    assert "offers a GPU whole" in only(refused_rules("strategy: exclusive, slices: 1"))


def test_a_rule_without_a_usable_strategy_is_refused_once() -> None:
    assert only(refused_rules("slices: 4")) == "rules[0].strategy: is missing; write strategy: time-slicing"
    assert only(refused_rules("strategy: timeSlicing, slices: 4")) == (
        "rules[0].strategy: 'timeSlicing' is unknown; did you mean 'time-slicing'?"
        " Allowed: time-slicing, mps, mig, exclusive"
    )


@pytest.mark.parametrize("strategy", ["time-slicing", "mps", "mig"])
def test_a_count_whose_list_the_kubelet_cannot_receive_is_refused(strategy: str) -> None:
    """P04: 65,536 replicas of one GPU; 16,384 are many, and fit."""
    assert read_rule(f"strategy: {strategy}, slices: 16384")
    problem = only(refused_rules(f"strategy: {strategy}, slices: 65536"))
    assert problem.startswith("rules[0].slices: 65536 slices of one GPU make a device list of ")
    assert "the kubelet receives at most 4194304; at most 5" in problem


def test_a_count_of_any_length_is_refused_at_once() -> None:
    """P04: nothing is ever built from a number before it is judged."""
    assert "device list of 77888888812 bytes" in only(refused_rules("strategy: mps, slices: 999999999"))
    assert "found the number 1000000000, which is more than 999999999" in only(
        refused_rules("strategy: mps, slices: 1000000000")
    )
    assert "found a number of 5000 characters" in only(refused_rules(f"strategy: mps, slices: {'9' * 5000}"))


# --- memory ---


@pytest.mark.parametrize(
    ("limit", "why"),
    [
        ("0", "'0' is less than 1Mi"),
        ("0Mi", "'0Mi' is less than 1Mi"),
        ("0.001k", "'0.001k' is less than 1Mi"),
        ("1023Ki", "'1023Ki' is less than 1Mi"),
        ("0%", "'0%' is a percentage, and memory is an amount"),
        ("50%", "'50%' is a percentage, and memory is an amount"),
        ("101%", "'101%' is a percentage, and memory is an amount"),
        ("0.001%", "'0.001%' is a percentage, and memory is an amount"),
        ("-1", "'-1' is negative"),
        ("-1Gi", "'-1Gi' is negative"),
        ("17179869184", "'17179869184' has no unit"),
        ("1.5", "'1.5' is no amount of memory"),
        ("16GB", "'16GB' is no amount of memory; did you mean '16Gi'?"),
        ("16 gib", "'16 gib' is no amount of memory; did you mean '16Gi'?"),
        ("Auto", "'Auto' is no amount of memory; did you mean 'auto'?"),
        ("9Ti", "'9Ti' is more than 8Ti, and no GPU has that"),
        ("null", "found nothing (null)"),
        ("[1Gi]", "found a list"),
    ],
)
def test_a_limit_that_could_mean_no_limit_is_refused(limit: str, why: str) -> None:
    """P23: zero, percentages and bare numbers never become a limit."""
    problem = only(refused_rules(f"{TS4}, memory: {{limit: {limit}}}"))
    assert problem.startswith(f"rules[0].memory.limit: {why}")
    assert "llowed: auto, none (no limit) or a quantity of at least 1Mi with a unit" in problem


def test_limits_are_auto_none_or_a_quantity() -> None:
    assert read_rule(f"{TS4}, memory: {{limit: auto}}").memory.limit is Auto.AUTO
    assert read_rule(f"{TS4}, memory: {{limit: none}}").memory.limit is None
    assert read_rule(f'{TS4}, memory: {{limit: "1.5Gi"}}').memory.limit == 1536 * MIB


def test_a_reserve_may_be_zero_and_nothing_else_may() -> None:
    assert read_rule(f"{TS4}, memory: {{reserve: 0}}").memory.reserve_bytes == 0
    assert read_rule(f"{TS4}, memory: {{reserve: 0Mi}}").memory.reserve_bytes == 0
    assert "allowed: 0 or a quantity" in only(refused_rules(f"{TS4}, memory: {{reserve: 5}}"))
    assert "'0Gi' is less than 1Mi" in only(refused_rules(f"{TS4}, memory: {{total: 0Gi}}"))
    assert "'0' is less than 1Mi" in only(refused_rules("strategy: mps, sliceMemory: 0"))


@pytest.mark.parametrize("factor", ["0", "0.5", "-1", "'2'", "1e1", "100.1", "150", ".inf", "true", "1.0000001", "01"])
def test_an_oversubscription_is_a_plain_factor_of_at_least_one(factor: str) -> None:
    problem = only(refused_rules(f"{TS4}, memory: {{oversubscribe: {factor}}}"))
    assert problem.startswith("rules[0].memory.oversubscribe: expected a plain decimal number from 1 to 100")


def test_promising_more_memory_than_there_is_warns() -> None:
    policy = read_rules(f"{TS4}, memory: {{oversubscribe: 1.5}}")
    assert policy.rules[0].memory.oversubscribe == 1.5
    assert policy.warnings == (
        "node.yaml:4:65: rules[0].memory.oversubscribe: slices promise up to 1.5 times the memory there is;"
        " containers can run out of it",
    )
    assert read_rules(f"{TS4}, memory: {{oversubscribe: 1}}").warnings == ()


@pytest.mark.parametrize(
    ("memory", "why"),
    [
        ("required: true, limit: none", "required: is true and limit is none: there is nothing to hold"),
        ("required: true, enforce: [watch]", "required: is true and enforce has none of mig, driver that"),
        ("required: true, enforce: []", "required: is true and enforce has none of mig, driver that"),
        ("required: true, enforce: [mps]", "required: is true and enforce has none of mig, driver that"),
        ("guarantee: true, limit: none", "guarantee: is true and limit is none: there is nothing to guarantee"),
        ("guarantee: true, oversubscribe: 2", "guarantee: is true and oversubscribe is above 1"),
    ],
)
def test_promises_that_contradict_each_other_are_refused(memory: str, why: str) -> None:
    assert only(refused_rules(f"{TS4}, memory: {{{memory}}}")).startswith(f"rules[0].memory.{why}")


def test_enforcers_are_known_and_named_once() -> None:
    assert read_rule(f"{TS4}, memory: {{enforce: []}}").memory.enforce == ()
    assert only(refused_rules(f"{TS4}, memory: {{enforce: [drivr]}}")) == (
        "rules[0].memory.enforce[0]: 'drivr' is unknown; did you mean 'driver'? Allowed: mig, driver, mps, watch"
    )
    assert only(refused_rules(f"{TS4}, memory: {{enforce: [watch, driver, watch]}}")) == (
        "rules[0].memory.enforce[2]: watch is already in the list, at enforce[0]; remove one of them"
    )
    assert "allowed: mps" in only(refused_rules(f"{TS4}, compute: {{enforce: [driver]}}"))


@pytest.mark.parametrize(
    ("rule", "name", "why"),
    [
        (TS4, "mps", "only clients of an MPS daemon are held by it, and this rule has another strategy"),
        (TS4, "mig", "the slices are not MIG devices"),
        ("strategy: mig, slices: 2", "mig", "the slices share an instance, and that holds them only together"),
        ("strategy: mig, slices: 2", "driver", "the driver takes no limits for MIG devices"),
    ],
)
def test_an_enforcer_that_cannot_hold_such_slices_is_worth_a_warning(rule: str, name: str, why: str) -> None:
    (warning,) = read_rules(f"{rule}, memory: {{enforce: [{name}, watch]}}").warnings
    assert f"rules[0].memory.enforce: {name} has no effect: {why}" in warning


@pytest.mark.parametrize("value", ["yes", "no", "on", "True", "TRUE", "'true'", "1", "null", "[true]"])
def test_a_boolean_is_true_or_false_and_no_other_word(value: str) -> None:
    """Neighbour of P02: yes, on and 1 are booleans to some parsers."""
    problem = only(refused_rules(f"{TS4}, memory: {{required: {value}}}"))
    assert problem.startswith("rules[0].memory.required: expected true or false, found ")


def test_a_limit_on_a_whole_device_is_refused_and_other_memory_fields_warn() -> None:
    """Neighbour of P23: a limit that nothing would ever hold."""
    assert "a whole GPU with all its memory; remove the limit" in only(
        refused_rules("strategy: exclusive, memory: {limit: 5Gi}")
    )
    assert "a whole MIG device" in only(refused_rules("strategy: mig, memory: {limit: 5Gi}"))
    assert read_rule("strategy: mig, slices: 2, memory: {limit: 5Gi}").memory.limit == 5 * GIB
    assert "rules[0].memory.reserve: has no effect" in read_rules("strategy: mig, memory: {reserve: 1Gi}").warnings[0]


def test_a_time_to_eviction_without_eviction_warns() -> None:
    assert (
        "evictAfter: has no effect without onExceed: evict"
        in read_rules(f"{TS4}, memory: {{evictAfter: 5m}}").warnings[0]
    )
    assert read_rules(f"{TS4}, memory: {{evictAfter: 5m, onExceed: evict}}").warnings == ()


def test_an_eviction_of_what_nobody_watches_warns() -> None:
    (warning,) = read_rules(f"{TS4}, memory: {{onExceed: evict, enforce: [driver]}}").warnings
    assert "onExceed: evict has no effect: enforce does not name watch" in warning


@pytest.mark.parametrize(
    ("memory", "evicts"),
    [("onExceed: evict", True), ("onExceed: evict, enforce: [driver]", False), ("onExceed: report", False)],
)
def test_pods_are_evicted_where_a_rule_says_so_and_watches_them(memory: str, evicts: bool) -> None:
    policy = read_rules(f"{TS4}, memory: {{{memory}}}")
    assert (policy.evicts, policy.rules[0].memory.evicts) == (evicts, evicts)


def test_a_guarantee_that_nothing_can_give_warns() -> None:
    """The driver reserves memory, and not for MIG devices."""
    (watched,) = read_rules(f"{TS4}, memory: {{guarantee: true, enforce: [watch]}}").warnings
    assert "guarantee: has no effect: only driver reserves memory" in watched
    shared = read_rules("strategy: mig, slices: 2, memory: {guarantee: true}").warnings
    assert any("guarantee: has no effect: only driver" in warning for warning in shared)
    assert read_rules(f"{TS4}, memory: {{guarantee: true}}").warnings == ()


# --- compute, placement, request ---


def test_only_mps_can_hold_a_share_of_compute() -> None:
    assert read_rule("strategy: mps, slices: 4, compute: {percent: 100}").compute.percent == 100
    assert read_rule("strategy: mps, slices: 4, compute: {percent: none}").compute.percent is None
    assert only(refused_rules(f"{TS4}, compute: {{percent: 25}}")) == (
        "rules[0].compute.percent: only strategy mps can hold a share of compute, and this rule has time-slicing;"
        " write none or auto"
    )
    policy = read_rules(f"{TS4}, compute: {{percent: auto}}")
    assert "no share of compute is promised" in policy.warnings[0]


@pytest.mark.parametrize("percent", ["0", "101", "-5", "50%", "0.5", "'50'", "null", "all"])
def test_a_share_of_compute_is_an_integer_from_1_to_100(percent: str) -> None:
    problem = only(refused_rules(f"strategy: mps, slices: 2, compute: {{percent: {percent}}}"))
    assert problem.startswith("rules[0].compute.percent: expected auto, none or an integer from 1 to 100, found ")


def test_a_container_may_be_allowed_several_slices_or_any_number() -> None:
    assert read_rule(f"{TS4}, request: {{max: 3}}").request_max == 3
    assert read_rule(f"{TS4}, request: {{max: none}}").request_max is None
    assert "expected none or an integer of 1 or more" in only(refused_rules(f"{TS4}, request: {{max: 0}}"))


# --- match ---


@pytest.mark.parametrize("sign", [">=", "<=", ">", "<", "=="])
def test_memory_is_matched_by_a_comparison(sign: str) -> None:
    assert read_rule(f'match: {{memory: "{sign}40Gi"}}, {TS4}').match.memory == (Comparison(sign), 40 * GIB)
    assert read_rule(f'match: {{memory: "{sign} 40Gi"}}, {TS4}').match.memory == (Comparison(sign), 40 * GIB)


@pytest.mark.parametrize("memory", ["40Gi", "=40Gi", "~40Gi", "'>=40'", "'>=x'", "'>='", "40", "null", "[40Gi]"])
def test_memory_without_operator_or_unit_is_refused(memory: str) -> None:
    problem = only(refused_rules(f"match: {{memory: {memory}}}, {TS4}"))
    assert problem.startswith("rules[0].match.memory: expected one of >=, <=, >, <, == and a quantity with a unit")


def test_uuids_are_a_list_of_whole_uuids() -> None:
    """P02: a scalar where a list is wanted."""
    mig = "MIG-5A3FC4A0-1F0E-4C5E-9D2B-7E6F1A2B3C4D"
    assert read_rule(f"match: {{uuid: [{UUID}, {mig}]}}, {TS4}").match.uuids == (UUID, "MIG-" + mig[4:].lower())
    assert only(refused_rules(f"match: {{uuid: {UUID}}}, {TS4}")) == (
        f"rules[0].match.uuid: expected a list, found the text '{UUID}'; write [{UUID}]"
    )
    assert only(refused_rules(f"match: {{uuid: []}}, {TS4}")) == (
        "rules[0].match.uuid: the list is empty; it needs at least one entry"
    )
    for odd in ("GPU-5a3f", "0", "5a3fc4a0-1f0e-4c5e-9d2b-7e6f1a2b3c4d", "{a: b}"):
        problem = only(refused_rules(f"match: {{uuid: [{UUID}, {odd}]}}, {TS4}"))
        assert problem.startswith(
            "rules[0].match.uuid[1]: expected the whole UUID of a GPU or MIG device, such as GPU-"
        )


@pytest.mark.parametrize("product", ["''", "3090", "true", "on", "null", "[A100]", '"a\\nb"'])
def test_a_product_is_text_that_can_be_printed(product: str) -> None:
    assert only(refused_rules(f"match: {{product: {product}}}, {TS4}")).startswith(
        "rules[0].match.product: expected text"
    )


def test_mig_profiles_are_matched_in_mig_rules_only() -> None:
    assert read_rule('match: {migProfile: "1g.*"}, strategy: mig').match.mig_profile == "1g.*"
    assert "is for rules with strategy: mig; this one has mps" in only(
        refused_rules('match: {migProfile: "1g.*"}, strategy: mps, slices: 2')
    )


def test_an_mps_rule_may_name_the_one_user_it_is_for() -> None:
    """For nodes whose MPS serves one user at a time (gpu-limits §3)."""
    sharing = read_rule("strategy: mps, slices: 4, mps: {user: 1000640000}").sharing
    assert sharing == Mps(slices=4, slice_memory_bytes=None, user_id=1000640000)
    assert read_rule("strategy: mps, slices: 4, mps: {user: 0}").sharing == replace(sharing, user_id=0)
    assert read_rule("strategy: mps, slices: 4").sharing == replace(sharing, user_id=None)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("mps: {user: -1}", "rules[0].mps.user: expected an integer from 0 to 4294967294, found the number -1"),
        ("mps: {user: 4294967295}", "rules[0].mps.user: expected an integer from 0 to 4294967294"),
        ("mps: {user: 99999999999}", "rules[0].mps.user: expected an integer from 0 to 4294967294"),
        ('mps: {user: "1000"}', "rules[0].mps.user: expected an integer from 0 to 4294967294"),
        ("mps: {users: 1000}", "rules[0].mps.users: unknown key; did you mean 'user'?"),
        ("mps: 1000", "rules[0].mps: "),
        ("user: 1000", "rules[0].user: unknown key; it belongs under rules[].mps."),
    ],
)
def test_a_wrong_user_of_mps_is_refused(wrong: str, message: str) -> None:
    assert only(refused_rules(f"strategy: mps, slices: 4, {wrong}")).startswith(message)


def test_the_user_of_mps_has_its_place_in_the_text() -> None:
    assert refused_rules("strategy: mps, slices: 4, mps: {user: root}")[0].startswith(
        "node.yaml:4:44: rules[0].mps.user"
    )


def test_only_an_mps_rule_has_a_user() -> None:
    assert only(refused_rules("strategy: time-slicing, slices: 4, mps: {user: 1000}")) == (
        "rules[0].mps: is for rules with strategy: mps; this one has time-slicing; remove it"
    )


def test_rules_of_one_mps_resource_serve_one_user() -> None:
    one, other = "strategy: mps, slices: 4, match: {product: A*}", "strategy: mps, slices: 4, mps: {user: 1000}"
    assert "differ in mps.user: 1000 here, any user there" in only(refused_rules(one, other))
