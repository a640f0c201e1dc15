"""Resource names and list sizes, as the kubelet judges them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharer.core.policy.list_size import MAX_LIST_BYTES, most_numbered_ids, worst_case_numbered_list_bytes
from sharer.core.policy.model import resource_for
from sharer.core.policy.resource_name import resource_name_problem
from tests.core.policies import only, read_rule, refused_rules
from tests.core.wire import worst_case_wire_bytes

TS4 = "strategy: time-slicing, slices: 4"


@pytest.mark.parametrize(
    "name",
    [
        "nvidia.com/gpu",
        "nvidia.com/gpu.shared",
        "a.io/g_p.u",
        "a/b",
        "0.io/0",
        "a-b.io/G-P_U.0",
        "a.io/" + "x" * 63,
        "x" * 244 + "/gpu",
        "requestsfoo/gpu",
    ],
)
def test_names_that_the_kubelet_accepts_are_accepted(name: str) -> None:
    """kubelet-contract §2.3."""
    assert resource_name_problem(name) is None
    assert read_rule(f"resource: {name}, {TS4}").resource in {name, None}


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("gpu", "has no prefix"),
        ("/gpu", "is no domain name"),
        ("nvidia.com/", "must have letters"),
        ("kubernetes.io/gpu", "Kubernetes keeps for itself"),
        ("foo.kubernetes.io/gpu", "Kubernetes keeps for itself"),
        ("requests.foo/gpu", "begins with 'requests.'"),
        ("Foo.io/gpu", "is no domain name"),
        ("a..io/gpu", "is no domain name"),
        ("-a.io/gpu", "is no domain name"),
        ("a.io-/gpu", "is no domain name"),
        ("a_b.io/gpu", "is no domain name"),
        ("a.io/b/c", "more than one '/'"),
        ("a.io/-gpu", "must have letters"),
        ("a.io/gpu.", "must have letters"),
        ("a.io/1g.10gb+me", "must have letters"),
        ("a.io/gpü", "must have letters"),
        ("a.io/g pu", "must have letters"),
        ("a.io/" + "x" * 64, "64 characters after the '/'; at most 63"),
        ("x" * 245 + "/gpu", "prefix of 245 characters; at most 244"),
    ],
)
def test_names_that_the_kubelet_refuses_are_refused(name: str, why: str) -> None:
    """kubelet-contract §2.3."""
    problem = only(refused_rules(f"resource: {name}, {TS4}"))
    assert problem.startswith("rules[0].resource: ")
    assert why in problem


@pytest.mark.parametrize(
    ("profile", "name"),
    [
        ("1g.10gb", "nvidia.com/mig-1g.10gb"),
        ("1g.10gb+me", "nvidia.com/mig-1g.10gb.me"),
        ("1g.24gb+gfx", "nvidia.com/mig-1g.24gb.gfx"),
        ("1g.24gb+me.all", "nvidia.com/mig-1g.24gb.me.all"),
    ],
)
def test_each_mig_profile_is_a_resource_of_its_own(profile: str, name: str) -> None:
    """P20: the profile with media extensions is not the plain one."""
    assert resource_for(read_rule("strategy: mig"), profile) == name
    assert resource_name_problem(name) is None


def test_the_default_name_follows_from_the_strategy() -> None:
    assert resource_for(read_rule(TS4), None) == "nvidia.com/gpu.shared"
    assert resource_for(read_rule("strategy: mps, slices: 4"), None) == "nvidia.com/gpu.shared"
    assert resource_for(read_rule("strategy: exclusive"), None) == "nvidia.com/gpu"


def test_a_name_may_hold_the_profile_in_a_mig_rule_only() -> None:
    rule = read_rule('resource: "example.com/{profile}.half", strategy: mig, slices: 2')
    assert resource_for(rule, "1g.10gb+me") == "example.com/1g.10gb.me.half"
    assert "only a rule with strategy: mig can fill in" in only(refused_rules('resource: "a.io/{profile}", ' + TS4))
    assert "only once, after the '/'" in only(refused_rules('resource: "{profile}/gpu", strategy: mig'))
    assert "only once, after the '/'" in only(refused_rules('resource: "a.io/{profile}{profile}", strategy: mig'))
    assert "must have letters" in only(refused_rules('resource: "a.io/{profil}", strategy: mig'))
    long = "x" * 60
    assert "with a profile filled in, has 76 characters" in only(
        refused_rules(f'resource: "a.io/{long}-{{profile}}", strategy: mig')
    )


@given(st.integers(0, 1200), st.integers(0, 55))
def test_the_worst_case_size_is_that_of_the_real_message_without_making_it(count: int, rest_bytes: int) -> None:
    """P04."""
    ids = [f"{'x' * rest_bytes}{number}" for number in range(count)]
    assert worst_case_numbered_list_bytes(rest_bytes, count) == worst_case_wire_bytes(ids)


def test_the_figures_of_the_kubelet_contract_are_met() -> None:
    """P04, kubelet-contract §3: how many IDs of one length pass in the worst case."""
    for length, count in ((10, 135_300), (36, 73_584), (47, 61_680), (63, 49_932)):
        assert worst_case_wire_bytes(["x" * length]) * count <= MAX_LIST_BYTES
        assert worst_case_wire_bytes(["x" * length]) * (count + 1) > MAX_LIST_BYTES


@given(st.integers(0, 60))
def test_the_most_that_fits_fits_and_one_more_does_not(rest_bytes: int) -> None:
    """P04."""
    most = most_numbered_ids(rest_bytes)
    assert worst_case_numbered_list_bytes(rest_bytes, most) <= MAX_LIST_BYTES
    assert worst_case_numbered_list_bytes(rest_bytes, most + 1) > MAX_LIST_BYTES
